// Opens a page as a browser would, uses it, and prints what came of it as JSON. The argument is a scenario's file.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { runInThisContext } from "node:vm";
import { Element, Fragment, Node, Target, Text, grown, lacking, looks, seen, usable } from "./dom.mjs";
import { answer } from "./server.mjs";

const way = JSON.parse(readFileSync(process.argv[2]));
const out = { errors: [], requests: [], submitted: [], lacking: [], seen: {}, stored: {}, stops: [] };
const fail = (error) => out.errors.push(error?.stack?.split("\n").slice(0, 3).join(" ") ?? String(error));
process.on("uncaughtException", fail);
process.on("unhandledRejection", (reason) => fail(reason));

// Time goes on when nothing else does.
const real = { setImmediate, setTimeout };
let now = 0, timers = [], numbers = 0;
const add = (run, ms, every, rest) => { timers.push({ id: ++numbers, at: now + Math.max(ms || 0, 0), run, rest, every }); return numbers; };
const drop = (id) => { timers = timers.filter((each) => each.id !== id); };
const settled = async () => { for (let i = 0; i < 12; i++) await new Promise((done) => real.setImmediate(done)); };
async function pass(ms) {
  const end = now + ms;
  for (let i = 0; i < 500; i++) {
    await settled();
    const next = timers.filter((each) => each.at <= end).sort((a, b) => a.at - b.at || a.id - b.id)[0];
    if (!next) break;
    now = Math.max(now, next.at);
    if (next.every) next.at = now + Math.max(next.every, 1); else drop(next.id);
    try { next.run(...next.rest); } catch (error) { fail(error); }
  }
  now = end;
  await settled();
}

// The document, and what else is global in a browser.
const html = grown(way.html);
const document = new Node();
document.append(html);
const byTag = (name) => document.querySelector(name) ?? new Element(name);
Object.assign(document, { documentElement: html, body: byTag("body"), head: byTag("head"), readyState: "interactive", visibilityState: "visible", hidden: false, baseURI: way.base, URL: way.base, cookie: "", activeElement: null, title: byTag("title").textContent });
Object.assign(document, {
  getElementById: (id) => document.querySelector(`[id="${id}"]`),
  createElement: (tag) => new Element(tag), createElementNS: (_, tag) => new Element(tag),
  createTextNode: (text) => new Text(String(text)), createDocumentFragment: () => new Fragment(),
  createComment: () => new Text(""), execCommand: () => true, hasFocus: () => true, getSelection: () => null,
});
const storage = () => {
  const kept = new Map();
  const found = (name) => (typeof way.stored === "string" ? way.stored : way.stored?.[name]);
  const put = (name, value) => {
    if (way.storage === "full") throw new DOMException("the quota has been exceeded", "QuotaExceededError");
    kept.set(name, (out.stored[name] = String(value)));
  };
  return { getItem: (name) => kept.get(name) ?? found(name) ?? null, setItem: put, removeItem: (name) => kept.delete(name), clear: () => kept.clear(), key: () => null, length: 0 };
};
class Observer { observe() {} unobserve() {} disconnect() {} takeRecords() { return []; } }
const media = () => Object.assign(new Target(), { matches: false, addListener() {}, removeListener() {} });
const base = new URL(way.base);
const location = { href: base.href, origin: base.origin, host: base.host, hostname: base.hostname, port: base.port, protocol: base.protocol, pathname: base.pathname, search: "", hash: "", reload() {}, assign() {}, replace() {}, toString: () => base.href };
const windowTarget = new Target();
const globals = {
  document, location, windowTarget, window: globalThis, self: globalThis, Node, Element, Text, HTMLElement: Element, DocumentFragment: Fragment, SVGElement: Element,
  localStorage: storage(), sessionStorage: storage(), history: { pushState() {}, replaceState() {}, back() {} },
  navigator: { clipboard: { writeText: async () => {} }, language: "en", languages: ["en"], userAgent: "llmk", onLine: true },
  addEventListener: (...given) => windowTarget.addEventListener(...given), removeEventListener: (...given) => windowTarget.removeEventListener(...given), dispatchEvent: (event) => windowTarget.dispatchEvent(event),
  setTimeout: (run, ms, ...rest) => add(run, ms, 0, rest), setInterval: (run, ms, ...rest) => add(run, ms, ms || 1, rest), clearTimeout: drop, clearInterval: drop,
  requestAnimationFrame: (run) => add(() => run(now), 16, 0, []), cancelAnimationFrame: drop, requestIdleCallback: (run) => add(() => run({ timeRemaining: () => 9 }), 1, 0, []),
  matchMedia: media, getComputedStyle: () => new Proxy({}, { get: (_, name) => (name === "getPropertyValue" ? () => "" : "") }), getSelection: () => null,
  ResizeObserver: Observer, IntersectionObserver: Observer, MutationObserver: Observer, PerformanceObserver: Observer,
  innerWidth: 1000, innerHeight: 800, devicePixelRatio: 1, scrollTo() {}, scrollBy() {}, confirm: () => true, alert() {}, prompt: () => way.key ?? null, open: () => null, isSecureContext: true,
  CSS: { escape: (text) => text, supports: () => true },
};
for (const [name, value] of Object.entries(globals)) Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
if (way.storage === "closed") for (const name of ["localStorage", "sessionStorage"]) Object.defineProperty(globalThis, name, { get() { throw new DOMException("the user forbids it", "SecurityError"); } });
const STARTED = 1780000000000;
globalThis.Date = class extends Date {
  constructor(...given) { super(...(given.length ? given : [STARTED + now])); }
  static now() { return STARTED + now; }
};
performance.now = () => now;
for (const name of ["Input", "Keyboard", "Mouse", "Pointer", "Focus", "UI"]) globalThis[`${name}Event`] ??= class extends Event { constructor(type, init = {}) { super(type, init); for (const key of ["key", "inputType"]) if (key in init) this[key] = init[key]; } };

// Requests: those with `way.held` in them, and not the newest turn, are answered when they are let go: not at all until
// then, or half. Where answers are stopped, those to each turn.
let holding = true;
const late = (said) => holding && (way.stops ? way.turns.some((turn) => said.includes(turn)) : way.held && said.includes(way.held) && !said.includes(way.turns.at(-1)));
const held = [];
globalThis.fetch = async (address, options = {}) => {
  const url = new URL(address instanceof URL ? address.href : address?.url ?? String(address), way.base);
  const headers = Object.fromEntries(new Headers(options.headers ?? address?.headers ?? {}));
  const body = typeof options.body === "string" ? options.body : "";
  let given = body;
  try { given = JSON.parse(body); } catch { given = null; }
  const { signal } = options;
  const path = url.href.startsWith(way.root) ? url.pathname.slice(new URL(way.root).pathname.length) : "";
  out.requests.push({ url: url.href, path, body, headers, at: now });
  const aborted = new Promise((_, reject) => {
    const stop = () => reject(signal.reason ?? new DOMException("aborted", "AbortError"));
    if (signal?.aborted) stop(); else signal?.addEventListener("abort", stop);
  });
  aborted.catch(() => {});
  const waits = late(body + url.search + (headers.authorization ?? ""));
  const wait = () => Promise.race([aborted, new Promise((go) => held.push({ go, signal }))]);
  if (waits && !way.half) await wait();
  await Promise.race([aborted, new Promise((done) => real.setImmediate(done))]);
  const found = answer(waits && way.refused ? { ...way, answers: "error" } : way, path, given, headers);
  if (found === null) throw new TypeError("Failed to fetch");
  const [status, type, text] = found;
  const bytes = new TextEncoder().encode(text);
  const size = way.pieces || (waits && way.half && Math.ceil(bytes.length / 2)) || bytes.length || 1;
  let at = 0;
  async function pull(control) {
    try { if (waits && way.half && at) await wait(); } catch (error) { control.error(error); return; }
    if (signal?.aborted) control.error(signal.reason);
    else if (at >= bytes.length && way.ends === "lost" && type === "text/event-stream") control.error(new TypeError("network error"));
    else if (at >= bytes.length) control.close();
    else control.enqueue(bytes.slice(at, (at += size)));
  }
  const stream = new ReadableStream({ pull }, { highWaterMark: 0 });
  const made = new Response(stream, { status, statusText: status === 200 ? "OK" : "Refused", headers: { "content-type": type } });
  Object.defineProperty(made, "url", { value: url.href });
  return made;
};
globalThis.EventSource = globalThis.WebSocket = class extends Target { constructor(address) { super(); out.requests.push({ url: new URL(address, way.base).href, path: "", body: "", headers: {}, at: now }); } close() {} send() {} };

async function load() {
  for (const script of document.querySelectorAll("script")) {
    const file = script.src.slice(script.src.lastIndexOf("/") + 1);
    if (script.getAttribute("type") === "module") continue;
    try { runInThisContext(readFileSync(`${way.folder}/${file}`, "utf8"), file); } catch (error) { fail(error); }
  }
  for (const script of document.querySelectorAll('script[type="module"]')) {
    const file = script.src.slice(script.src.lastIndexOf("/") + 1);
    try { await import(pathToFileURL(`${way.folder}/${file}`)); } catch (error) { fail(error); }
  }
  for (const [target, kind] of [[document, "DOMContentLoaded"], [windowTarget, "load"]]) {
    document.readyState = "complete";
    try { target.dispatchEvent(new Event(kind)); } catch (error) { fail(error); }
  }
  await pass(3000);
}

const fire = (element, kind) => { try { return element.dispatchEvent(new Event(kind, { bubbles: true, cancelable: true })); } catch (error) { fail(error); return true; } };
const fields = (kinds) => document.querySelectorAll("input, textarea").filter((each) => !each.disabled && kinds.includes(each.localName === "textarea" ? "textarea" : each.type || "text"));
const barred = (form) => form.querySelectorAll("button, input").find((each) => (each.getAttribute("type") ?? (each.localName === "button" ? "submit" : "")) === "submit")?.disabled;
const submit = (form) => { if (form && !barred(form) && fire(form, "submit") && form.getAttribute("method") !== "dialog") out.submitted.push(form.id || "a form"); };

const TYPED = ["textarea", "text", "search"];

function write(element, text) {
  element.value = text;
  for (const kind of ["input", "change"]) fire(element, kind);
}

async function giveKey(key) {
  out.keyed = out.requests.length;
  for (const element of fields(["password"])) {
    const within = element.closest("dialog");
    if (within && !within.open) continue;
    write(element, key);
    const dialog = element.closest("dialog");
    if (dialog?.open) dialog.close(dialog.querySelectorAll("button").map((each) => each.getAttribute("value")).filter(Boolean).at(-1) ?? "");
    else if (!fields(TYPED).some((each) => each.form === element.form)) submit(element.form);
  }
  await pass(6000);
}

async function use(text, submits) {
  for (const element of fields(TYPED)) {
    if (element.closest("[hidden]")) continue;
    write(element, text);
    if (submits) submit(element.form);
  }
  await pass(1500);
}

// Stops what goes on, by each button that says so.
async function stopAll() {
  for (const button of stopping()) if (usable(button)) fire(button, "click");
  await pass(1500);
  out.seen.stopped = seen(document.body);
  out.unstopped = held.filter(({ signal }) => !signal?.aborted).length;
}

const stopping = () => document.querySelectorAll("button").filter((each) => /\bstop\b/i.test([each.id, each.title, each.getAttribute("aria-label"), each.textContent].join(" ")));

async function main() {
  await load();
  out.seen.loaded = seen(document.body);
  if (way.key) await giveKey(way.key);
  if (way.text) await use(way.text, true);
  for (const turn of way.turns ?? []) {
    await (way.keys ? giveKey(turn) : use(turn, way.submits));
    out.stops.push(stopping().some(usable));
  }
  await pass(1500);
  out.seen.newest = seen(document.body);
  if (way.stops) await stopAll();
  holding = false;
  held.forEach(({ go }) => go());
  await pass(6000);
  out.seen.end = seen(document.body);
  out.seen.looks = looks(document.body);
  out.stopping = stopping().length;
  if (way.again) await use(way.again, true);
  out.held = held.length;
  out.lacking = [...lacking];
  process.stdout.write(JSON.stringify(out), () => process.exit(0));
}
main().catch((error) => { fail(error); process.stdout.write(JSON.stringify(out), () => process.exit(0)); });
