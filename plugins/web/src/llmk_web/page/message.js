// Shows one message of a conversation.

import { copy, h, iconButton } from "./dom.js";
import { render } from "./markdown.js";

const seconds = (milliseconds) => (milliseconds < 9950 ? (milliseconds / 1000).toFixed(1) : Math.round(milliseconds / 1000));

/** A message's element. `actions` are what its buttons do: `edit(text)`, `again()`, `remove()`, `results(list)`. */
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.content = h("div", { class: message.role === "user" ? "text" : "text markdown" });
    this.thinking = this.thought();
    this.calls = h("div", { class: "calls" });
    this.foot = h("div", { class: "foot" });
    const name = { user: "You", assistant: "Model", tool: "Tool result" }[message.role];
    this.node = h("article", { class: `message ${message.role}`, "aria-label": name },
      this.thinking, this.content, this.calls, this.foot);
    this.update(false);
  }

  thought() {
    this.thoughtText = h("div", { class: "markdown" });
    this.thoughtTitle = h("summary", {});
    const details = h("details", { class: "thinking", hidden: true }, this.thoughtTitle, this.thoughtText);
    this.thoughtTitle.addEventListener("click", () => (this.touched = true));
    return details;
  }

  /** Shows the message as it is now; `running`: more of it is to come. */
  update(running) {
    const { role, content, reasoning } = this.message;
    this.node.classList.toggle("running", running);
    if (role === "user") this.content.textContent = content;
    else if (role === "tool") this.content.replaceChildren(h("div", { class: "label" }, "Tool result"), h("pre", {}, content));
    else render(this.content, content.trimStart());
    this.updateThought(running, reasoning);
    this.updateCalls(running);
    this.foot.replaceChildren(...this.footer(running));
  }

  updateThought(running, reasoning) {
    const text = (reasoning ?? "").trim();
    this.thinking.hidden = !text;
    if (!text) return;
    const thinks = running && !this.message.content.trim() && !this.message.calls?.length;
    if (!this.touched) this.thinking.open = thinks;
    const took = this.message.thoughtMs;
    this.thoughtTitle.textContent = thinks ? "Thinking…" : took >= 50 ? `Thought for ${seconds(took)} s` : "Thought";
    render(this.thoughtText, text);
  }

  updateCalls(running) {
    const calls = this.message.calls ?? [];
    if (this.asksResults && !running) return;
    this.calls.replaceChildren(...calls.map((call) => h("div", { class: "call" },
      h("div", { class: "call-head" }, h("span", { class: "label" }, "Tool call"), h("code", {}, call.name)),
      h("pre", { tabindex: "0", "aria-label": `Arguments of ${call.name}` }, pretty(call.arguments)))));
    if (!running && calls.length && this.actions.wantsResults?.()) this.askResults(calls);
  }

  askResults(calls) {
    this.asksResults = true;
    const fields = calls.map((call, i) => {
      const id = `result-${call.id}-${i}`;
      const field = h("textarea", { id, rows: 2, placeholder: '{"degrees": 21}' });
      this.calls.children[i].append(h("label", { for: id }, `What ${call.name} returns`), field);
      return field;
    });
    this.calls.append(h("button", { type: "button", class: "send", onclick: () =>
      this.actions.results(fields.map((field) => field.value)) }, "Send results"));
  }

  footer(running) {
    const { role, error, stats } = this.message;
    const parts = [];
    if (error) parts.push(h("div", { class: "error", role: "alert" }, h("strong", {}, error.message), error.hint ? ` ${error.hint}` : ""));
    if (stats) parts.push(h("span", { class: "stats" }, words(stats, running)));
    if (running) return parts;
    const buttons = [iconButton("copy", "Copy", () => copy(this.message.content))];
    if (role === "assistant") buttons.push(iconButton("again", "Regenerate", this.actions.again));
    buttons.push(iconButton("edit", "Edit", () => this.edit()));
    return [...parts, h("span", { class: "actions" }, buttons)];
  }

  /** Puts a field in place of the text. */
  edit() {
    const asks = this.message.role === "user";
    const field = h("textarea", { class: "edit", "aria-label": "Edit the message", rows: Math.min(12, this.message.content.split("\n").length + 1) });
    field.value = this.message.content;
    const done = () => form.replaceWith(this.content);
    const save = () => {
      done();
      this.actions.edit(field.value);
    };
    const form = h("div", { class: "editing" }, field, h("div", { class: "buttons" },
      h("button", { type: "button", class: "quiet", onclick: () => (done(), this.update(false)) }, "Cancel"),
      h("button", { type: "button", class: "send", onclick: save }, asks ? "Save and send" : "Save")));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") done(), this.update(false);
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    });
    this.content.replaceWith(form);
    this.foot.replaceChildren();
    field.focus();
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function words({ tokens, prompt, cached, firstMs, rate, end }, running) {
  const parts = [];
  if (tokens) parts.push(`${tokens.toLocaleString()} tokens`);
  if (rate) parts.push(`${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`);
  if (firstMs !== undefined) parts.push(`first token ${firstMs < 995 ? `${Math.round(firstMs)} ms` : `${seconds(firstMs)} s`}`);
  if (running) return parts.join(" · ");
  if (prompt) parts.push(`prompt ${prompt.toLocaleString()}${cached ? `, ${cached.toLocaleString()} from the cache` : ""}`);
  if (end === "length") parts.push("cut off by the token limit");
  if (end === "stopped") parts.push("stopped");
  return parts.join(" · ");
}
