// Requests to the server. Every address is relative to the page's, so that it works behind a path of a proxy.

import { store, stored } from "./dom.js";

const at = (path) => new URL(path, document.baseURI);

/** An error that the server answered with, or that there was no answer. */
export class ServerError extends Error {
  constructor(message, status, hint = "") {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

let askForKey = async () => null;

/** Sets what asks the user for an API key. It returns the key, or null. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

let current = stored("sessionStorage", "key", "");
export const key = () => current;

export function setKey(value) {
  current = value;
  store("sessionStorage", "key", value || null);
}

/** The response to a request. Asks for a key, and tries again, as long as the server wants another. */
export async function request(path, { method = "GET", body, signal } = {}) {
  for (let wrong = false; ; wrong = true) {
    const given = key();
    const headers = body === undefined ? {} : { "content-type": "application/json" };
    if (given) headers.authorization = `Bearer ${given}`;
    const content = body === undefined ? undefined : JSON.stringify(body);
    let response;
    try {
      response = await fetch(at(path), { method, headers, body: content, signal, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError("The server does not answer.", 0, "Is it still running? The page tries again by itself.");
    }
    if (response.status === 401) {
      if (key() !== given || (await askForKey(wrong && given !== ""))) continue;
      throw new ServerError("This server needs an API key.", 401, "Reload the page to enter one.");
    }
    if (!response.ok) throw await failure(response);
    return response;
  }
}

async function failure(response) {
  const text = await response.text();
  let message = `The server answered ${response.status}.`;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // Not one of the server's own errors.
  }
  const wait = response.headers.get("retry-after");
  return new ServerError(message, response.status, wait ? `Try again in ${wait} s.` : "");
}

export const getJson = async (path) => (await request(path)).json();
export const getText = async (path) => (await request(path)).text();

/** The chunks of a streamed chat completion. */
export async function* chat(body, signal, onHeaders = () => {}) {
  const wanted = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await request("v1/chat/completions", { method: "POST", body: wanted, signal });
  onHeaders(response.headers);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message, chunk.error.code ?? 500);
    yield chunk;
  }
}

/** The data of server-sent events. */
async function* events(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
