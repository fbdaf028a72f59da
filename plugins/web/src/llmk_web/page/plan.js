// The plan in words: which kernel of which wheel serves what, what lost, and why.

import { byId, h } from "./dom.js";
import { getJson } from "./server.js";

const END = 2 ** 31;
const KINDS = {
  attention: ["Attention", "How tokens look at each other, and where what was read is kept."],
  linear: ["Matrix products", "Most of the computing: the model's weights are multiplied here."],
  moe: ["Experts", "Layers of which each token uses a few."],
  op: ["Other operations", "What happens between the large products, and the choice of the next token."],
  policy: ["Order of requests", "Who is served first."],
  executor: ["Where steps run", ""],
};
const SITES = {
  qkv: "queries, keys and values", out: "output of attention", gate_up: "first half of the MLP", down: "second half of the MLP",
  lm_head: "scores of the next token", attention: "attention", embedding: "embedding of tokens", scheduler: "scheduler",
  sample: "choice of the next token", logprobs: "log-probabilities", rms_norm: "norm", add_rms_norm: "sum and norm",
};
const TIERS = {
  vendor: "the device vendor's own", native: "written for this kind of device", portable: "portable", reference: "plain, works anywhere",
};
const REASONS = {
  platform: ({ wanted, found }) => `is for ${wanted}; this is ${found}`,
  arch: ({ wanted, found }) => `needs ${wanted}; this is ${found}`,
  missing_feature: ({ wanted }) => `needs ${wanted}, which this device lacks`,
  package_missing: ({ wanted, found }) => `needs the package ${wanted}: ${found}`,
  weight_format: ({ wanted, found }) => `reads weights stored as ${found}; here they are ${wanted}`,
  outranked: ({ found }) => `could serve, and was outranked ${found}`,
  layout: ({ wanted, found }) => `keeps its data as ${found}; wanted is ${wanted}`,
  not_vouched: () => "could serve, but its wheel is not trusted yet",
  library: ({ wanted, found }) => `its wheel was built without ${wanted || found}`,
  dtype: ({ wanted, found }) => `does not compute in ${wanted}, but in ${found}`,
};
const GROUPS = [
  ["Could serve here, but did not win", ["outranked", "not_chosen", "not_vouched", "token_gap", "layout"]],
  ["Could serve if something were installed", ["package_missing", "library", "import_failed"]],
  ["Does not fit this model", null],
  ["For other devices", ["platform", "arch", "missing_feature"]],
];

export class PlanView {
  async show() {
    if (this.shown || this.loading) return;
    this.loading = true;
    const page = byId("plan-page");
    page.replaceChildren(h("h1", {}, "Plan"), h("p", { class: "lead", role: "status" }, "Reading the plan…"));
    try {
      const plan = await getJson("v1/plan");
      page.replaceChildren(...content(plan));
      this.shown = true;
    } catch (error) {
      page.replaceChildren(h("h1", {}, "Plan"), h("p", { class: "error", role: "alert" }, error.message, " ",
        h("button", { type: "button", class: "quiet", onclick: () => this.show() }, "Try again")));
    } finally {
      this.loading = false;
    }
  }
}

function content(plan) {
  const groups = Object.groupBy ? Object.groupBy(plan.choices, ({ kind }) => kind) : grouped(plan.choices);
  return [
    h("h1", {}, "Plan"),
    h("p", { class: "lead" }, summary(plan)),
    facts(plan),
    ...plan.warnings.map((text) => h("p", { class: "warning" }, h("strong", {}, "Warning: "), text)),
    ...Object.entries(groups).map(([kind, choices]) => group(kind, choices)),
    dialect(plan),
  ];
}

function grouped(choices) {
  const groups = {};
  for (const choice of choices) (groups[choice.kind] ??= []).push(choice);
  return groups;
}

function summary(plan) {
  const { platform } = plan;
  const device = `${platform.device_name || platform.name} (${platform.name}/${platform.arch})`;
  const spread = plan.tensor * plan.pipeline > 1 ? `, spread over ${plan.tensor * plan.pipeline} processes` : "";
  const wheels = {};
  for (const { pieces } of plan.choices.flatMap(withParts)) {
    if (pieces[0] && !pieces[0].parts.length) wheels[pieces[0].distribution] = (wheels[pieces[0].distribution] ?? 0) + 1;
  }
  const shares = Object.entries(wheels).sort((a, b) => b[1] - a[1]).map(([name, count], i) => `${count} ${i ? "" : count === 1 ? "is served " : "are served "}by ${name}`);
  const all = Object.values(wheels).reduce((sum, count) => sum + count, 0);
  return `${plan.architecture} computes in ${plan.dtype} on ${device}${spread}. Of the ${all} parts in which a kernel could be chosen, ${listed(shares)}.`;
}

const withParts = (choice) => [choice, ...choice.parts.flatMap(withParts)];
const listed = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);

function facts(plan) {
  const rows = [
    ["Model", `${plan.architecture}, by ${plan.model}`],
    ["Weights", plan.quantization.length ? plan.quantization.map(({ id, weight_bits }) => `${id}, ${weight_bits} bits each`).join("; ") : `as they are, in ${plan.dtype}`],
    ["Device", `${plan.platform.device_name || "unnamed"}, ${plan.platform.num_devices} of them, by ${plan.platform_id}`],
    ["Wheels", plan.wheels.map(([name, version]) => `${name} ${version}`).join(", ")],
  ];
  return h("dl", { class: "facts" }, rows.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
}

function group(kind, choices) {
  const [title, text] = KINDS[kind] ?? [kind, ""];
  return h("section", { class: "panel" }, h("h2", {}, title), text ? h("p", { class: "help" }, text) : null, choices.map((choice) => site(choice)));
}

function site(choice, depth = 0) {
  const name = depth ? choice.op : choice.site;
  const known = SITES[name.replace(/\.\d+$/, "")];
  const head = h("div", { class: "site-head" }, h("code", {}, name), known && known !== name ? h("span", { class: "known" }, known) : null);
  const composite = choice.parts.length > 0;
  const winners = composite && choice.pieces.length === 1
    ? [h("p", {}, "is served part by part, since no kernel serves the whole faster:")]
    : choice.pieces.map((piece) => winner(piece, choice.pieces.length > 1));
  return h("div", { class: "site" }, head, winners, choice.parts.map((part) => site(part, depth + 1)), losers(choice));
}

function winner(piece, several) {
  const range = !several ? null : piece.stop >= END ? `from ${piece.start.toLocaleString()} tokens a step` : `up to ${(piece.stop - 1).toLocaleString()} tokens a step`;
  return h("p", { class: "winner" },
    h("span", { class: `tier t-${piece.tier || "built-in"}` }, piece.tier || "built in"), " ",
    h("code", {}, piece.id), ` of ${piece.distribution} ${piece.version}`.trimEnd(), range ? ` ${range}` : "",
    h("span", { class: "why" }, why(piece)));
}

function why({ why: reason, tier }) {
  if (reason === `tier ${tier}`) return `no candidate ranks higher: it is ${TIERS[tier] ?? tier}`;
  if (reason === `best score in tier ${tier}`) return `the best of those that are ${TIERS[tier] ?? tier}`;
  if (reason === "only candidate") return "nothing else can serve here";
  return reason;
}

function losers({ rejected }) {
  if (!rejected.length) return null;
  const rest = [...rejected];
  const parts = [];
  for (const [title, codes] of GROUPS) {
    const fits = ({ reasons }) => (codes ? reasons.every(({ code }) => codes.includes(code)) : !reasons.some(({ code }) => ["platform", "arch", "missing_feature"].includes(code)));
    const found = rest.filter(fits);
    for (const each of found) rest.splice(rest.indexOf(each), 1);
    if (title.startsWith("For other")) found.push(...rest.splice(0));
    if (found.length) parts.push(h("h3", {}, `${title} (${found.length})`), h("ul", {}, found.map(loser)));
  }
  return h("details", {}, h("summary", {}, `${rejected.length} ${rejected.length === 1 ? "candidate" : "candidates"} lost`), parts);
}

function loser({ id, distribution, reasons }) {
  const words = reasons.map((reason) => (REASONS[reason.code]?.(reason) ?? generic(reason)) + (reason.hint ? ` (${reason.hint})` : ""));
  return h("li", {}, h("code", {}, id), ` of ${distribution} `, listed(words), ".");
}

function generic({ code, wanted, found }) {
  const name = code.replaceAll("_", " ");
  if (wanted && found) return `${name}: wanted is ${wanted}, it has ${found}`;
  return wanted || found ? `${name}: ${wanted || found}` : name;
}

function dialect(plan) {
  const { reasoning, tool } = plan.parsers ?? {};
  const said = (parser) => (parser?.id ? `${parser.id} (${parser.why})` : `none (${parser?.why ?? "not asked for"})`);
  return h("section", { class: "panel" }, h("h2", {}, "Dialect of the model"),
    h("dl", { class: "facts" },
      h("dt", {}, "Thinking is read by"), h("dd", {}, said(reasoning)),
      h("dt", {}, "Tool calls are read by"), h("dd", {}, said(tool)),
      h("dt", {}, "Answers can be held to"), h("dd", {}, plan.grammars?.length ? plan.grammars.join(", ") : "nothing: no wheel for grammars is installed")));
}
