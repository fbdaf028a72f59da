// Markdown to elements. What a model writes is hostile until shown otherwise: it becomes text nodes and a fixed set of
// elements, links lead to http, https and mailto only, images are links, HTML is text, and every step is linear in the
// length of the text.

import { copy, h } from "./dom.js";
import { highlighted } from "./highlight.js";

const DEEPEST = 8;
const LONGEST_INLINE = 20_000;
// No expression below can match a text in more than one way: such ones take quadratic time and longer.
const FENCE = /^ {0,3}(?:`{3,}(?=[^`]*$)|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^:?-+:?$/;
const ESCAPABLE = "\\`*_{}[]()#+-.!|~<>";

/** Shows `text` in `place`. Elements of blocks that have not changed stay, so that a growing text is cheap to show. */
export function render(place, text) {
  const blocks = parse(text.replace(/\r\n?/g, "\n").split("\n"), 0);
  const shown = place.shownBlocks ?? [];
  let same = 0;
  while (same < blocks.length && same < shown.length && blocks[same].raw === shown[same].raw) same += 1;
  while (place.childNodes.length > same) place.lastChild.remove();
  for (const block of blocks.slice(same)) place.append(element(block, 0));
  place.shownBlocks = blocks;
}

/** Blocks of lines: `{kind, raw, …}`. */
function parse(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const start = at;
    const read = FENCE.test(lines[at]) ? readCode
      : HEADING.test(lines[at]) ? readHeading
      : RULE.test(lines[at]) ? readRule
      : QUOTE.test(lines[at]) && depth < DEEPEST ? readQuote
      : ITEM.test(lines[at]) && depth < DEEPEST ? readList
      : isTable(lines, at) ? readTable
      : readParagraph;
    const [block, next] = read(lines, at, depth);
    at = next;
    blocks.push({ ...block, raw: lines.slice(start, at).join("\n") });
  }
  return blocks;
}

function readCode(lines, at) {
  const fence = lines[at].match(FENCE)[0].trimStart();
  const language = lines[at].trimStart().slice(fence.length).trim().split(/\s/, 1)[0];
  const indent = lines[at].match(/^ */)[0].length;
  let end = at + 1;
  const closes = (line) => line.trim().length >= fence.length && line.trim() === fence[0].repeat(line.trim().length);
  while (end < lines.length && !closes(lines[end])) end += 1;
  const inner = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, line.match(/^ */)[0].length)));
  return [{ kind: "code", language, text: inner.join("\n") }, Math.min(end + 1, lines.length)];
}

function readHeading(lines, at) {
  const level = lines[at].match(HEADING)[1].length;
  const text = lines[at].trim().slice(level).trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  const closed = end === 0 || /\s/.test(text[end - 1]);
  return [{ kind: "heading", level, text: closed ? text.slice(0, end).trim() : text }, at + 1];
}

const readRule = (lines, at) => [{ kind: "rule" }, at + 1];

function readQuote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ kind: "quote", blocks: parse(inner, depth + 1) }, end];
}

function readList(lines, at, depth) {
  const ordered = /\d/.test(lines[at].match(ITEM)[2]);
  const start = ordered ? parseInt(lines[at].match(ITEM)[2], 10) : 1;
  const items = [];
  let own = [];
  let width = 0;
  let end = at;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const item = line.match(ITEM);
    const indent = line.match(/^ */)[0].length;
    if (items.length && line.trim() && indent >= Math.min(width, 2 + (ordered ? 1 : 0)) && (indent >= width || !item)) {
      own.push(line.slice(Math.min(indent, width)));
    } else if (item && !RULE.test(line) && /\d/.test(item[2]) === ordered) {
      width = item[1].length + item[2].length + Math.min(item[3].length || 1, 4);
      items.push((own = [item[4]]));
    } else if (!line.trim()) {
      const next = lines[end + 1] ?? "";
      if (!next.trim() || !(next.startsWith("  ") || ITEM.test(next))) break;
      own.push("");
    } else if (own.at(-1) && !startsBlock(lines, end)) {
      own.push(line);
    } else break;
  }
  return [{ kind: "list", ordered, start, items: items.map((each) => parse(each, depth + 1)) }, end];
}

function isTable(lines, at) {
  return at + 1 < lines.length && lines[at].includes("|") && isDivider(lines[at + 1]);
}

const isDivider = (line) => line.includes("|") && line.includes("-") && cells(line).every((cell) => DIVIDER.test(cell));

function readTable(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  const sides = cells(lines[at + 1]).map((cell) =>
    cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left");
  return [{ kind: "table", head: cells(lines[at]), sides, rows: lines.slice(at + 2, end).map(cells) }, end];
}

/** The cells of a row: `|` parts them, except after a backslash and inside code. */
function cells(line) {
  const found = [""];
  let ticks = false;
  const text = line.trim().replace(/^\|/, "");
  for (let i = 0; i < text.length; i += 1) {
    if (text[i] === "\\" && text[i + 1] === "|") found[found.length - 1] += text[(i += 1)];
    else if (text[i] === "|" && !ticks) found.push("");
    else {
      if (text[i] === "`") ticks = !ticks;
      found[found.length - 1] += text[i];
    }
  }
  if (found.length > 1 && !found.at(-1).trim()) found.pop();
  return found.map((cell) => cell.trim());
}

function startsBlock(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function readParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines, end) && !isTable(lines, end)) end += 1;
  return [{ kind: "paragraph", text: lines.slice(at, end).map((line) => line.trimStart()).join("\n") }, end];
}

function element(block) {
  switch (block.kind) {
    case "code": return codeBlock(block);
    case "heading": return h(`h${Math.min(block.level + 2, 6)}`, {}, inline(block.text));
    case "rule": return h("hr");
    case "quote": return h("blockquote", {}, block.blocks.map(element));
    case "list": return list(block);
    case "table": return table(block);
    default: return h("p", {}, inline(block.text));
  }
}

function codeBlock({ language, text }) {
  const button = h("button", { type: "button", class: "quiet small", onclick: () => copy(text) }, "Copy");
  const code = h("pre", { tabindex: "0", "aria-label": "Code" }, h("code", {}, highlighted(text, language.toLowerCase())));
  return h("div", { class: "code" }, h("div", { class: "code-head" }, h("span", {}, language || "code"), button), code);
}

function list({ ordered, start, items }) {
  const shown = items.map((blocks) => {
    const task = blocks[0]?.kind === "paragraph" && blocks[0].text.match(/^\[([ xX])\] /);
    const mark = task && h("span", { class: "task", role: "img", "aria-label": task[1] === " " ? "open" : "done" }, task[1] === " " ? "☐ " : "☑ ");
    return h("li", { class: task ? "with-task" : null }, mark, blocks.map((block, i) =>
      i === 0 && block.kind === "paragraph" ? h("span", {}, inline(task ? block.text.slice(4) : block.text)) : element(block)));
  });
  return ordered ? h("ol", { start }, shown) : h("ul", {}, shown);
}

function table({ head, sides, rows }) {
  const cell = (tag, text, i) => h(tag, { class: sides[i] && sides[i] !== "left" ? `to-${sides[i]}` : null, scope: tag === "th" ? "col" : null }, inline(text ?? ""));
  const header = h("thead", {}, h("tr", {}, head.map((text, i) => cell("th", text, i))));
  const body = h("tbody", {}, rows.map((row) => h("tr", {}, head.map((_, i) => cell("td", row[i], i)))));
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, h("table", {}, header, body));
}

/** Nodes of the text inside a block. */
export function inline(text, depth = 0) {
  if (text.length > LONGEST_INLINE || depth > DEEPEST) return [text];
  return new Inline(text, depth).nodes();
}

class Inline {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.plain = "";
    this.found = [];
    this.known = new Map();
    this.unclosed = new Set();
  }

  nodes() {
    let at = 0;
    while (at < this.text.length) at = this.step(at);
    this.flush();
    return this.found;
  }

  step(at) {
    const character = this.text[at];
    if (character === "\\" && ESCAPABLE.includes(this.text[at + 1] || " ")) return this.add(this.text[at + 1], at + 2);
    if (character === "\\" && this.text[at + 1] === "\n") return this.node(h("br"), at + 2);
    if (character === "\n") return this.lineEnd(at);
    const special = { "`": this.code, "*": this.strong, "_": this.strong, "~": this.struck, "[": this.link, "!": this.image, "<": this.angle, h: this.bare }[character];
    return (special && special.call(this, at)) || this.add(character, at + 1);
  }

  add(text, next) {
    this.plain += text;
    return next;
  }

  node(node, next) {
    this.flush();
    this.found.push(node);
    return next;
  }

  flush() {
    if (this.plain) this.found.push(this.plain);
    this.plain = "";
  }

  /** Where `mark` is next. What was found is kept, so that the text is not searched to its end again and again. */
  find(mark, from) {
    const known = this.known.get(mark);
    if (known && known.from <= from && from <= known.at) return known.at < Infinity ? known.at : -1;
    const at = this.text.indexOf(mark, from);
    this.known.set(mark, { from, at: at < 0 ? Infinity : at });
    return at;
  }

  /** The first `fence` that closes. Whether one does depends on what is around it alone, so if none does now, none
   * will for later openers. */
  closer(fence, from, closes) {
    if (this.unclosed.has(fence)) return -1;
    let end = this.find(fence, from);
    while (end >= 0 && !closes(end)) {
      while (this.text[end] === fence[0]) end += 1;
      end = this.find(fence, end);
    }
    if (end < 0) this.unclosed.add(fence);
    return end;
  }

  lineEnd(at) {
    const hard = this.plain.endsWith("  ");
    this.plain = this.plain.trimEnd();
    return hard ? this.node(h("br"), at + 1) : this.add("\n", at + 1);
  }

  code(at) {
    let marks = 1;
    while (this.text[at + marks] === "`") marks += 1;
    const fence = "`".repeat(marks);
    const end = this.closer(fence, at + marks, (found) => this.text[found + marks] !== "`");
    if (end < 0) return this.add(fence, at + marks);
    const inner = this.text.slice(at + marks, end).replace(/\n/g, " ");
    const shown = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() ? inner.slice(1, -1) : inner;
    return this.node(h("code", {}, shown), end + marks);
  }

  strong(at) {
    const mark = this.text[at];
    const length = this.text[at + 1] === mark ? 2 : 1;
    const fence = mark.repeat(length);
    const after = this.text[at + length];
    if (!after || /\s/.test(after) || after === mark) return 0;
    if (mark === "_" && /\w/.test(this.text[at - 1] || " ")) return 0;
    const end = this.closer(fence, at + length, (found) => this.canClose(found, fence));
    if (end < 0) return this.add(fence, at + length);
    return this.node(h(length === 2 ? "strong" : "em", {}, inline(this.text.slice(at + length, end), this.depth + 1)), end + length);
  }

  canClose(at, fence) {
    const before = this.text[at - 1] || " ";
    const after = this.text[at + fence.length] || " ";
    if (/\s/.test(before) || before === "\\") return false;
    if (fence.length === 1 && (after === fence || before === fence)) return false;
    return fence[0] !== "_" || !/\w/.test(after);
  }

  struck(at) {
    if (this.text[at + 1] !== "~") return 0;
    const end = this.find("~~", at + 2);
    if (end <= at + 2) return 0;
    return this.node(h("del", {}, inline(this.text.slice(at + 2, end), this.depth + 1)), end + 2);
  }

  link(at) {
    const middle = this.find("](", at + 1);
    if (middle < 0) return 0;
    if (this.text.lastIndexOf("[", middle) !== at) return 0;
    const label = this.text.slice(at + 1, middle);
    const end = this.targetEnd(middle + 2);
    if (end < 0) return 0;
    const target = this.text.slice(middle + 2, end).trim().replace(/\s+(["'(]).*$/s, "").replace(/^<(.*)>$/s, "$1");
    return this.node(anchor(target, inline(label || target, this.depth + 1)), end + 1);
  }

  /** The end of a link's target: its closing parenthesis, as it may have pairs of its own. */
  targetEnd(from) {
    let open = 0;
    for (let i = from; i < Math.min(this.text.length, from + 2000); i += 1) {
      if (this.text[i] === "\n") return -1;
      if (this.text[i] === "(") open += 1;
      if (this.text[i] === ")" && (open -= 1) < 0) return i;
    }
    return -1;
  }

  /** An image is a link to it: loading it would tell its server that it was shown. */
  image(at) {
    return this.text[at + 1] === "[" ? this.link(at + 1) : 0;
  }

  angle(at) {
    const found = this.text.slice(at, at + 2000).match(/^<((?:https?:\/\/|mailto:)[^\s<>]+)>/);
    if (found) return this.node(anchor(found[1], [found[1]]), at + found[0].length);
    const broken = this.text.slice(at, at + 6).match(/^<br ?\/?>/i);
    return broken ? this.node(h("br"), at + broken[0].length) : 0;
  }

  bare(at) {
    if (/\w/.test(this.text[at - 1] || " ")) return 0;
    const found = this.text.slice(at, at + 2000).match(/^https?:\/\/[^\s<>"'`|]+/);
    if (!found) return 0;
    let url = found[0].replace(/[.,;:!?*_~]+$/, "");
    if (url.endsWith(")") && !url.includes("(")) url = url.slice(0, -1);
    return this.node(anchor(url, [url]), at + url.length);
  }
}

function anchor(target, children) {
  const url = safe(target);
  if (!url) return h("span", { title: "a link that is not followed" }, children);
  return h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow", title: url }, children);
}

/** The address, if following it is harmless. */
function safe(target) {
  try {
    const url = new URL(target);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : "";
  } catch {
    return "";
  }
}
