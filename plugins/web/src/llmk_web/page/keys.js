// Limits and use of API keys: of the user's own key, and for operators of all.

import { h } from "./dom.js";
import { getJson } from "./server.js";

const EVERY_MS = 2000;
const ALL_EVERY_MS = 10000;
const MOST = 100;
const LIMITS = [
  ["requests", "requests_per_minute", "Requests", "a minute"],
  ["tokens", "tokens_per_minute", "Tokens", "a minute"],
  ["concurrency", "concurrency", "At the same time", "requests"],
  ["budget", "budget", "Budget", "tokens in all"],
];

export class Keys {
  constructor() {
    this.own = part("own-key", "Your key");
    this.all = part("all-keys", "All keys");
    this.elements = [this.own.section, this.all.section];
    this.next = this.nextAll = 0;
  }

  /** Reads and shows the keys, if that was not done just before. */
  async read(now) {
    if (now < this.next) return;
    this.next = now + EVERY_MS;
    const { key } = await getJson("v1/key");
    this.own.section.hidden = !key;
    if (!key) return;
    this.own.body.replaceChildren(...own(key));
    this.all.section.hidden = key.role !== "admin";
    if (key.role !== "admin" || now < this.nextAll) return;
    this.nextAll = now + ALL_EVERY_MS;
    this.all.body.replaceChildren(...all((await getJson("v1/keys")).data));
  }
}

function part(id, title) {
  const body = h("div", {});
  const section = h("section", { class: "panel", hidden: true, "aria-labelledby": id }, h("h2", { id }, title), body);
  return { section, body };
}

/** What a key may still use, as bars, and what it has used. */
function own({ name, role, quotas, usage, left }) {
  const limited = LIMITS.filter(([what]) => left[what] !== null);
  const rows = limited.flatMap(([what, quota, title, unit]) => [
    h("dt", {}, title),
    h("dd", {}, h("meter", { "aria-label": `${title} left`, min: 0, max: quotas[quota], value: left[what] }),
      ` ${count(left[what])} of ${count(quotas[quota])} ${unit} left`),
  ]);
  const used = `${plural(usage.requests, "request")} so far, with ${plural(usage.prompt_tokens, "token")} read and ${count(usage.output_tokens)} written.`;
  const refused = sum(usage.refused);
  return [
    h("p", { class: "help" }, `${name} (${role}): ${used}${refused ? ` ${plural(refused, "request")} over a limit.` : ""}`),
    limited.length ? h("dl", { class: "facts" }, rows) : h("p", {}, "It has no limits."),
  ];
}

/** A table of keys, those with the most tokens first. */
function all(keys) {
  const tokens = ({ usage }) => usage.prompt_tokens + usage.output_tokens;
  const shown = [...keys].sort((a, b) => tokens(b) - tokens(a)).slice(0, MOST);
  const head = ["Key", "Requests", "Running", "Tokens read", "Tokens written", "Over a limit", "Left a minute", "Left of the budget"];
  const table = h("table", {}, h("thead", {}, h("tr", {}, head.map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, shown.map(({ name, role, usage, left }) => h("tr", {},
      h("th", { scope: "row" }, role === "admin" ? `${name} (admin)` : name),
      [usage.requests, usage.running, usage.prompt_tokens, usage.output_tokens, sum(usage.refused)].map((value) => h("td", {}, count(value))),
      h("td", {}, rates(left)), h("td", {}, left.budget === null ? "no limit" : count(left.budget))))));
  const more = keys.length > MOST ? `The ${MOST} of ${count(keys.length)} keys with the most tokens.` : plural(keys.length, "key");
  return [h("p", { class: "help" }, more), h("div", { class: "table", tabindex: 0, role: "region", "aria-label": "What each key has used" }, table)];
}

function rates({ requests, tokens }) {
  const parts = [];
  if (requests !== null) parts.push(plural(requests, "request"));
  if (tokens !== null) parts.push(plural(tokens, "token"));
  return parts.join(", ") || "no limit";
}

const count = (value) => value.toLocaleString();
const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);
