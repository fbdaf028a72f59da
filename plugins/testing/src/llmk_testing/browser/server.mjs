// What the server answers to pages: right answers of the routes that pages use, errors, or nothing.

const MODEL = "org/model";
const text = (body) => (typeof body?.prompt === "string" ? body.prompt : body?.messages?.at(-1)?.content ?? "");
const tokens = (prompt) => Array.from(String(prompt));
const usage = { prompt_tokens: 5, completion_tokens: 3, total_tokens: 8 };
const SAID = "grün 日本 😀 said";
const said = (body) => (typeof text(body) === "string" ? `${SAID} ${text(body)}` : SAID);

const METRICS = `# HELP llmk_num_requests_running Requests in the batch.
# TYPE llmk_num_requests_running gauge
llmk_num_requests_running{model_name="${MODEL}"} 3.0
llmk_num_requests_waiting{model_name="${MODEL}"} 1.0
llmk_kv_cache_usage_perc{model_name="${MODEL}"} 0.25
llmk_generation_tokens_total{model_name="${MODEL}"} 1234.0
llmk_prompt_tokens_total{model_name="${MODEL}"} 4321.0
`;

/** What the server says of a token's probability: nothing for null. Of the likeliest, by `way.tops`: this token and one more, none, or one other. */
function odds(way, chat, word, at) {
  const logprob = way.logprob === undefined ? [-0.5, 0, -9999][at % 3] : way.logprob;
  const tops = { none: [], others: [["other", -1]] }[way.tops] ?? [[word, logprob ?? -1], ["other", -3]];
  if (!chat) return { tokens: [word], token_logprobs: [logprob], top_logprobs: [Object.fromEntries(tops)], text_offset: [0] };
  const one = ([token, value]) => ({ token, logprob: value, bytes: [...new TextEncoder().encode(token)] });
  return logprob === null ? null : { content: [{ ...one([word, logprob]), top_logprobs: tops.map(one) }] };
}

function chunks(body, way) {
  const chat = body?.messages !== undefined;
  const head = { id: "chatcmpl-1", object: chat ? "chat.completion.chunk" : "text_completion", created: 1700000000, model: MODEL };
  const wanted = body?.logprobs !== undefined && body.logprobs !== null && body.logprobs !== false;
  const sure = (word, at) => (wanted && word ? { logprobs: odds(way, chat, word, at) } : {});
  const piece = (word, why = null, at = 0) => ({ ...head, choices: [{ index: 0, ...(chat ? { delta: word === "" ? {} : { content: word } } : { text: word }), ...sure(word, at), finish_reason: why }] });
  const pieces = Array.from(said(body).matchAll(/\S+\s*/g), ([word], at) => piece(word, null, at));
  if (way.ends) return [...pieces.slice(0, 2), ...(way.ends === "error" ? [{ error: reasoned(way.reason) }] : [])];
  return [...pieces, piece("", "stop"), { ...head, choices: [], usage }];
}

function complete(body) {
  const chat = body?.messages !== undefined;
  const words = chat ? { message: { role: "assistant", content: said(body) } } : { text: said(body) };
  return { id: "chatcmpl-1", object: chat ? "chat.completion" : "text_completion", created: 1700000000, model: MODEL, choices: [{ index: 0, ...words, finish_reason: "stop" }], usage };
}

/** The right answer: [status, media type, text]. Each key has a model of its own. */
function right(path, body, way, key) {
  const json = (value) => [200, "application/json", JSON.stringify(value)];
  switch (path) {
    case "tokenize": {
      const each = tokens(text(body));
      const strings = body?.return_token_strs ? { token_strs: each } : {};
      return json({ count: each.length, max_model_len: 4096, tokens: each.map((one) => one.codePointAt(0)), ...strings });
    }
    case "detokenize": return json({ prompt: (body?.tokens ?? []).map((one) => String.fromCodePoint(one)).join("") });
    case "v1/models": return json({ object: "list", data: [{ id: key ? `${MODEL} of ${key}` : MODEL, object: "model", created: 1700000000, owned_by: "llmk", max_model_len: 4096, capabilities: ["completion"] }] });
    case "version": return json({ version: "0.1.0" });
    case "health": case "ping": return json({ status: "ok" });
    case "metrics": return [200, "text/plain; charset=utf-8", METRICS];
    case "v1/completions": case "v1/chat/completions":
      if (!body?.stream) return json(complete(body));
      return [200, "text/event-stream", [...chunks(body, way).map((each) => `data: ${JSON.stringify(each)}\n\n`), way.ends === "lost" ? "" : "data: [DONE]\n\n"].join("")];
    case "v1/embeddings": return json({ object: "list", model: MODEL, data: [body?.input ?? ""].flat().map((_, index) => ({ object: "embedding", index, embedding: [0.6, 0.8] })), usage: { prompt_tokens: 5, total_tokens: 5 } });
    default: return failed(404, `there is no ${path}`);
  }
}

function failed(status, message) {
  return [status, "application/json", JSON.stringify({ error: reasoned(message) })];
}

function reasoned(message) {
  return { message, type: "t", param: null, code: null, request_id: "0".repeat(32) };
}

/** An answer by the scenario's way. */
export function answer(way, path, body, headers) {
  switch (way.answers) {
    case "error": return failed(500, way.reason);
    case "words": return [502, "text/html", "<html><h1>Bad Gateway</h1></html>"];
    case "empty": return [200, "application/json", "{}"];
    case "nothing": return null;
    case "keys": return headers.authorization?.startsWith("Bearer ") ? right(path, body, way, headers.authorization.slice(7)) : failed(401, "a key is needed");
    case "key": return headers.authorization === `Bearer ${way.key}` ? right(path, body, way) : failed(401, "a key is needed");
    default: return right(path, body, way);
  }
}
