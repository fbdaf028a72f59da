"""A page of four files, and ways to get one wrong: the fields of the spec, or the files, that are others."""

from __future__ import annotations

from defects import Defect

INDEX = """<!doctype html>
<html lang="en"><head><title>A page</title>
<link rel="stylesheet" href="pages/pages.page/style.css">
<script type="module" src="pages/pages.page/app.js"></script>
</head><body><a href="https://elsewhere.example">a link</a></body></html>
"""
GOOD = {
    "index.html": INDEX,
    "app.js": 'import { b } from "./b.js";\nconst at = "https://elsewhere.example";\nb(at);\n',
    "b.js": "export const b = (text) => document.body.append(text);\n",
    "style.css": "body { background: url(data:image/gif;base64,R0lGODlhAQABAAAAACw=); }\n",
}

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
    Defect("no_module", "a module is missing", {"app.js": 'import { b } from "./c.js";'}, "one of its files"),
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
]
