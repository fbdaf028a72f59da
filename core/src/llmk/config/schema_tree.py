"""The schema as a flat table of dotted paths, used by flags, environment variables, files and reports."""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from llmk.config.schema import Config, Key
from llmk.config.section import Section

Path = tuple[str, ...]
"""A split dotted path. The last part of a path below an open leaf may itself contain dots."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of the schema. An *open* leaf also accepts a table with arbitrary keys."""

    path: Path
    annotation: Any
    default: Any
    description: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a ``Literal``; empty for other types."""
        return get_args(self.annotation) if get_origin(self.annotation) is Literal else ()

    @property
    def is_bool(self) -> bool:
        """Whether the value is a switch."""
        return self.annotation is bool

    @property
    def is_list(self) -> bool:
        """Whether the value is a sequence."""
        return get_origin(self.annotation) in (tuple, list)

    @property
    def is_open(self) -> bool:
        """Whether there may be paths below this one."""
        return any(get_origin(part) is dict for part in _alternatives(self.annotation))


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    union = get_origin(annotation) in (Union, types.UnionType)
    return get_args(annotation) if union else (annotation,)


@cache
def leaves(model: type[BaseModel] = Config) -> dict[Path, Leaf]:
    """Every value of ``model`` and its nested sections by path, in the schema's order."""
    found: dict[Path, Leaf] = {}
    for name, info in model.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            for path, leaf in leaves(annotation).items():
                found[(name, *path)] = Leaf((name, *path), leaf.annotation, leaf.default, leaf.description)
        else:
            default = info.get_default(call_default_factory=True)
            found[(name,)] = Leaf((name,), annotation, default, info.description or "")
    return found


def find_leaf(path: Path) -> Leaf | None:
    """The leaf at ``path``, or the open leaf above it; ``None`` if the schema has neither."""
    table = leaves()
    for length in range(len(path), 0, -1):
        leaf = table.get(path[:length])
        if leaf is not None:
            return leaf if length == len(path) or leaf.is_open else None
    return None


def split(path: str) -> Path:
    """Splits a dotted path. Below an open leaf, the rest is one key, since names of sites may contain dots."""
    parts = canonical(tuple(path.split(".")))
    if parts[:1] == ("plugin",):
        return parts
    for length in range(1, len(parts)):
        leaf = leaves().get(parts[:length])
        if leaf is not None and leaf.is_open:
            return (*parts[:length], ".".join(parts[length:]))
    return parts


def canonical(path: Path) -> Path:
    """The path with a plugin's name as environment variables can spell it: in lower case, with underscores."""
    if path[:1] != ("plugin",) or len(path) < 2:
        return path
    return ("plugin", path[1].lower().replace("-", "_"), *path[2:])


def join(path: Path) -> str:
    """The path in dotted form."""
    return ".".join(path)


def nearest(path: Path) -> str:
    """The known path that is most similar to ``path``, or ``""``."""
    known = [join(p) for p in leaves()]
    by_name = {p[-1]: join(p) for p in leaves()}
    close = get_close_matches(join(path), known, n=1, cutoff=0.75)
    if close:
        return close[0]
    name = get_close_matches(path[-1], by_name, n=1, cutoff=0.75)
    return by_name[name[0]] if name else ""


def parse_text(text: str, annotation: Any) -> Any:
    """Converts text from a flag or an environment variable into a value that pydantic can validate.

    Lists are JSON or comma-separated, tables are JSON, other values remain text. Raises ``ValueError`` for invalid
    JSON.
    """
    stripped = text.strip()
    leaf = Leaf((), annotation, None, "")
    if stripped.startswith("{") and leaf.is_open:
        return json.loads(stripped)
    if leaf.is_list:
        return json.loads(stripped) if stripped.startswith("[") else _items(stripped.split(","), annotation)
    return text


def _items(parts: Sequence[str], annotation: Any) -> list[str]:
    """Blank items are dropped, except for keys: a secret that was left blank must not mean that no key is required."""
    keys = get_args(annotation)[0] == Key
    return [part.strip() for part in parts if keys or part.strip()]
