"""A page of five files, and ways to get one wrong: the fields of the spec, or the files, that are others."""

from __future__ import annotations

from defects import Defect

INDEX = """<!doctype html>
<html lang="en"><head><title>A page</title>
<link rel="stylesheet" href="pages/pages.page/style.css">
<script type="module" src="pages/pages.page/app.js"></script>
</head><body><a href="https://elsewhere.example">a link</a>
<form id="form"><textarea id="text"></textarea><input id="key" type="password"></form>
<button id="stop" disabled>Stop</button>
<p id="count"></p><p id="error"></p><p id="answer"></p><p id="state"></p>
</body></html>
"""
APP = """import { ask, b } from "./b.js";
import { kept, run } from "./c.js";
const at = "https://elsewhere.example";
const byId = (id) => document.getElementById(id);
let last = 0;
let timer = 0;
b(at);
async function update() {
  const mine = ++last;
  try {
    const { count, token_strs: parts } = await ask("tokenize", byId("text").value, byId("key").value);
    if (mine === last) {
      byId("count").textContent = `${count} tokens: ${parts.join(" ")}`;
      byId("error").textContent = "";
    }
  } catch (error) {
    if (mine === last) byId("error").textContent = error.message;
  }
}
byId("text").value = kept("text");
byId("form").addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(update, 200);
});
byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  run(byId);
});
"""
B = """export const b = (text) => document.body.append(text);
export async function ask(path, prompt, key) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  const body = JSON.stringify({ prompt, return_token_strs: true });
  const response = await fetch(path, { method: "POST", headers, body });
  if (!response.ok) throw new Error(`${response.status}`);
  let text = "";
  const decoder = new TextDecoder();
  for await (const bytes of response.body) text += decoder.decode(bytes, { stream: true });
  return JSON.parse(text);
}
"""
C = """export function kept(name, value) {
  try {
    if (value !== undefined) sessionStorage.setItem(name, value);
    return sessionStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}
let asked = 0;
let running = null;
export async function run(byId) {
  running?.abort();
  const mine = ++asked;
  const [stop, answer, state] = ["stop", "answer", "state"].map(byId);
  const own = (running = new AbortController());
  stop.disabled = false;
  stop.onclick = () => {
    asked += 1;
    running.abort();
    stop.disabled = true;
  };
  answer.replaceChildren();
  state.textContent = "";
  kept("text", byId("text").value);
  try {
    for await (const event of events(byId("text").value, byId("key").value, own.signal)) {
      if (event.error) throw new Error(event.error.message);
      if (mine === asked) answer.append(...event.choices.map(shown));
    }
  } catch (error) {
    if (mine === asked) state.textContent = error.message;
  }
  if (mine === asked) stop.disabled = true;
}
function shown({ text, logprobs }) {
  const made = document.createElement("span");
  made.textContent = text;
  const sure = logprobs?.token_logprobs?.[0] ?? null;
  if (sure !== null) made.title = `${Math.exp(sure)}`;
  return made;
}
async function* events(prompt, key, signal) {
  const headers = { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const body = JSON.stringify({ prompt, stream: true, logprobs: 2 });
  const response = await fetch("v1/completions", { method: "POST", headers, body, signal });
  if (!response.ok || !response.body) throw new Error(`${response.status}`);
  let rest = "";
  const decoder = new TextDecoder();
  for await (const bytes of response.body) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\\n\\n");
    rest = lines.pop();
    for (const line of lines) if (line !== "data: [DONE]") yield JSON.parse(line.slice(6));
  }
}
"""
GOOD = {
    "index.html": INDEX,
    "app.js": APP,
    "b.js": B,
    "c.js": C,
    "style.css": "body { background: url(data:image/gif;base64,R0lGODlhAQABAAAAACw=); }\n",
}


def changed(name: str, old: str, new: str) -> dict[str, str]:
    """The good page with another text in one of its files."""
    assert GOOD[name].count(old) == 1, (name, old)
    return {name: GOOD[name].replace(old, new)}


DEFECTS = [
    Defect("no_slash", "its path does not start with a slash", {"path": "page"}, "its path is"),
    Defect("folder", "its path is a folder's", {"path": "/page/"}, "its path is"),
    Defect("files", "its path is that of files", {"path": "/pages/x"}, "its path is"),
    Defect("no_language", "it does not say its language", {"index.html": INDEX.replace(' lang="en"', "")}, "language"),
    Defect("no_title", "it has no title", {"index.html": INDEX.replace("A page", " ")}, "language and title"),
    Defect(
        "inline",
        "a script stands in the HTML",
        {"index.html": INDEX.replace("</head>", "<script>let a;</script></head>")},
        "no script or style",
    ),
    Defect(
        "handler",
        "a handler stands in the HTML",
        {"index.html": INDEX.replace("<body", "<body onload='a()'")},
        "stands in",
    ),
    Defect("style", "a style stands in the HTML", {"index.html": INDEX.replace("<a", "<a style='top:0'")}, "stands in"),
    Defect(
        "other_script",
        "a script comes from elsewhere",
        {"index.html": INDEX.replace("pages/pages.page/app.js", "https://a.example/app.js")},
        "from elsewhere",
    ),
    Defect(
        "other_host",
        "a style comes from another host",
        {"index.html": INDEX.replace("pages/pages.page/style.css", "//a.example/style.css")},
        "from elsewhere",
    ),
    Defect("other_module", "a module comes from elsewhere", {"b.js": 'import "https://a.example/c.js";'}, "elsewhere"),
    Defect(
        "other_font", "a font comes from elsewhere", {"style.css": "@import 'https://a.example/f.css';"}, "elsewhere"
    ),
    Defect("no_module", "a module is missing", {"app.js": 'import { b } from "./d.js";'}, "one of its files"),
    Defect(
        "root",
        "an address is absolute, which a proxy's path breaks",
        {"index.html": INDEX.replace("pages/pages.page/app.js", "/app.js")},
        "one of its files",
    ),
    Defect("parses", "a string becomes HTML", {"b.js": "export const b = (x) => { x.innerHTML = '<p>'; };"}, "HTML"),
    Defect(
        "timer", "a timer runs a string", {"b.js": "export const b = (x) => setTimeout('x()', 1);"}, "HTML or a script"
    ),
    Defect(
        "styled",
        "a script sets an attribute that holds a style",
        {"b.js": "export const b = (x) => x.setAttribute('style', 'top: 0');"},
        "HTML or a script",
    ),
    Defect(
        "asks",
        "a script requests an absolute address",
        {"b.js": "export const b = () => fetch('/metrics');"},
        "relative",
    ),
    Defect(
        "built",
        "a script builds an address of the host alone",
        {"b.js": "export const b = () => fetch(`${location.protocol}//${location.hostname}/metrics`);"},
        "relative",
    ),
    Defect(
        "slash",
        "a module of the page is imported by an absolute address",
        {"app.js": 'import { b } from "/pages/pages.page/b.js";\nb("");\n'},
        "relative",
    ),
    Defect(
        "leaves",
        "a link is absolute",
        {"index.html": INDEX.replace("https://elsewhere.example", "/v1/models")},
        "relative",
    ),
    Defect("classic", "what imports is no module", {"index.html": INDEX.replace('type="module" ', "")}, "are modules"),
    Defect(
        "not_exported",
        "a name is imported that there is not",
        {"b.js": "export const c = (text) => document.body.append(text);\n"},
        "is exported",
    ),
    Defect("runs", "a string becomes a script", {"b.js": "export const b = (x) => eval(x);"}, "HTML or a script"),
    Defect(
        "late",
        "an answer to an older text is shown over that to a newer one",
        changed("app.js", "if (mine === last) {", "{"),
        "a late answer",
    ),
    Defect(
        "late_error",
        "the error that answers an older text is shown over the answer to a newer one",
        changed("app.js", "if (mine === last) byId", "byId"),
        "a late answer",
    ),
    Defect("keyless", "requests lack the key", changed("b.js", "if (key) headers", "if (!key) headers"), "user's key"),
    Defect(
        "hides",
        "errors are not shown",
        changed("app.js", "= error.message", "= ''") | changed("c.js", "= error.message", "= ''"),
        "an error of the server",
    ),
    Defect(
        "answered",
        "an error is taken for an answer, which lacks what is shown",
        changed("b.js", "if (!response.ok) throw new Error(`${response.status}`);", "")
        | changed("c.js", "!response.ok || ", ""),
        "an error of the server",
    ),
    Defect(
        "catches",
        "an error of a request is caught by nothing",
        changed("app.js", "setTimeout(update, 200)", "setTimeout(() => ask('tokenize', ''), 200)"),
        "no answer of the server",
    ),
    Defect("ids", "an element is not there", changed("index.html", 'id="count"', 'id="counts"'), "its scripts run"),
    Defect("sends", "the browser sends the form", changed("app.js", "event.preventDefault()", "event"), "send no form"),
    Defect(
        "hollow", "a field that there isn't is shown", changed("app.js", "{ count,", "{ size: count,"), "values that"
    ),
    Defect(
        "parses_stored",
        "what is stored is trusted",
        changed("app.js", 'kept("text")', 'JSON.parse(kept("text") || "null")'),
        "what is stored",
    ),
    Defect(
        "form_stored",
        "what is stored may have another form than the page gave it",
        changed("app.js", 'kept("text")', '(kept("text") || "a").match(/^[^{]/)[0]'),
        "what is stored",
    ),
    Defect(
        "unstored",
        "where storing fails, an error is caught by nothing",
        changed(
            "c.js",
            "try {\n    if (value !== undefined) sessionStorage",
            "if (value) sessionStorage.setItem(name, value);\n  try {\n    if (0) sessionStorage",
        ),
        "nothing can be stored",
    ),
    Defect(
        "forbidden",
        "where storage is forbidden, nothing is sent",
        changed("c.js", 'kept("text", byId("text").value);', 'if (kept("text", byId("text").value) === "") return;'),
        "nothing can be stored",
    ),
    Defect(
        "event_of_error",
        "an error that is an event of the stream is dropped",
        changed("c.js", "throw new Error(event.error.message)", "break"),
        "breaks off",
    ),
    Defect(
        "lost",
        "an answer whose connection is lost is shown as a whole one",
        changed(
            "c.js",
            "if (mine === asked) state.textContent = error.message",
            'if (error.message !== "network error") state.textContent = error.message',
        ),
        "breaks off",
    ),
    Defect(
        "certain",
        "a token that is certain is shown as one whose probability is not known",
        changed("c.js", "if (sure !== null)", "if (sure)"),
        "probabilities",
    ),
    Defect(
        "most_likely",
        "a token's probability is looked up among the most likely ones",
        changed("c.js", "logprobs?.token_logprobs?.[0] ?? null", "logprobs?.top_logprobs?.[0]?.[text] ?? null"),
        "probabilities",
    ),
    Defect(
        "no_stop",
        "the button that stops can't be pressed",
        changed("c.js", "stop.disabled = false", "stop.disabled = true"),
        "a button that stops",
    ),
    Defect(
        "stops_once",
        "the end of an answer that a newer one replaced disables the button that stops",
        changed("c.js", "if (mine === asked) stop.disabled = true", "stop.disabled = true"),
        "a button that stops",
    ),
    Defect(
        "goes_on",
        "the button that stops hides the answer, which goes on",
        changed("c.js", "    running.abort();\n", ""),
        "a button that stops",
    ),
    Defect(
        "pieces",
        "characters are cut",
        changed("b.js", "decoder.decode(bytes, { stream: true })", "new TextDecoder().decode(bytes)"),
        "small pieces",
    ),
    Defect(
        "floods",
        "a request that fails is sent again at once",
        changed(
            "app.js",
            'byId("form").addEventListener("submit"',
            'setInterval(update, 50);\nbyId("form").addEventListener("submit"',
        ),
        "without a pause",
    ),
    Defect(
        "leaves_proxy",
        "an address is built that lacks a proxy's path",
        changed("app.js", 'ask("tokenize"', "ask(new URL(['', 'tokenize'].join('/'), document.baseURI)"),
        "proxy's path",
    ),
]
