// Builds elements. Text becomes text nodes only: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children. `on…` are listeners, `class` and others attributes, null is left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const byId = (id) => document.getElementById(id);

const ICONS = {
  copy: ["M9 9h10v12H9z", "M5 15V3h10"],
  edit: ["M4 20h4L19 9l-4-4L4 16z", "M13 7l4 4"],
  again: ["M20 11a8 8 0 1 0-2.3 6.3", "M20 4v7h-7"],
  auto: ["M12 3a9 9 0 1 0 0 18z", "M12 3a9 9 0 0 1 0 18"],
  light: ["M12 8a4 4 0 1 0 .01 0", "M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5"],
  dark: ["M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z"],
};

/** A line icon, which screen readers skip. */
export function icon(name) {
  const lines = ICONS[name].map((d) => svg("path", { d }));
  return svg("svg", { class: `icon i-${name}`, viewBox: "0 0 24 24", "aria-hidden": "true" }, lines);
}

/** A button with an icon and a name. */
export function iconButton(name, label, onclick) {
  return h("button", { type: "button", class: "quiet", title: label, "aria-label": label, onclick }, icon(name));
}

/** Tells screen readers. */
export function tell(text) {
  byId("announcer").textContent = text;
}

/** Tells screen readers, and shows for a moment, that something was done. */
export function announce(text) {
  tell(text);
  const place = byId("announcer");
  place.classList.add("shown");
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => place.classList.remove("shown"), 2500);
}

/** Copies a text; pages without TLS on another machine have no clipboard API. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  announce("Copied");
}

const formOf = (value) => (Array.isArray(value) ? "list" : value === null ? "nothing" : typeof value);

/** What the browser stores under a name; `fallback` where it stores nothing, another form of value, or forbids it.
 * `storage` is a name, as where it is forbidden, to look for it is an error. */
export function stored(storage, name, fallback) {
  try {
    const found = JSON.parse(globalThis[storage].getItem(`llmk.${name}`));
    return formOf(found) === formOf(fallback) ? found : fallback;
  } catch {
    return fallback;
  }
}

export function store(storage, name, value) {
  try {
    if (value === null) globalThis[storage].removeItem(`llmk.${name}`);
    else globalThis[storage].setItem(`llmk.${name}`, JSON.stringify(value));
  } catch {
    // Full, or forbidden: the page works without.
  }
}
