// Requests to the server. Addresses are relative, so that the page works behind a path of a proxy.

/** The number of tokens of a text. Throws an Error with the server's reason. */
export async function countTokens(prompt, key) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = "Bearer " + key;
  const response = await fetch("tokenize", { method: "POST", headers, body: JSON.stringify({ prompt }) });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error?.message ?? "the server answered " + response.status);
  return answer.count;
}
