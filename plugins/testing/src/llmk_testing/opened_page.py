"""A page that is opened and used without a browser: its modules run in Node.js, with a document of the kit's own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llmk.serve.http.pages import INDEX, LoadedPage
from llmk_testing.case import Skip

KEY = "sk-key of a user"
ROOT = "http://127.0.0.1:8765/behind/a/proxy"
TIMEOUT = 60.0
"""Seconds that a page may take."""
_EMPTY = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"]
)


@dataclass(frozen=True, slots=True)
class Opened:
    """What a page did: errors that nothing caught, requests with ``path``, ``url``, ``body`` and ``headers``, forms
    that the browser would have sent, and what a user saw, by when: ``"loaded"``, ``"newest"`` before late answers
    came, ``"stopped"``, ``"end"``, and, as ``"looks"``, all that elements have then."""

    errors: Sequence[str]
    requests: Sequence[Mapping[str, Any]]
    submitted: Sequence[str]
    seen: Mapping[str, str]
    keyed: int
    """So many requests were sent before the last key was typed."""
    held: int
    """So many answers came late."""
    stored: Mapping[str, str]
    stops: Sequence[bool]
    """After each turn, whether a button that stops could be pressed."""
    stopping: int
    """So many buttons stop something."""
    unstopped: int
    """So many answers went on, once these were pressed."""

    def check(self) -> None:
        """Raises ``AssertionError`` for an error that nothing caught."""
        assert not self.errors, f"an error that nothing catches: {self.errors[0]}"


def opened(page: LoadedPage, **way: Any) -> Opened:
    """Opens a page and uses it in a way, which ``browser/run.mjs`` reads. Raises Skip without Node.js, and where the
    page needs what the kit's document lacks."""
    node = shutil.which("node")
    if node is None:
        raise Skip("it runs modules in Node.js, and there is no node")
    with TemporaryDirectory(prefix="llmk-") as place, as_file(files("llmk_testing") / "browser") as browser:
        folder = Path(place)
        for name, file in page.files.items():
            (folder / name).write_bytes(file.plain)
        (folder / "package.json").write_text('{"type": "module"}')
        given = {"html": _tree(page), "folder": str(folder), "base": ROOT + page.spec.path, "root": f"{ROOT}/", **way}
        (folder / "scenario of the kit.json").write_text(json.dumps(given))
        command = [node, str(browser / "run.mjs"), str(folder / "scenario of the kit.json")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, cwd=folder)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"its scripts did not come to rest within {TIMEOUT:g} s") from None
    assert done.stdout.startswith("{"), f"its scripts ended the process: {done.stderr[-1500:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    if found["errors"] and found["lacking"]:
        raise Skip(f"the kit's document lacks {', '.join(found['lacking'])}, and then there was {found['errors'][0]}")
    del found["lacking"]
    return Opened(**{"keyed": 0, "held": 0, "stopping": 0, "unstopped": 0, **found})


def _tree(page: LoadedPage) -> Any:
    """The document as ``[tag, attributes, children]`` and texts."""
    parser = _Tree()
    parser.feed(page.files[INDEX].plain.decode())
    found = [each for each in parser.root[2] if isinstance(each, list) and each[0] == "html"]
    return found[0] if found else ["html", {}, parser.root[2]]


class _Tree(HTMLParser):
    """Elements as they are written; none is closed by what follows."""

    def __init__(self) -> None:
        super().__init__()
        self.root: list[Any] = ["", {}, []]
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opens an element."""
        made: list[Any] = [tag, {name: value or "" for name, value in attrs}, []]
        self._open[-1][2].append(made)
        if tag not in _EMPTY:
            self._open.append(made)

    def handle_endtag(self, tag: str) -> None:
        """Closes the innermost element of this name, and what is in it."""
        at = max((number for number, each in enumerate(self._open) if each[0] == tag), default=0)
        if at:
            del self._open[at:]

    def handle_data(self, data: str) -> None:
        """A text."""
        self._open[-1][2].append(data)
