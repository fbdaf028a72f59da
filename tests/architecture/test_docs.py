"""What pages say about the code is true of it: paths, modules, options and flags exist; and lines fit."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from wrap_docs import ROOT, documents, too_long, wrap

from llmk.cli.commands.plugin_commands import add_commands
from llmk.cli.main import COMMANDS, EXTENDED, Parser, actions_of
from llmk.config.schema import Config
from llmk.config.schema_tree import join, leaves

CORE = ROOT / "core/src/llmk"
VLLM = "docs/coming-from-vllm.md"
HISTORY = "CHANGELOG.md"
"""It names what is gone."""
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*/?")
OUTPUTS = ("build", "dist")
"""Folders of what is built, which need not be there."""

SECTIONS = "|".join(name for name in Config.model_fields if name != "plugin")
NOT_OPTIONS = {"section.key", "server.address"}
"""A placeholder, and an attribute of spans."""
NOT_MODULES = {"access", "toml", "v1", "v2"}
"""A logger, a file, and groups of entry points."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the documentation."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def text(self) -> str:
        return self.path.read_text()

    @property
    def spans(self) -> list[str]:
        """What stands in single backticks outside of fenced blocks."""
        return [found[1] for found in SPAN.finditer(FENCE.sub("", self.text))]

    @property
    def commands(self) -> Iterator[tuple[str, str]]:
        """Calls of ``llmk`` in shell blocks and code spans: the command, and the rest of the line."""
        blocks = [found[2].replace("\\\n", " ") for found in FENCE.finditer(self.text) if found[1] in ("", "sh", "ini")]
        for text in (*blocks, *self.spans):
            for found in re.finditer(r"(?:^|[/\s])llmk ([a-z]+)([^\n|>#]*)", text):
                yield found[1], found[2]


PAGES = [Page(path) for path in documents()]
CURRENT = [page for page in PAGES if str(page) != HISTORY]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_lines_fit(page: Page) -> None:
    long = list(too_long(page.text))
    assert not long, f"{page} has lines over 100 columns, {[number for number, _ in long]}: run `make docs`"


def test_paths_exist() -> None:
    """``core/…`` from the root, ``engine/…`` from the core's sources, ``tests/…`` from the page's own folder."""
    missing = [f"{page}: {span}" for page in CURRENT for span in page.spans if not exists(span, page.path.parent)]
    assert not missing, "\n".join(missing)


def exists(span: str, folder: Path) -> bool:
    """Whether there is a file or folder of that name, if it is one of the repository's."""
    if not PATH.fullmatch(span):
        return True
    first, *rest = span.rstrip("/").split("/")
    if first in OUTPUTS:
        return True
    if not rest:
        return not re.fullmatch(r"\w+\.py", span) or span in python_files()
    bases = [base for base in (ROOT, CORE) if (base / first).is_dir()]
    return not bases or any(next(base.glob(span.rstrip("/")), None) for base in (*bases, folder))


@cache
def python_files() -> set[str]:
    """Names of Python files of the sources."""
    return {file.name for file in ROOT.rglob("*.py") if ".venv" not in file.parts}


def test_modules_exist() -> None:
    """``llmk.engine.wire.request`` is a file; ``llmk.nn.Linear`` may be a name in one."""
    dotted = re.compile(r"(llmk(?:_[a-z0-9]+)?)((?:\.\w+)+)(?:\(.*\))?")
    missing = []
    for page in CURRENT:
        for span in page.spans:
            found = dotted.fullmatch(span)
            if not found or found[1] not in packages() or found[2].strip(".") in NOT_MODULES:
                continue
            if not resolves(packages()[found[1]], found[2].strip(".").split(".")):
                missing.append(f"{page}: {span}")
    assert not missing, "\n".join(missing)


@cache
def packages() -> dict[str, Path]:
    """The packages of all wheels, by name."""
    return {
        path.parent.name: path.parent for path in ROOT.glob("**/src/llmk*/__init__.py") if ".venv" not in path.parts
    }


def resolves(folder: Path, names: list[str]) -> bool:
    """Whether ``names`` lead from a package's folder to a module, or to a word in one."""
    for position, name in enumerate(names):
        if (folder / name).is_dir():
            folder /= name
            continue
        file = folder / f"{name}.py"
        rest = names[position:]
        if file.exists():
            rest = rest[1:]
        else:
            file = folder / "__init__.py"
        return all(re.search(rf"\b{re.escape(word)}\b", file.read_text()) for word in rest)
    return True


def test_options_exist() -> None:
    known = {join(path) for path in leaves()}
    known |= {path.rpartition(".")[0] for path in known} | {f"{path}.*" for path in known}
    known |= NOT_OPTIONS
    option = re.compile(rf"(?:{SECTIONS})\.[a-z_]+(?:\.[a-z_]+)*")
    named = {(str(page), span) for page in CURRENT for span in page.spans if option.fullmatch(span)}
    named |= {
        (str(page), key.lower().replace("__", "."))
        for page in CURRENT
        for key in re.findall(r"\bLLMK__([A-Z_]+[A-Z])\b", page.text)
        if not key.startswith("PLUGIN__")
    }
    assert len(named) > 50
    files = (".py", ".md", ".json", ".safetensors")
    missing = sorted(f"{page}: {name}" for page, name in named if name not in known and not name.endswith(files))
    assert not missing, "\n".join(missing)


def test_flags_exist() -> None:
    """Flags of every call of ``llmk`` that a page shows are that command's."""
    missing, seen = [], 0
    for page in CURRENT:
        for command, rest in page.commands:
            if command not in COMMANDS:
                continue
            flags = re.findall(r"(?<![\w-])--[a-z][\w.-]*", rest)
            seen += len(flags)
            missing += [
                f"{page}: llmk {command} {flag}"
                for flag in flags
                if flag not in known_flags(command) and not flag.startswith("--plugin.")
            ]
    assert seen > 20
    assert not missing, "\n".join(missing)


@cache
def known_flags(command: str) -> frozenset[str]:
    """Every option of a command and its actions, and those of all commands."""
    parser = Parser(prog="llmk")
    parser.add_argument("--version")
    parser.add_argument("--debug")
    subparsers = parser.add_subparsers()
    import_module(f"llmk.cli.{command}").add_parser(subparsers)
    if command in EXTENDED:
        add_commands(actions_of(subparsers.choices[command]), command)
    assert isinstance(subparsers, argparse._SubParsersAction)
    return frozenset(parser._known())


def test_flags_in_text_exist() -> None:
    """`--section.key` on any page, and every flag in the columns of llmk on the page for those who know vLLM."""
    option = re.compile(rf"--(?:no-)?(?:{SECTIONS})\.[\w.-]+")
    named = {(str(page), found[0]) for page in CURRENT for span in page.spans if (found := option.match(span))}
    rows = re.findall(r"^\|[^|]*\|(.*)\|$", (ROOT / VLLM).read_text(), flags=re.M)
    alongside = {(VLLM, flag) for row in rows for flag in re.findall(r"`(--[a-z][\w.-]*)", row)}
    assert len(alongside) > 25
    missing = sorted(f"{page}: {flag}" for page, flag in named | alongside if flag not in known_flags("serve"))
    assert not missing, "\n".join(missing)


def test_metrics_exist() -> None:
    files = ("metrics/prometheus", "metrics/replica_collector", "metrics/rank_collector", "tenants/collector")
    source = "".join((CORE / f"serve/{file}.py").read_text() for file in files)
    words = {word.removeprefix("llmk_") for word in re.findall(r"\w+", source)}
    ends = "total|seconds|bucket|perc|up|running|waiting|tokens|tasks|left|flight|step|used|pinned|blocks"
    metric = re.compile(rf"llmk_([a-z]\w*_(?:{ends})|engine_up)\b")
    named = {(str(page), name) for page in CURRENT for name in metric.findall(page.text)}
    assert len(named) > 30
    missing = sorted(f"{page}: {name}" for page, name in named if not {name, *shortened(name)} & words)
    assert not missing, "\n".join(missing)


def shortened(name: str) -> Iterator[str]:
    """A metric's name without what Prometheus adds to it."""
    for suffix in ("_total", "_bucket", "_sum", "_count"):
        yield name.removesuffix(suffix)


def test_what_is_missing_would_be_found() -> None:
    folder = ROOT / "docs"
    assert exists("core/src/llmk/api/hooks.py", folder)
    assert exists("engine/wire/request.py", folder)
    assert exists("models--*/snapshots", folder), "not a path of this repository"
    assert not exists("core/src/llmk/engine/runner.py", folder)
    assert not exists("engine/execution/batch.py", folder)
    assert not exists("no_such_file.py", folder)
    assert resolves(CORE, ["engine", "wire", "request", "SamplingParams"])
    assert not resolves(CORE, ["engine", "wire", "no_such_module"])
    assert not resolves(CORE, ["nn", "NoSuchLayer"])
    assert "--cache.memory-share" in known_flags("serve")
    assert "--gpu-memory-utilization" not in known_flags("serve")


def test_wrapping_changes_nothing_but_line_ends() -> None:
    for page in PAGES:
        wrapped = wrap(page.text)
        assert wrap(wrapped) == wrapped, page
        assert wrapped.split() == page.text.split(), page


def test_what_cannot_be_wrapped_stays() -> None:
    code = f"```sh\n{'x ' * 80}\n```"
    table = f"| a | {'b ' * 60}|"
    span = f"- `{'f(x, y) ' * 15}`"
    assert wrap(f"{code}\n\n{table}\n\n{span}") == f"{code}\n\n{table}\n\n{span}"
    assert not list(too_long(f"{code}\n{table}\n\n{span}"))
    assert list(too_long(f"{'word ' * 30}"))
    assert wrap(f"- {'word ' * 30}").splitlines()[1].startswith("  word")
    assert not any(line.startswith("- ") for line in wrap(f"{'word ' * 19}and - dash").splitlines())
