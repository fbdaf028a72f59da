// Requests to the server. Addresses are relative, so that the page works behind a path of a proxy.

const OTHERS = 5;

function headersOf(key) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = "Bearer " + key;
  return headers;
}

async function checked(response) {
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  throw new Error(said?.error?.message ?? "the server answered " + response.status);
}

/** The names of the models that are served. Throws an Error with the server's reason. */
export async function modelNames(key) {
  const response = await checked(await fetch("v1/models", { headers: headersOf(key) }));
  const said = await response.json().catch(() => null);
  if (!Array.isArray(said?.data)) throw new Error("the server named no models");
  return said.data.map((model) => String(model?.id ?? "")).filter((name) => name);
}

/**
 * Continues a text; `found` is called with each token, as it comes. `logprob` is null where the server says none.
 * Throws an Error with the server's reason.
 */
export async function continued(request, key, signal, found) {
  const body = JSON.stringify({ ...request, stream: true, logprobs: OTHERS });
  const headers = headersOf(key);
  const response = await checked(await fetch("v1/completions", { method: "POST", headers, body, signal }));
  if (!response.body) throw new Error("the server's answer is empty");
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  let events = 0;
  for (;;) {
    const { done, value } = await reader.read();
    held += done ? decoder.decode() + "\n" : decoder.decode(value, { stream: true });
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines.filter((line) => line.startsWith("data:"))) {
      events += 1;
      tokensOf(line.slice(5).trim()).forEach(found);
    }
    if (done) break;
  }
  if (!events) throw new Error("the server sent no tokens");
}

function tokensOf(data) {
  if (data === "[DONE]") return [];
  let event = null;
  try {
    event = JSON.parse(data);
  } catch {
    throw new Error("the server sent what is no JSON");
  }
  if (event?.error) throw new Error(event.error.message ?? "the server stopped with an error");
  const choice = event?.choices?.[0];
  const odds = choice?.logprobs;
  if (!Array.isArray(odds?.tokens)) {
    return choice?.text ? [{ text: String(choice.text), logprob: null, others: {} }] : [];
  }
  return odds.tokens.map((text, at) => ({
    text: String(text),
    logprob: odds.token_logprobs?.[at] ?? null,
    others: odds.top_logprobs?.[at] ?? {},
  }));
}
