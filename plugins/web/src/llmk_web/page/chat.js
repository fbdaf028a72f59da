// The conversation.

import { byId, h, store, stored, tell } from "./dom.js";
import { MessageView } from "./message.js";
import { chat } from "./server.js";
import { Settings } from "./settings.js";

const SUGGESTIONS = [
  "What is the capital of France?",
  "Explain how a cache works, to a child",
  "Write a Python function that finds prime numbers",
  "Compare tea and coffee in a table",
];
const NEAR_END = 80;
/** Milliseconds within which an answer comes as a whole. */
const TOGETHER_MS = 100;

export class Chat {
  constructor() {
    const kept = stored("sessionStorage", "messages", []);
    this.messages = kept.every(isMessage) ? kept : [];
    this.views = [];
    this.running = null;
    this.settings = new Settings({ save: () => this.saveAsFile() });
    this.place = byId("messages");
    this.scroller = byId("scroll");
    this.prompt = byId("prompt");
    byId("suggestions").append(...SUGGESTIONS.map((text) =>
      h("button", { type: "button", onclick: () => this.ask(text) }, text)));
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit();
    });
    this.prompt.addEventListener("input", () => this.fitPrompt());
    byId("stop").addEventListener("click", () => this.running?.abort());
    byId("new-chat").addEventListener("click", () => this.clear());
    this.follows = true;
    this.scroller.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.scroller;
      this.follows = scrollHeight - scrollTop - clientHeight < NEAR_END;
    });
    new ResizeObserver(() => this.toEnd()).observe(this.scroller);
    this.draw();
  }

  show() {
    if (innerWidth > 900) this.prompt.focus({ preventScroll: true });
  }

  setModels(models) {
    this.settings.setModels(models);
    const writes = models[0].capabilities?.includes("completion") ?? true;
    byId("welcome-text").textContent = writes
      ? `You are talking to ${models[0].id}, which runs on this server.`
      : `${models[0].id} computes embeddings and writes no text: there is nothing to chat with. Live and Plan show how it runs.`;
    byId("composer").hidden = byId("suggestions").hidden = !writes;
  }

  fitPrompt() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${Math.min(this.prompt.scrollHeight, innerHeight * 0.4)}px`;
  }

  submit() {
    const text = this.prompt.value.trim();
    if (!text || this.running) return;
    this.prompt.value = "";
    this.fitPrompt();
    this.ask(text);
  }

  ask(text) {
    if (this.running) return;
    this.messages.push({ role: "user", content: text });
    this.answer();
  }

  clear() {
    this.running?.abort();
    this.messages = [];
    this.save();
    this.draw();
    this.prompt.focus();
  }

  /** Shows all messages anew. */
  draw() {
    this.views = this.messages.map((message) => this.view(message));
    this.place.replaceChildren(...this.views.map((view) => view.node));
    byId("welcome").hidden = this.messages.length > 0;
    byId("new-chat").hidden = this.messages.length === 0;
    this.toEnd(true);
  }

  view(message) {
    return new MessageView(message, {
      edit: (text) => this.edit(message, text),
      again: () => this.again(message),
      results: (texts) => this.sendResults(message, texts),
      wantsResults: () => this.messages.at(-1) === message,
    });
  }

  edit(message, text) {
    if (this.running) return;
    message.content = text;
    if (message.role === "user") {
      this.messages.length = this.messages.indexOf(message) + 1;
      this.answer();
      return;
    }
    this.save();
    this.draw();
  }

  /** Answers again what `message` answered. */
  again(message) {
    if (this.running) return;
    this.messages.length = this.messages.indexOf(message);
    this.answer();
  }

  sendResults(message, texts) {
    if (this.running) return;
    message.calls.forEach((call, i) =>
      this.messages.push({ role: "tool", content: texts[i] || "null", id: call.id }));
    this.answer();
  }

  /** Has the model answer, and shows the answer as it arrives. */
  async answer() {
    const asked = this.wire();
    const message = { role: "assistant", content: "", reasoning: "", calls: [] };
    this.messages.push(message);
    this.draw();
    const view = this.views.at(-1);
    this.setRunning(new AbortController());
    view.update(true);
    try {
      const body = { messages: asked, ...this.settings.request };
      await this.read(message, view, body);
      if (!message.content && !message.reasoning && !message.calls.length) message.stats.end ??= "stop";
    } catch (error) {
      if (error.name === "AbortError") message.stats = { ...message.stats, end: "stopped" };
      else message.error = { message: error.message, hint: error.hint };
    } finally {
      this.setRunning(null);
      view.update(false);
      this.save();
      this.toEnd();
    }
  }

  async read(message, view, body) {
    const started = performance.now();
    const stats = (message.stats = {});
    let first = 0;
    let drawing = 0;
    let pieces = 0;
    const draw = () => {
      drawing = 0;
      if (first && pieces > 1) stats.rate = rate(pieces, started, first, performance.now());
      view.update(this.running !== null);
      this.toEnd();
    };
    try {
      for await (const chunk of chat(body, this.running.signal, (headers) => this.settings.setLimits(headers))) {
        const now = performance.now();
        const choice = chunk.choices[0];
        if (choice && adds(choice.delta)) {
          pieces += 1;
          if (!first) stats.firstMs = (first = now) - started;
          take(message, choice.delta, now - first);
        }
        if (choice?.finish_reason) stats.end = choice.finish_reason;
        if (chunk.usage) finish(stats, chunk.usage, rate(chunk.usage.completion_tokens, started, first, now));
        drawing ||= requestAnimationFrame(draw);
      }
    } finally {
      cancelAnimationFrame(drawing);
    }
  }

  /** The conversation as the API has it. */
  wire() {
    const system = this.settings.system;
    const kept = this.messages.filter((message) => !(message.role === "assistant" && message.error && !message.content));
    return [...(system ? [{ role: "system", content: system }] : []), ...kept.map(wired)];
  }

  setRunning(controller) {
    this.running = controller;
    byId("stop").hidden = controller === null;
    byId("send").hidden = controller !== null;
    this.place.setAttribute("aria-busy", String(controller !== null));
    tell(controller === null ? "The answer is complete" : "The model writes");
  }

  /** Follows the text, unless the reader has scrolled up. */
  toEnd(always = false) {
    if (always || this.follows) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  save() {
    store("sessionStorage", "messages", this.messages);
  }

  saveAsFile() {
    const text = JSON.stringify({ messages: this.wire() }, null, 2);
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    h("a", { href: url, download: "chat.json" }).click();
    URL.revokeObjectURL(url);
  }
}

/** Whether what the browser stored is a message. */
function isMessage(found) {
  const calls = found?.calls ?? [];
  return ["user", "assistant", "tool"].includes(found?.role) && areTexts(found.content, found.reasoning ?? "")
    && Array.isArray(calls) && calls.every((call) => areTexts(call?.id, call?.name, call?.arguments));
}

const areTexts = (...values) => values.every((value) => typeof value === "string");

const adds = (delta) => Boolean(delta.content || delta.reasoning_content || delta.tool_calls?.length);

function take(message, delta, elapsed) {
  if (delta.reasoning_content) {
    message.reasoning += delta.reasoning_content;
    message.thoughtMs = elapsed;
  }
  if (delta.content) message.content += delta.content;
  for (const part of delta.tool_calls ?? []) {
    const call = (message.calls[part.index] ??= { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
}

function finish(stats, usage, tokensPerSecond) {
  stats.tokens = usage.completion_tokens;
  stats.prompt = usage.prompt_tokens;
  stats.cached = usage.prompt_tokens_details?.cached_tokens;
  if (usage.completion_tokens > 1) stats.rate = tokensPerSecond;
}

/** Tokens a second after the first; of pieces that came together, whose times say nothing, from the start on. */
function rate(tokens, started, first, now) {
  const rest = now - first;
  return rest < TOGETHER_MS ? (1000 * tokens) / (now - started) : (1000 * (tokens - 1)) / rest;
}

function wired({ role, content, reasoning, calls, id }) {
  if (role === "tool") return { role, content, tool_call_id: id };
  if (role === "user") return { role, content };
  const message = { role, content };
  if (reasoning) message.reasoning_content = reasoning;
  if (calls?.length) {
    message.tool_calls = calls.map((call) =>
      ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  }
  return message;
}
