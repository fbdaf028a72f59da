"""The suite of pages: what browsers would not find of their files, or refuse by the policy that the server sends."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from urllib.parse import urlsplit

from llmk.api import PageSpec
from llmk.serve.http.pages import FOLDER, INDEX, LoadedPage, load_page
from llmk_testing.bench import Bench
from llmk_testing.case import Case
from llmk_testing.suites import page_runs

_Check = Callable[[LoadedPage], str | None]

_LOADS = {"link": "href", **dict.fromkeys(("script", "img", "source", "iframe", "audio", "video"), "src")}
_IMPORT = re.compile(r"""(?:^|[\s;}])(?:import|from)\s*\(?\s*["']([^"']+)["']""")
_STYLE_LOAD = re.compile(r"""(?:url\(\s*|@import\s+)["']?([^"')\s;]+)""")
_PARSES = re.compile(
    r"\.(?:inner|outer)HTML\s*\+?=|insertAdjacentHTML|document\.write|\beval\s*\(|\bnew Function\b|\bsrcdoc\b"
    r"|\bset(?:Timeout|Interval)\s*\(\s*[\"'`]|parseFromString|createContextualFragment|setHTMLUnsafe|javascript:"
)
_INLINES = re.compile(r"""setAttribute\(\s*["'`](?:style|on\w+)["'`]|createElement\(\s*["'`](?:style|script)["'`]""")
"""What makes a style or a handler of a string."""
_REQUEST = re.compile(
    r"""\b(?:fetch|EventSource|WebSocket|Worker|SharedWorker|sendBeacon|Request|\.open)\s*\(\s*["'`]([^"'`]*)"""
    r"""|\.(?:href|src|action)\s*=\s*["'`]([^"'`]*)"""
)
_BUILDS = re.compile(r"\blocation\s*\??\.\s*(?:host|hostname|port|origin)\b|\{[^{}]*\}\s*=\s*(?:\w+\.)?location\b")
"""What addresses are built of that lose the port or a proxy's path."""
_MODULE = re.compile(r"^\s*(?:import\b(?!\s*\()|export\b)", re.MULTILINE)
_NAMES = re.compile(r"""^\s*import\s*\{([^}]*)\}\s*from\s*["']([^"']+)["']""", re.MULTILINE)
_EXPORT = re.compile(
    r"^\s*export\s+(?:async\s+)?(?:(?:function\*?|const|let|var|class)\s+([\w$]+)|\{([^}]*)\}|(default|\*))",
    re.MULTILINE,
)


def cases(spec: PageSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one page."""

    def case(name: str, check: _Check) -> Case:
        return Case(spec.id, "page", name, partial(_run, spec, check))

    yield case("its path is one of the server, and no folder's", check_path)
    yield case("index.html says its language and title", check_head)
    yield case("no script or style stands in the HTML, which browsers would refuse", check_inline)
    yield case("nothing is loaded from elsewhere", check_origin)
    yield case("what is loaded is one of its files", check_loads)
    yield case("no string becomes HTML or a script, which browsers would refuse", check_parsing)
    yield case("what it requests is relative, so that it works behind a proxy's path", check_relative)
    yield case("scripts that import are modules, and what they import is exported", check_modules)
    for name, check in page_runs.CHECKS:
        yield case(name, check)


def check_path(page: LoadedPage) -> None:
    """Browsers add a slash to folders, so that relative addresses would mean others."""
    path = page.spec.path
    assert path.startswith("/"), f"the path {path!r} does not start with a slash"
    assert path == "/" or not path.endswith("/"), f"the path {path!r} ends with a slash"
    assert not path.startswith(FOLDER), f"the path {path!r} is that of files"


def check_head(page: LoadedPage) -> None:
    """Screen readers need both."""
    html = _html(page)
    assert html.language, 'index.html lacks <html lang="…">'
    assert html.title.strip(), "index.html lacks a title"


def check_inline(page: LoadedPage) -> None:
    """Only files are run."""
    found = _html(page).inline
    assert not found, f"index.html has {found[0]}; put it into a file"


def check_origin(page: LoadedPage) -> None:
    """Neither by HTML nor by styles or modules."""
    for name, address in _addresses(page):
        parts = urlsplit(address)
        elsewhere = parts.scheme not in ("", "data") or parts.netloc
        assert not elsewhere, f"{name} loads {address} from another server"


def check_loads(page: LoadedPage) -> None:
    """Relative addresses are those of files."""
    base = f"{FOLDER}{page.spec.id}/"
    for name, address in _addresses(page):
        if urlsplit(address).scheme == "data":
            continue
        here = page.spec.path if name == INDEX else base + name
        found = posixpath.normpath(posixpath.join(posixpath.dirname(here), urlsplit(address).path))
        assert found.removeprefix(base) in page.files, f"{name} loads {address}, which is not a file of the page"


def check_parsing(page: LoadedPage) -> None:
    """What makes HTML or code of a string is refused by trusted types."""
    for name, text in _texts(page, ".js"):
        found = _PARSES.search(text) or _INLINES.search(text)
        assert found is None, f"{name} uses {found and found[0].strip()}; build elements instead"


def check_relative(page: LoadedPage) -> None:
    """A proxy may serve the page at ``/models/one/board``; an address with a slash in front leaves that."""
    for name, address in _addresses(page):
        assert not address.startswith("/"), f"{name} loads {address}, which a proxy's path breaks; leave out the slash"
    for address in _html(page).links:
        assert not address.startswith("/"), f"{INDEX} refers to {address}; leave out the slash"
    assert not _html(page).based, f"{INDEX} has a <base>, which the policy refuses"
    for name, text in _texts(page, ".js"):
        for found in _REQUEST.finditer(text):
            address = found[1] or found[2] or ""
            own = not address.startswith("/") and urlsplit(address).scheme in ("", "data", "blob")
            assert own, f"{name} requests {address}, which is not relative to the page"
        built = _BUILDS.search(text)
        assert built is None, f"{name} uses {built and built[0]}; write addresses relative to the page"


def check_modules(page: LoadedPage) -> None:
    """A name that is not exported stops all scripts of a page, and so does an import outside of a module."""
    base = f"{FOLDER}{page.spec.id}/"
    scripts = dict(_texts(page, ".js"))
    for address in _html(page).classic:
        text = scripts.get(address.rpartition(base.lstrip("/"))[2], "")
        assert not _MODULE.search(text), f'{INDEX} loads {address}, which imports or exports, without type="module"'
    exports = {name: _exported(text) for name, text in scripts.items()}
    for name, text in scripts.items():
        for names, address in _NAMES.findall(text):
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), address))
            wanted = {each.split(" as ")[0].strip() for each in names.split(",")} - {""}
            missing = wanted - exports.get(other, wanted)
            assert not missing, f"{name} imports {', '.join(sorted(missing))} from {address}, which does not export it"


def _exported(text: str) -> set[str]:
    """The names that a module exports."""
    found = set[str]()
    for name, names, other in _EXPORT.findall(text):
        found |= {name or other} | {each.split(" as ")[-1].strip() for each in names.split(",")}
    return found


def _run(spec: PageSpec, check: _Check) -> str | None:
    page = load_page(spec)
    assert INDEX in page.files, f"the folder {spec.folder!r} of {spec.package} has no {INDEX}"
    return check(page)


def _addresses(page: LoadedPage) -> Iterator[tuple[str, str]]:
    """What each file loads."""
    yield from ((INDEX, address) for address in _html(page).loads)
    yield from ((name, found) for name, text in _texts(page, ".css") for found in _STYLE_LOAD.findall(text))
    yield from ((name, found) for name, text in _texts(page, ".js") for found in _IMPORT.findall(text))


def _texts(page: LoadedPage, ending: str) -> Iterator[tuple[str, str]]:
    return ((name, file.plain.decode()) for name, file in page.files.items() if name.endswith(ending))


def _html(page: LoadedPage) -> _Html:
    found = _Html()
    found.feed(page.files[INDEX].plain.decode())
    return found


class _Html(HTMLParser):
    """What is found in a file of HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.language = self.title = ""
        self.inline: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.classic: list[str] = []
        self.based = False
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what the element loads, and what it has that belongs into a file."""
        given = {name: value or "" for name, value in attrs}
        self._inside = tag
        if tag == "html":
            self.language = given.get("lang", "")
        if address := given.get(_LOADS.get(tag, ""), ""):
            self.loads.append(address)
        self.links += [
            given[name] for name in ("href", "action", "formaction", "data") if name in given and tag != "link"
        ]
        self.based |= tag == "base"
        if tag == "script" and given.get("type") != "module":
            self.classic.append(given.get("src", ""))
        handlers = [name for name in given if name == "style" or name.startswith("on")]
        self.inline += [f"the attribute {name} of <{tag}>" for name in handlers]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(f"<{tag}> with content")

    def handle_endtag(self, tag: str) -> None:
        """The element has ended."""
        self._inside = ""

    def handle_data(self, data: str) -> None:
        """The title is text."""
        if self._inside == "title":
            self.title += data
