// What a token's logarithm of its probability means to a reader.

const LIKELY = 0.5;
const POSSIBLE = 0.1;

const percent = (logprob) => (100 * Math.exp(logprob)).toFixed(1) + " %";

/** The class of a token by its probability; none where that is unknown. */
export function shadeOf(logprob) {
  if (logprob === null) return "";
  const odds = Math.exp(logprob);
  if (odds >= LIKELY) return "likely";
  return odds >= POSSIBLE ? "possible" : "unlikely";
}

/** A token and those that were as likely, the likeliest first, one a line. */
export function described(token) {
  if (token.logprob === null) return "";
  const others = Object.entries(token.others).sort((one, other) => other[1] - one[1]);
  const lines = others.map(([text, logprob]) => `${JSON.stringify(text)} ${percent(logprob)}`);
  return [`${JSON.stringify(token.text)} ${percent(token.logprob)}`, "", ...lines].join("\n");
}
