// As much of a browser's document as pages use, without layout. What it lacks is noted in `lacking`.

export const lacking = new Set();
const unknown = new Proxy({}, {
  has: () => false,
  get(_, name) {
    if (typeof name === "string" && !/^(then|toJSON|on.*)$/.test(name)) lacking.add(name);
    return undefined;
  },
});
const REFLECTED = ["id", "title", "lang", "type", "name", "href", "src", "placeholder", "htmlFor", "alt", "rel", "target", "role", "download"];
const FLAGS = ["hidden", "disabled", "required", "readOnly", "multiple", "open", "autofocus", "selected"];
const SILENT = ["focus", "blur", "select", "click", "scrollTo", "scrollIntoView", "scrollBy", "setSelectionRange", "setCustomValidity", "normalize", "animate", "setPointerCapture"];
const SIZES = ["scrollTop", "scrollHeight", "scrollLeft", "scrollWidth", "clientHeight", "clientWidth", "offsetHeight", "offsetWidth", "offsetTop", "selectionStart", "selectionEnd", "width", "height"];

export class Target {
  constructor() { this.listeners = {}; this.parentNode = null; }
  addEventListener(kind, listener, options) { (this.listeners[kind] ??= []).push([listener, options?.once]); }
  removeEventListener(kind, listener) { this.listeners[kind] = (this.listeners[kind] ?? []).filter(([each]) => each !== listener); }
  dispatchEvent(event) {
    if (!event.target) Object.defineProperty(event, "target", { value: this, configurable: true });
    Object.defineProperty(event, "currentTarget", { value: this, configurable: true });
    for (const pair of [...(this.listeners[event.type] ?? [])]) {
      if (pair[1]) this.removeEventListener(event.type, pair[0]);
      const { 0: run } = pair;
      if (typeof run === "function") run.call(this, event); else run?.handleEvent(event);
    }
    this[`on${event.type}`]?.call(this, event);
    if (event.bubbles && !event.cancelBubble) (this.parentNode ?? (this === globalThis.document ? globalThis.windowTarget : null))?.dispatchEvent(event);
    return !event.defaultPrevented;
  }
}
Object.setPrototypeOf(Target.prototype, unknown);

export class Node extends Target {
  constructor() { super(); this.childNodes = []; }
  get parentElement() { return this.parentNode instanceof Element ? this.parentNode : null; }
  get children() { return this.childNodes.filter((each) => each instanceof Element); }
  get firstChild() { return this.childNodes[0] ?? null; }
  get lastChild() { return this.childNodes.at(-1) ?? null; }
  get firstElementChild() { return this.children[0] ?? null; }
  get lastElementChild() { return this.children.at(-1) ?? null; }
  get childElementCount() { return this.children.length; }
  get nextSibling() { return this.parentNode?.childNodes[this.parentNode.childNodes.indexOf(this) + 1] ?? null; }
  get previousSibling() { return this.parentNode?.childNodes[this.parentNode.childNodes.indexOf(this) - 1] ?? null; }
  get nextElementSibling() { const all = this.parentNode?.children ?? []; return all[all.indexOf(this) + 1] ?? null; }
  get previousElementSibling() { const all = this.parentNode?.children ?? []; return all[all.indexOf(this) - 1] ?? null; }
  get isConnected() { return this === globalThis.document || !!this.parentNode?.isConnected; }
  get ownerDocument() { return globalThis.document; }
  get textContent() { return this.childNodes.map((each) => each.textContent).join(""); }
  set textContent(text) { this.replaceChildren(...(text === null || text === "" ? [] : [String(text)])); }
  get innerText() { return this.textContent; }
  set innerText(text) { this.textContent = text; }
  contains(other) { for (let each = other; each; each = each.parentNode) if (each === this) return true; return false; }
  hasChildNodes() { return this.childNodes.length > 0; }
  insertAt(at, nodes) {
    for (const given of nodes) {
      const all = given instanceof Fragment ? [...given.childNodes] : [given instanceof Node ? given : new Text(String(given))];
      for (const node of all) {
        const own = node.parentNode === this && this.childNodes.indexOf(node) < at;
        node.remove();
        if (own) at -= 1;
        this.childNodes.splice(at++, 0, node);
        node.parentNode = this;
      }
    }
  }
  append(...nodes) { this.insertAt(this.childNodes.length, nodes); }
  prepend(...nodes) { this.insertAt(0, nodes); }
  appendChild(node) { this.append(node); return node; }
  insertBefore(node, before) { this.insertAt(before ? this.childNodes.indexOf(before) : this.childNodes.length, [node]); return node; }
  removeChild(node) { node.remove(); return node; }
  replaceChild(node, old) { old.replaceWith(node); return old; }
  replaceChildren(...nodes) { for (const each of [...this.childNodes]) each.remove(); this.append(...nodes); }
  before(...nodes) { this.parentNode.insertAt(this.parentNode.childNodes.indexOf(this), nodes); }
  after(...nodes) { this.parentNode.insertAt(this.parentNode.childNodes.indexOf(this) + 1, nodes); }
  replaceWith(...nodes) { const { parentNode } = this; const at = parentNode.childNodes.indexOf(this); this.remove(); parentNode.insertAt(at, nodes); }
  remove() {
    if (!this.parentNode) return;
    this.parentNode.childNodes.splice(this.parentNode.childNodes.indexOf(this), 1);
    this.parentNode = null;
  }
  *all() { for (const each of this.children) { yield each; yield* each.all(); } }
  querySelectorAll(selector) { return [...this.all()].filter((each) => each.matches(selector)); }
  querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }
  getElementsByTagName(name) { return this.querySelectorAll(name); }
  getElementsByClassName(name) { return this.querySelectorAll(`.${name}`); }
  getRootNode() { return globalThis.document; }
}

export class Text extends Node {
  constructor(data) { super(); this.data = data; }
  get textContent() { return this.data; }
  set textContent(text) { this.data = String(text); }
  get nodeValue() { return this.data; }
  set nodeValue(text) { this.data = String(text); }
  appendData(text) { this.data += text; }
  get nodeType() { return 3; }
  cloneNode() { return new Text(this.data); }
}

export class Fragment extends Node { get nodeType() { return 11; } }

export class Element extends Node {
  constructor(tag) {
    super();
    this.localName = tag;
    this.tagName = tag.toUpperCase();
    this.attributes = new Map();
    this.style = new Proxy({}, { get: (own, name) => own[name] ?? (/^(set|remove|get)Property/.test(String(name)) ? () => "" : "") });
    this.dataset = new Proxy({}, {
      get: (_, name) => this.getAttribute(dashed(name)) ?? undefined,
      set: (_, name, value) => { this.setAttribute(dashed(name), value); return true; },
      deleteProperty: (_, name) => { this.removeAttribute(dashed(name)); return true; },
      has: (_, name) => this.attributes.has(dashed(name)),
    });
    const names = () => (this.getAttribute("class") ?? "").split(/\s+/).filter(Boolean);
    const put = (list) => this.setAttribute("class", [...new Set(list)].join(" "));
    this.classList = {
      add: (...more) => put([...names(), ...more]),
      remove: (...less) => put(names().filter((each) => !less.includes(each))),
      contains: (name) => names().includes(name),
      replace: (one, other) => put(names().map((each) => (each === one ? other : each))),
      toggle(name, on = !names().includes(name)) { if (on) this.add(name); else this.remove(name); return on; },
    };
    for (const name of SIZES) this[name] = 0;
    this.written = this.ticked = undefined;
    this.returnValue = "";
  }
  get nodeType() { return 1; }
  get nodeName() { return this.tagName; }
  get className() { return this.getAttribute("class") ?? ""; }
  set className(text) { this.setAttribute("class", text); }
  getAttribute(name) { return this.attributes.get(name) ?? null; }
  setAttribute(name, value) { this.attributes.set(name, String(value)); }
  setAttributeNS(_, name, value) { this.setAttribute(name, value); }
  removeAttribute(name) { this.attributes.delete(name); }
  hasAttribute(name) { return this.attributes.has(name); }
  toggleAttribute(name, on = !this.hasAttribute(name)) { if (on) this.setAttribute(name, ""); else this.removeAttribute(name); return on; }
  get value() {
    if (this.written !== undefined) return this.written;
    if (this.localName === "select") return (this.options.find((each) => each.selected) ?? this.options[0])?.value ?? "";
    return this.getAttribute("value") ?? (["textarea", "option"].includes(this.localName) ? this.textContent : "");
  }
  set value(text) { this.written = String(text); }
  get valueAsNumber() { return this.value === "" ? NaN : Number(this.value); }
  get checked() { return this.ticked ?? this.hasAttribute("checked"); }
  set checked(on) { this.ticked = !!on; }
  get options() { return this.querySelectorAll("option"); }
  get selectedIndex() { return Math.max(0, this.options.findIndex((each) => each.value === this.value)); }
  get form() { return this.closest("form"); }
  get elements() { return this.querySelectorAll("input, textarea, select, button"); }
  get tabIndex() { return Number(this.getAttribute("tabindex") ?? 0); }
  set tabIndex(value) { this.setAttribute("tabindex", value); }
  get content() { return this; }
  get labels() { return globalThis.document.querySelectorAll(`[for="${this.id}"]`); }
  matches(selector) { return selector.split(",").some((each) => fits(this, each.trim())); }
  closest(selector) { for (let each = this; each instanceof Element; each = each.parentNode) if (each.matches(selector)) return each; return null; }
  checkValidity() { return !this.required || this.value !== ""; }
  reportValidity() { return this.checkValidity(); }
  requestSubmit() { this.dispatchEvent(new Event("submit", { bubbles: true, cancelable: true })); }
  reset() { for (const each of this.elements) { each.written = undefined; each.ticked = undefined; } }
  showModal() { this.open = true; }
  show() { this.open = true; }
  close(value) { if (value !== undefined) this.returnValue = value; this.open = false; queueMicrotask(() => this.dispatchEvent(new Event("close"))); }
  getBoundingClientRect() { return { x: 0, y: 0, top: 0, left: 0, bottom: 0, right: 0, width: 0, height: 0 }; }
  getContext() { return new Proxy({}, { get: (own, name) => own[name] ?? (() => ({ width: 0, addColorStop() {} })), set: (own, name, value) => { own[name] = value; return true; } }); }
  cloneNode(deep) {
    const made = new Element(this.localName);
    for (const [name, value] of this.attributes) made.setAttribute(name, value);
    if (deep) made.append(...this.childNodes.map((each) => each.cloneNode(true)));
    return made;
  }
}
for (const name of REFLECTED) {
  const attribute = name === "htmlFor" ? "for" : name;
  Object.defineProperty(Element.prototype, name, {
    get() { return this.getAttribute(attribute) ?? ""; },
    set(value) { this.setAttribute(attribute, value); },
  });
}
for (const name of FLAGS) {
  Object.defineProperty(Element.prototype, name, {
    get() { return this.hasAttribute(name.toLowerCase()); },
    set(on) { this.toggleAttribute(name.toLowerCase(), !!on); },
  });
}
for (const name of SILENT) Element.prototype[name] = function () {};

const dashed = (name) => `data-${String(name).replace(/[A-Z]/g, (each) => `-${each.toLowerCase()}`)}`;

/** Whether an element fits a selector of names, ids, classes, attributes and ancestors. */
function fits(element, selector) {
  const parts = selector.replace(/\s*>\s*/g, " ").split(/\s+/);
  if (!simple(element, parts.pop())) return false;
  for (let each = element.parentNode; parts.length; each = each.parentNode) {
    if (!(each instanceof Element)) return false;
    if (simple(each, parts.at(-1))) parts.pop();
  }
  return true;
}

function simple(element, text) {
  const rest = text.replace(/([\w-]+|\*)?((?:#[\w-]+|\.[\w-]+|\[[^\]]+\])*)/, (_, tag, more) => {
    const found = (more ?? "").match(/#[\w-]+|\.[\w-]+|\[[^\]]+\]/g) ?? [];
    const right = (!tag || tag === "*" || element.localName === tag.toLowerCase()) && found.every((each) => {
      if (each[0] === "#") return element.id === each.slice(1);
      if (each[0] === ".") return element.classList.contains(each.slice(1));
      const [, name, , value] = /^\[([\w-]+)(?:[~|^$*]?=(["']?)(.*)\2)?\]$/.exec(each) ?? [];
      return value === undefined ? element.hasAttribute(name) : element.getAttribute(name) === value;
    });
    return right ? "" : "no";
  });
  if (rest && rest !== "no") lacking.add(`the selector ${text}`);
  return rest === "";
}

/** The element of a tree of [tag, attributes, children] and texts. */
export function grown(tree) {
  if (typeof tree === "string") return new Text(tree);
  const [tag, attributes, children] = tree;
  const made = new Element(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.map(grown));
  return made;
}

/** All that a document's elements have and say. */
export function looks(node) {
  if (node instanceof Text) return node.data;
  return [node.localName, ...[...node.attributes].map(([name, value]) => `${name}=${value}`), ...node.childNodes.map(looks)].join("\n");
}

/** Whether a user can press an element. */
export const usable = (element) => !element.disabled && !element.closest("[hidden]") && (element.closest("dialog")?.open ?? true);

/** What a user sees of a node. */
export function seen(node) {
  if (node instanceof Text) return node.data;
  if (node instanceof Element && (node.hidden || ["script", "style", "noscript", "head", "template"].includes(node.localName))) return "";
  if (node instanceof Element && node.localName === "dialog" && !node.open) return "";
  const inside = node.childNodes.map(seen).join(" ");
  return node instanceof Element && ["meter", "progress", "output"].includes(node.localName) ? `${inside} ${node.getAttribute("value") ?? ""}` : inside;
}
