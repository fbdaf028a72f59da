// The panel of settings: what is sent with every request besides the conversation. What is left empty is not sent, so
// that the model's own defaults hold.

import { byId, h, store, stored } from "./dom.js";

const NUMBERS = [
  ["temperature", "Temperature", "0 always takes the likeliest token", { min: 0, max: 100, step: 0.1 }],
  ["top_p", "Top p", "keep the likeliest tokens up to this probability", { min: 0, max: 1, step: 0.05 }],
  ["top_k", "Top k", "keep this many tokens", { min: 0, step: 1 }],
  ["min_p", "Min p", "keep tokens this likely, next to the likeliest", { min: 0, max: 1, step: 0.01 }],
  ["max_tokens", "Most tokens", "the longest answer", { min: 1, step: 1 }],
  ["presence_penalty", "Presence penalty", "against tokens that were used", { min: -2, max: 2, step: 0.1 }],
  ["frequency_penalty", "Frequency penalty", "the same, for each time", { min: -2, max: 2, step: 0.1 }],
  ["repetition_penalty", "Repetition penalty", "1 is none", { min: 0.01, max: 100, step: 0.05 }],
  ["seed", "Seed", "the same seed, the same answer", { step: 1 }],
];
const THINKING = [["", "the model's default"], ["none", "off"], ["low", "a little"], ["medium", "on"], ["high", "a lot"]];
const TOOL_EXAMPLE = `[{"name": "weather", "description": "The weather of a city",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]`;

/** Those values that are texts, as all of fields are. */
const texts = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => typeof value === "string"));

export class Settings {
  constructor(actions) {
    this.values = texts(stored("localStorage", "settings", {}));
    this.fields = {};
    this.model = h("select", { id: "set-model" });
    this.modelField = h("div", { class: "field", hidden: true }, h("label", { for: "set-model" }, "Model"), this.model);
    this.limits = h("dl", { class: "facts" });
    this.limitsPart = h("div", { hidden: true }, h("h3", {}, "Your limits"), this.limits);
    this.panel = byId("settings");
    this.toggle = byId("toggle-settings");
    this.build(actions);
    this.toggle.addEventListener("click", () => this.setOpen(this.panel.hidden));
    this.setOpen(stored("localStorage", "settings-open", false) && innerWidth > 900);
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.panel.hidden && innerWidth <= 900) this.setOpen(false);
    });
  }

  build(actions) {
    const close = h("button", { type: "button", class: "quiet", onclick: () => this.setOpen(false) }, "Close");
    this.panel.append(
      h("div", { class: "panel-head" }, h("h2", {}, "Settings"), close),
      this.modelField,
      this.text("system", "System prompt", "Who the model is, and how it answers", 4),
      this.choice("thinking", "Thinking", THINKING),
      h("div", { class: "grid" }, NUMBERS.map(([name, label, help, range]) => this.number(name, label, help, range))),
      this.text("stop", "Stop at", "One text a line, which ends the answer", 2),
      this.text("tools", "Tools", TOOL_EXAMPLE, 5, "JSON: functions that the model may call. You write what they return."),
      this.limitsPart,
      h("div", { class: "buttons" },
        h("button", { type: "button", class: "quiet", onclick: () => this.reset() }, "Reset"),
        h("button", { type: "button", class: "quiet", onclick: actions.save }, "Save the chat as a file")),
    );
  }

  field(name, label, control, help) {
    control.id = `set-${name}`;
    control.value = this.values[name] ?? "";
    control.addEventListener("input", () => {
      this.values[name] = control.value;
      store("localStorage", "settings", this.values);
      control.removeAttribute("aria-invalid");
    });
    if (help) control.setAttribute("aria-describedby", `help-${name}`);
    this.fields[name] = control;
    const text = help && h("p", { class: "help", id: `help-${name}` }, help);
    return h("div", { class: "field" }, h("label", { for: control.id }, label), control, text);
  }

  text(name, label, placeholder, rows, help) {
    return this.field(name, label, h("textarea", { rows, placeholder, spellcheck: name === "system" ? null : "false" }), help);
  }

  number(name, label, help, range) {
    return this.field(name, label, h("input", { type: "number", inputmode: "decimal", placeholder: "default", ...range, step: range.step === 1 ? 1 : "any" }), help);
  }

  choice(name, label, options) {
    return this.field(name, label, h("select", {}, options.map(([value, text]) => h("option", { value }, text))));
  }

  setOpen(open) {
    this.panel.hidden = !open;
    this.toggle.setAttribute("aria-expanded", String(open));
    store("localStorage", "settings-open", open);
    if (open && innerWidth <= 900) this.panel.querySelector("button").focus();
  }

  reset() {
    this.values = {};
    store("localStorage", "settings", null);
    for (const control of Object.values(this.fields)) control.value = "";
  }

  /** The model, and its adapters. */
  setModels(models) {
    this.model.replaceChildren(...models.map(({ id }) => h("option", { value: id }, id)));
    this.modelField.hidden = models.length < 2;
  }

  /** Limits that the server states in the headers of a response, by the names that are usual. */
  setLimits(headers) {
    const rows = [];
    for (const [name, text] of [["requests", "Requests left"], ["tokens", "Tokens left"]]) {
      const left = headers.get(`x-ratelimit-remaining-${name}`);
      const all = headers.get(`x-ratelimit-limit-${name}`);
      if (left !== null) rows.push(h("dt", {}, text), h("dd", {}, all === null ? left : `${left} of ${all}`));
    }
    this.limits.replaceChildren(...rows);
    this.limitsPart.hidden = rows.length === 0;
  }

  get system() {
    return (this.values.system ?? "").trim();
  }

  /** The fields of a request. Throws an error with words for the user, where a field makes no sense. */
  get request() {
    const body = {};
    if (this.model.options.length > 1) body.model = this.model.value;
    for (const [name] of NUMBERS) {
      const given = String(this.values[name] ?? "").trim();
      if (given === "") continue;
      if (!Number.isFinite(Number(given))) throw this.wrong(name, `${name} is not a number: ${given}`);
      body[name] = Number(given);
    }
    if (this.values.thinking) body.reasoning_effort = this.values.thinking;
    const stop = (this.values.stop ?? "").split("\n").filter((line) => line !== "");
    if (stop.length) body.stop = stop;
    const tools = (this.values.tools ?? "").trim();
    if (tools) body.tools = this.tools(tools);
    return body;
  }

  tools(text) {
    let found;
    try {
      found = JSON.parse(text);
    } catch (error) {
      throw this.wrong("tools", `The tools in the settings are not JSON: ${error.message}`);
    }
    const all = Array.isArray(found) ? found : [found];
    return all.map((tool) => (tool.type === "function" ? tool : { type: "function", function: tool }));
  }

  wrong(name, message) {
    this.setOpen(true);
    this.fields[name].setAttribute("aria-invalid", "true");
    return new Error(message);
  }
}
