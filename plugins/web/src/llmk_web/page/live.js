// Live numbers: what the server measures, read every second while the view is open, and more rarely while it isn't, so
// that there is a past to show.

import { byId, h, svg } from "./dom.js";
import { Keys } from "./keys.js";
import { quantile, rate, Reading } from "./metrics.js";
import { getJson, getText } from "./server.js";

const EVERY_MS = 1000;
const HIDDEN_EVERY_MS = 5000;
const KEPT = 60;
const RECENT = 60;

export class Live {
  constructor() {
    this.readings = [];
    this.history = { generated: [], prompt: [], running: [], cache: [] };
    this.cards = {};
    this.memory = null;
    this.open = false;
    this.build();
  }

  /** Reads from now on; called once the server has let this page in. */
  async start() {
    for (let read = true; read; ) {
      read = await this.read();
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, this.open ? EVERY_MS : HIDDEN_EVERY_MS);
      });
    }
  }

  show() {
    this.open = true;
    this.wake?.();
  }

  hide() {
    this.open = false;
  }

  build() {
    this.state = h("p", { class: "lead", role: "status" }, "Reading the numbers…");
    const cards = [
      this.card("generated", "Tokens written", "a second", true),
      this.card("prompt", "Prompt tokens read", "a second", true),
      this.card("running", "Requests", "running now", true),
      this.card("cache", "Cache in use", "of its tokens", true),
      this.card("first", "Time to first token", "median"),
      this.card("between", "Time between tokens", "median"),
      this.card("hits", "Prompt found in the cache", "of the tokens of prompts"),
      this.card("answered", "Answers", "since the server started"),
    ];
    this.memoryPart = h("section", { class: "panel", "aria-labelledby": "memory-title" },
      h("h2", { id: "memory-title" }, "Memory of a device"), (this.memoryBody = h("div", {}, "…")));
    this.keys = new Keys();
    const parts = [h("div", { class: "cards" }, cards), ...this.keys.elements, this.memoryPart];
    byId("live-page").append(h("h1", {}, "Live"), this.state, ...parts);
  }

  card(name, title, unit, chart = false) {
    const value = h("span", { class: "value" }, "–");
    const more = h("span", { class: "more" }, unit);
    const line = chart ? svg("svg", { class: "spark", viewBox: "0 0 120 32", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("path", { class: "area" }), svg("path", { class: "line" })) : null;
    this.cards[name] = { value, more, line };
    return h("div", { class: "card" }, h("h2", {}, title), value, more, line);
  }

  /** Reads and shows the numbers; whether to go on. */
  async read() {
    if (document.visibilityState !== "visible") return true;
    try {
      const text = await getText("metrics");
      this.readings.push(new Reading(text, performance.now()));
      if (this.readings.length > RECENT) this.readings.shift();
      // The plan is large: it is read when somebody looks.
      if (this.open) this.memory ??= (await getJson("v1/plan")).memory ?? {};
      if (this.open) await this.keys.read(performance.now());
      this.update();
    } catch (error) {
      this.state.textContent = error.message;
      return error.status !== 401;
    }
    return true;
  }

  update() {
    const now = this.readings.at(-1);
    const last = this.readings.at(-2) ?? now;
    const waiting = now.sum("num_requests_waiting");
    const running = now.sum("num_requests_running");
    this.state.textContent = described(now, running, waiting);
    this.chart("generated", rate(last, now, "generation_tokens_total"), short);
    this.chart("prompt", rate(last, now, "prompt_tokens_total"), short);
    this.chart("running", running, short);
    this.cards.running.more.textContent = waiting ? `running now, ${short(waiting)} wait` : "running now, none wait";
    this.cache(now);
    this.times("first", "time_to_first_token_seconds", now);
    this.times("between", "inter_token_latency_seconds", now);
    const asked = now.sum("prefix_cache_queries_total");
    this.set("hits", asked ? percent(now.sum("prefix_cache_hits_total") / asked) : "–");
    const ended = (reason) => now.sum("request_success_total", (labels) => labels.finished_reason === reason);
    const good = ended("stop") + ended("length") + ended("tool_calls");
    const aborted = ended("abort");
    this.set("answered", short(good), aborted ? `since the start, ${short(aborted)} broken off` : "since the server started");
    this.showMemory(now);
  }

  cache(now) {
    const total = now.sum("kv_cache_blocks");
    const used = now.sum("kv_cache_blocks_used");
    this.chart("cache", total ? used / total : 0, percent);
    const { groups } = this.memory?.cache ?? {};
    const size = groups?.length === 1 ? groups[0].block_size : 1;
    this.cards.cache.more.textContent = `${short(used * size)} of ${short(total * size)} ${size > 1 ? "tokens" : "blocks"}`;
  }

  times(name, metric, now) {
    const since = this.readings.length > 1 ? this.readings[0] : null;
    const recent = since && quantile(since, now, metric, 0.5);
    const half = recent ?? quantile(null, now, metric, 0.5);
    const most = recent === null ? quantile(null, now, metric, 0.95) : quantile(since, now, metric, 0.95);
    const when = recent === null ? "since the start" : "in the last minute";
    this.set(name, half === null ? "–" : duration(half), half === null ? "nothing measured yet" : `median, 95% within ${duration(most)}, ${when}`);
  }

  set(name, value, more) {
    this.cards[name].value.textContent = value;
    if (more !== undefined) this.cards[name].more.textContent = more;
  }

  chart(name, value, words) {
    const points = this.history[name];
    points.push(value);
    if (points.length > KEPT) points.shift();
    this.set(name, words(value));
    const top = Math.max(...points, name === "cache" ? 0.01 : 1);
    const x = (i) => 120 - 2 * (points.length - 1 - i);
    const line = points.map((point, i) => `${i ? "L" : "M"}${x(i)} ${(30 - (28 * point) / top).toFixed(1)}`).join("");
    const [area, path] = this.cards[name].line.children;
    path.setAttribute("d", line);
    area.setAttribute("d", `${line}L120 32L${x(0)} 32Z`);
  }

  showMemory(now) {
    if (!this.memory) return;
    const { total, weights, activations, cache } = this.memory;
    if (!total) {
      this.memoryBody.textContent = "The platform does not say how much memory a device has.";
      return;
    }
    const size = (cache?.block_bytes ?? 0) * now.sum("kv_cache_blocks");
    const used = (cache?.block_bytes ?? 0) * now.sum("kv_cache_blocks_used");
    const parts = [
      ["weights", "Weights of the model", weights],
      ["activations", "Largest step (estimated)", activations],
      ["cache-used", "Cache in use", used],
      ["cache-free", "Cache, free", size - used],
      ["rest", "The rest: libraries, other programs, free", Math.max(0, total - weights - activations - size)],
    ];
    const bar = h("div", { class: "memory", role: "img", "aria-label": parts.map(([, text, bytes]) => `${text}: ${gib(bytes)}`).join(", ") },
      parts.map(([name, , bytes]) => {
        const part = h("span", { class: `m-${name}` });
        part.style.flexGrow = String(bytes / total);
        return part;
      }));
    const legend = h("ul", { class: "legend" }, parts.map(([name, text, bytes]) =>
      h("li", {}, h("span", { class: `swatch m-${name}` }), h("span", {}, text), h("strong", {}, gib(bytes)))));
    this.memoryBody.replaceChildren(bar, legend, h("p", { class: "help" }, `${gib(total)} in all, as planned before the model was loaded; the cache is as it is now.`));
  }
}

function described(now, running, waiting) {
  if (now.sum("engine_up") === 0) return "The engine is being started again; requests wait for it.";
  const restarts = now.sum("engine_restarts_total");
  const after = restarts ? ` It was restarted ${short(restarts)} ${restarts === 1 ? "time" : "times"}.` : "";
  if (!running && !waiting) return `The engine is idle.${after}`;
  return `The engine works on ${short(running)} ${running === 1 ? "request" : "requests"}${waiting ? `, and ${short(waiting)} wait` : ""}.${after}`;
}

const short = (value) => (value >= 100 ? Math.round(value) : Math.round(value * 10) / 10).toLocaleString();
const percent = (share) => `${(100 * share).toFixed(share && share < 0.1 ? 1 : 0)}%`;
const duration = (seconds) => (seconds < 0.0995 ? `${(1000 * seconds).toFixed(1)} ms` : seconds < 0.9995 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`);
const gib = (bytes) => (bytes >= 0.9995 * 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${(bytes / 2 ** 20).toFixed(bytes && bytes < 2 ** 20 ? 1 : 0)} MiB`);
