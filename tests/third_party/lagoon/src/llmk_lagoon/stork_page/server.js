// The request to the server, and its answer, piece by piece. Its address is relative, so that the page works behind a
// path of a proxy.
import { readEvents } from "./events.js";

/** Yields the translation as it is written. Throws an Error with the server's reason. */
export async function* translate({ text, language, tone }, key, signal) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = "Bearer " + key;
  const manner = tone.trim() ? " The tone is " + tone.trim() + "." : "";
  const task = "Translate what the user writes into " + language + "." + manner + " Answer with that alone.";
  const messages = [
    { role: "system", content: task },
    { role: "user", content: text },
  ];
  const body = JSON.stringify({ messages, stream: true, temperature: 0 });
  const response = await fetch("v1/chat/completions", { method: "POST", headers, body, signal });
  if (!response.ok) {
    const answer = await response.json().catch(() => null);
    throw new Error(answer?.error?.message ?? "the server answered " + response.status);
  }
  if (!response.body) throw new Error("the server sent no answer");
  let complete = false;
  for await (const data of readEvents(response.body)) {
    if (data === "[DONE]") {
      complete = true;
      break;
    }
    const event = parsed(data);
    if (event.error) throw new Error(event.error.message ?? "the server failed");
    const piece = event.choices?.[0]?.delta?.content;
    if (piece) yield piece;
  }
  if (!complete) throw new Error("the server ended before the translation did");
}

function parsed(data) {
  try {
    return Object(JSON.parse(data));
  } catch {
    throw new Error("the server sent what is no JSON");
  }
}
