// Colours code: comments, strings, numbers and words that most languages share. A guess that is right often enough.

import { h } from "./dom.js";

const WORDS = new Set(
  ("abstract and as assert async await bool break case catch char class const continue def default defer del delete do " +
    "double elif else end enum except export extends false False final finally float fn for foreach from func function " +
    "global go goto if impl import in int interface is lambda let long loop match mod module mut namespace new nil None " +
    "nonlocal not null operator or package pass private protected pub public raise return select self static str string " +
    "struct super switch template then this throw trait true True try type typeof union unsafe use using var virtual void " +
    "where while with yield SELECT FROM WHERE INSERT UPDATE DELETE CREATE TABLE JOIN ON AND OR NOT NULL ORDER GROUP BY " +
    "LIMIT echo fi done esac local").split(" "),
);
const HASH = new Set(["py", "python", "sh", "bash", "shell", "zsh", "rb", "ruby", "toml", "yaml", "yml", "r", "perl", "make"]);
const DASHES = new Set(["sql", "lua", "haskell", "hs", "ada"]);
const TOKEN = /\/\*[\s\S]*?\*\/|\/\/[^\n]*|#[^\n]*|--[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`|\b\d[\w.]*|[A-Za-z_$][\w$]*/g;
const LONGEST = 20_000;

/** Nodes that show `code`. */
export function highlighted(code, language) {
  if (code.length > LONGEST || ["text", "txt", "plain", "markdown", "md"].includes(language)) return [code];
  const nodes = [];
  let from = 0;
  for (const match of code.matchAll(TOKEN)) {
    const kind = kindOf(match[0], language);
    if (!kind) continue;
    nodes.push(code.slice(from, match.index), h("span", { class: kind }, match[0]));
    from = match.index + match[0].length;
  }
  nodes.push(code.slice(from));
  return nodes;
}

function kindOf(text, language) {
  if (text.startsWith("/*")) return "c-comment";
  if (text.startsWith("//")) return HASH.has(language) || DASHES.has(language) ? "" : "c-comment";
  if (text.startsWith("#")) return HASH.has(language) ? "c-comment" : "";
  if (text.startsWith("--")) return DASHES.has(language) ? "c-comment" : "";
  if (/^["'`]/.test(text)) return "c-string";
  if (/^\d/.test(text)) return "c-number";
  return WORDS.has(text) ? "c-word" : "";
}
