"""What is mutated: the modules of installed plugins, of every template, and of reference kernels, with the specs that
use them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llmk_testing.kinds import KINDS
from llmk_testing.new import Project

COPY = "mutated_reference"
"""The module that stands for a mutated module of the core, whose own copy is the oracle."""
CORE = "llmk-core"
KINDS_OF = {
    "parser": ("tool_parser", "reasoning_parser"),
    "device_speculator": ("speculator",),
    "op_contract": ("op_contract", "op"),
}
"""The kinds of specs that some names stand for."""
DISTRIBUTIONS: Mapping[str, Sequence[str]] = {
    "parser": ("llmk-parsers",),
    "policy": ("llmk-policies",),
    "logits_processor": (),
    "io_processor": ("llmk-embeddings",),
    "quantization": ("llmk-quantization", "llmk-int8", "llmk-gguf"),
    "linear": (CORE, "llmk-int8", "llmk-backends-cpu"),
    "attention": (CORE, "llmk-backends-cpu"),
    "op": (CORE, "llmk-backends-cpu"),
    "moe": (CORE, "llmk-backends-cpu"),
    "model": ("llmk-models",),
    "platform": ("llmk-backends-cpu", "llmk-nova"),
    "speculator": ("llmk-speculators",),
    "stat_logger": ("llmk-statsd",),
    "grammar": ("llmk-grammar",),
    "route": ("llmk-ollama", "llmk-anthropic"),
}
"""The distributions whose plugins of a kind are mutated, besides its templates."""
PLATFORMS = {"llmk-backends-cpu": "cpu", "llmk-nova": "nova", "llmk-zz-platform": "zz-platform"}
"""Distributions that are tried on a platform of their own, also where a better one is installed."""

PLACES = ("implementation", "prepare", "describe", "tree", "ahead")
"""Fields of specs that name an object."""
ONCE = ("llmk_nova.device",)
"""Modules that a process can import only once, as they register a device with torch: they are not mutated."""

_closures: dict[tuple[str, ...], dict[str, int]] = {}
_reached: dict[tuple[str, ...], tuple[tuple[int, int], ...]] = {}


@dataclass(frozen=True, slots=True)
class Subject:
    """A module that may be mutated, and the specs whose implementations use it, the nearest first."""

    distribution: str
    module: str
    path: Path
    specs: tuple[tuple[str, Any], ...]
    """Kinds and specs."""

    def reached(self) -> list[tuple[int, int]]:
        """The lines, first and last, of top-level statements and methods of the module that the specs reach by name."""
        return sorted({lines for _, spec in self.specs for lines in self._reached_by(spec)})

    def specs_at(self, line: int) -> list[tuple[str, Any]]:
        """The specs that reach a line, the nearest first."""
        found = [
            (kind, spec)
            for kind, spec in self.specs
            if any(first <= line <= last for first, last in self._reached_by(spec))
        ]
        return found or list(self.specs)

    def _reached_by(self, spec: Any) -> tuple[tuple[int, int], ...]:
        key = (self.module, type(spec).__name__, spec.id, getattr(spec, "implementation", ""))
        if key not in _reached:
            _reached[key] = tuple(self._statements(spec))
        return _reached[key]

    def _statements(self, spec: Any) -> Iterator[tuple[int, int]]:
        tree = ast.parse(self.path.read_text())
        named = {_name(node): node for node in tree.body if _name(node)}
        reached = {*_attributes(spec, self.module, self.distribution), *_imported(spec, self.module)}
        elsewhere = [name for name in closure(spec) if name != self.module]
        # What prepares weights for experts, and ops, are called and nothing else is asked of their objects.
        asked = set() if getattr(spec, "kind", "") in ("moe", "op") else {*_asked_by_core()}
        asked |= {name for other in elsewhere for name in _asked(_tree(other))}
        while True:
            alive = [node for node in tree.body if not _name(node) or _name(node) in reached or "*" in reached]
            parts = [part for node in alive for part in _parts(node, asked)]
            names = {inner.id for part in parts for inner in ast.walk(part) if isinstance(inner, ast.Name)}
            more = {name for part in parts for name in _asked(part)}
            if names & named.keys() <= reached and more <= asked:
                break
            reached, asked = reached | names, asked | more
        for part in parts:
            yield min([part.lineno, *_decorators(part)]), part.end_lineno or part.lineno


def _name(node: ast.stmt) -> str:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def _parts(node: ast.stmt, asked: set[str]) -> list[ast.stmt]:
    """A statement; of a class without bases, its statements except methods whose names nobody has asked for."""
    if not isinstance(node, ast.ClassDef) or node.bases:
        return [node]
    return [
        part
        for part in node.body
        if not isinstance(part, ast.FunctionDef) or part.name in asked or part.name.startswith("__")
    ]


def _asked(tree: ast.AST) -> Iterator[str]:
    """Names of attributes that code looks up."""
    return (node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))


def _decorators(node: ast.stmt) -> list[int]:
    """Lines of a function's decorators."""
    return [each.lineno for each in getattr(node, "decorator_list", [])]


@cache
def _asked_by_core() -> frozenset[str]:
    """Names of attributes that the core, except its kernels, and the kit look up, on anything."""
    packages = (find_spec(name) for name in ("llmk", "llmk_testing"))
    folders = [Path(place) for found in packages if found for place in found.submodule_search_locations or ()]
    files = (path for folder in folders for path in folder.rglob("*.py") if "reference" not in path.parts)
    return frozenset(name for path in files for name in _asked(ast.parse(path.read_text())))


@cache
def _tree(module: str) -> ast.Module:
    found = find_spec(module)
    return ast.parse(Path(found.origin).read_text()) if found and found.origin else ast.Module([], [])


def _attributes(spec: Any, module: str, distribution: str) -> Iterator[str]:
    """The objects of a module that a spec names."""
    for place in (getattr(spec, name, "") for name in (*PLACES, "writer")):
        where, _, name = place.partition(":") if isinstance(place, str) else ("", "", "")
        if where in (module, COPY if distribution == CORE else module):
            yield name
    probe = getattr(spec, "probe", None)
    if probe is not None and probe.__module__ == module:
        yield probe.__qualname__


def _imported(spec: Any, module: str) -> Iterator[str]:
    """The objects of a module that other modules import which the spec uses; ``*``: the whole module."""
    for other in closure(spec):
        for source, names in _froms(other):
            if source == module:
                yield from names
            elif module in (f"{source}.{name}" for name in names):
                yield "*"


@cache
def _froms(module: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What a module imports from others, as their names and those of the objects."""
    nodes = [node for node in ast.walk(_tree(module)) if isinstance(node, ast.ImportFrom)]
    return tuple((node.module or "", tuple(alias.name for alias in node.names)) for node in nodes)


def write_templates(folder: Path) -> list[str]:
    """Distributions made of every template, as if installed in ``folder``; returns their names."""
    names = []
    for kind in KINDS:
        project = Project(f"llmk-zz-{kind}", kind)
        for place, text in project.files():
            if place.startswith("src/"):
                path = folder / place.removeprefix("src/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        info = folder / f"{project.package}-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project.distribution}\nVersion: 1.0\nRequires-Dist: llmk-core>=0.1,<0.2\n"
        )
        (info / "entry_points.txt").write_text(f"[llmk.v1]\n{project.name} = {project.package}.specs\n")
        names.append(project.distribution)
    return names


def template_of(kind: str) -> list[str]:
    """The distributions of a kind's templates."""
    return [f"llmk-zz-{one.replace('_', '-')}" for one in KINDS_OF.get(kind, (kind,))]


def subjects(distribution: str, specs: Sequence[tuple[str, Any]]) -> Iterator[Subject]:
    """The modules that the specs of one distribution use, without examples and modules of specs."""
    used: dict[str, list[tuple[int, str, Any]]] = {}
    for kind, spec in specs:
        if distribution == CORE:
            module = spec.implementation.partition(":")[0]
            if module.startswith("llmk.reference."):
                used.setdefault(module, []).append((0, kind, copied(spec, module)))
            continue
        for module, distance in closure(spec).items():
            used.setdefault(module, []).append((distance, kind, spec))
    for module, users in sorted(used.items()):
        found = find_spec(module)
        if found and found.origin and found.origin.endswith(".py") and module not in ONCE:
            near = sorted(users, key=lambda user: (user[0], user[2].id))
            yield Subject(distribution, module, Path(found.origin), tuple((kind, spec) for _, kind, spec in near))


def copied(spec: Any, module: str) -> Any:
    """A spec of the core whose implementation is in the copy of its module."""
    places = {
        name: getattr(spec, name).replace(f"{module}:", f"{COPY}:")
        for name in ("implementation", "prepare")
        if getattr(spec, name, "")
    }
    return replace(spec, id=spec.id.replace("reference.", "copied."), **places)


def closure(spec: Any) -> dict[str, int]:
    """The modules of its own package that a spec's objects import, with the number of imports between."""
    key = (type(spec).__name__, spec.id, getattr(spec, "implementation", ""))
    if key not in _closures:
        _closures[key] = _closure(spec)
    return _closures[key]


def _closure(spec: Any) -> dict[str, int]:
    places = [getattr(spec, name, "") for name in PLACES]
    calls = (getattr(spec, name, None) for name in ("build", "probe"))
    places += [call.__module__ + ":" for call in calls if call]
    level = [place.partition(":")[0] for place in places if isinstance(place, str) and place]
    roots = {place.partition(".")[0] for place in level if place.startswith("llmk_")}
    found: dict[str, int] = {}
    distance = 0
    while level:
        for module in level:
            if module.partition(".")[0] in roots and "specs" not in module and not module.endswith("examples"):
                found.setdefault(module, distance)
        level = sorted({inner for module in level if module in found for inner in imports(module)} - found.keys())
        distance += 1
    return found


@cache
def imports(module: str) -> tuple[str, ...]:
    """The modules of the same package that a module imports at its top."""
    spec = find_spec(module)
    root = module.partition(".")[0]
    if not spec or not spec.origin or not spec.origin.endswith(".py"):
        return ()
    names = []
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == root:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.partition(".")[0] == root]
    return tuple(sorted({name for name in names if _is_module(name)}))


def _is_module(name: str) -> bool:
    try:
        return name in sys.modules or find_spec(name) is not None
    except ModuleNotFoundError:
        return False
