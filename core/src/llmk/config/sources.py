"""Sources of configuration values. Each becomes a layer, which maps paths to values and their exact origins."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from llmk.api.errors import ConfigError
from llmk.config.schema_tree import Path, canonical, find_leaf, join, leaves, nearest, parse_text, split

ENVIRONMENT_PREFIX = "LLMK__"
FILE_NAME = "llmk.toml"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value. ``source``: flag, environment, file, checkpoint, plugin or default; ``detail``: where in
    the source, and why."""

    source: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.detail}".strip()


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and its origin."""

    value: Any
    origin: Origin


Layer = Mapping[Path, Entry]


def from_flags(flags: Mapping[str, Any]) -> Layer:
    """A layer of flags by dotted path. Text is parsed; other values, which the Python API passes, are not changed."""
    entries = [(split(path), value, Origin("flag", flag_name(path))) for path, value in flags.items()]
    return _layer(entries)


def flag_name(path: str) -> str:
    """The flag that sets ``path``."""
    return "--" + path.replace("_", "-")


def from_environment(environ: Mapping[str, str]) -> Layer:
    """A layer of environment variables named ``LLMK__SECTION__KEY``. Raises ConfigError, also for one that has single
    underscores, which would set nothing: a server would lack keys that its owner believes it has."""
    entries = []
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            path = name[len(ENVIRONMENT_PREFIX) :].lower().replace("__", ".")
            entries.append((split(path), environ[name], Origin("environment", name)))
        elif (meant := _with_single_underscores().get(name)) and "://" not in environ[name]:
            # Kubernetes sets LLMK_SERVER_PORT=tcp://… in every pod, if there is a service named llmk-server.
            raise ConfigError(f"the environment variable {name} sets nothing", hint=f"did you mean {meant}?")
    return _layer(entries)


@cache
def _with_single_underscores() -> dict[str, str]:
    """The variables of all values, by how they are mistyped."""
    names = ("__".join((ENVIRONMENT_PREFIX.rstrip("_"), *path)).upper() for path in leaves())
    return {name.replace("__", "_"): name for name in names}


def from_file(file: FilePath) -> Layer:
    """A layer of a TOML file. Raises ConfigError, with the line, if it can't be read or parsed."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # editors of Windows write a mark first
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the configuration file {file} is not UTF-8 text: {error.reason} at byte {error.start}",
            hint="save it as UTF-8, as TOML files are",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"the configuration file {file} can't be read: {error.strerror}",
            hint=f"name an existing file with --config, or leave it out to use {FILE_NAME} of the current folder",
        ) from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = 'correct it there; a section and a value look so: [server], and below it host = "127.0.0.1"'
        raise ConfigError(f"{file} is not valid TOML: {error}", hint=hint) from error
    except RecursionError as error:
        raise ConfigError(f"{file} is nested too deep") from error
    lines = _lines(text)
    entries = []
    for path, value in _flatten(data):
        known = [line for start, line in lines if path[: len(start)] == start]
        entries.append((canonical(path), value, Origin("file", f"{file.name}:{known[-1] if known else 1}")))
    return _layer(entries)


def from_values(values: Mapping[str, Any], origin: Origin) -> Layer:
    """A layer of values by dotted path with the same origin."""
    return _layer([(split(path), value, origin) for path, value in values.items()])


def _layer(entries: Sequence[tuple[Path, Any, Origin]]) -> Layer:
    """Checks paths and parses text; the error reports all problems at once."""
    layer: dict[Path, Entry] = {}
    problems: list[tuple[str, str]] = []
    for path, value, origin in entries:
        leaf = find_leaf(path)
        if leaf is None or path == ("plugin",):
            problems.append(_unknown(path, origin))
            continue
        try:
            parsed = _parse(value, leaf.annotation) if path == leaf.path else value
        except (ValueError, RecursionError) as error:
            problems.append((f"{join(path)} (set by {origin}) is not valid JSON: {error}", ""))
            continue
        if leaf.is_open and isinstance(parsed, Mapping):
            layer.update({(*path, key): Entry(item, origin) for key, item in parsed.items()})
        else:
            layer[path] = Entry(parsed, origin)
    if problems:
        hints = [hint for _, hint in problems if hint]
        raise ConfigError("\n".join(message for message, _ in problems), hint="; ".join(hints))
    return layer


def _parse(value: Any, annotation: Any) -> Any:
    if isinstance(value, str):
        return parse_text(value, annotation)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        parts = [parse_text(item, annotation) for item in value]
        return [item for part in parts for item in (part if isinstance(part, list) else [part])]
    return value


def _unknown(path: Path, origin: Origin) -> tuple[str, str]:
    message = f"unknown configuration key {join(path)!r} (set by {origin})"
    guess = nearest(path)
    if guess:
        return message, f"did you mean {guess!r}?"
    sections = ", ".join(dict.fromkeys(p[0] for p in leaves()))
    return message, f"sections are {sections}; `llmk config schema` lists every key"


def _flatten(data: Mapping[str, Any], prefix: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values of a parsed file by path. Empty tables are ignored."""
    for key, value in data.items():
        path = (*prefix, key)
        if isinstance(value, Mapping):
            yield from _flatten(value, path)
        else:
            yield path, value


def _lines(text: str) -> list[tuple[Path, int]]:
    """The line of each key in a valid TOML text, in order of appearance.

    A statement ends at the first line at which the lines since its start can be parsed separately. This is true for
    multi-line strings and arrays too, and leaves TOML's syntax to the standard library.
    """
    found: list[tuple[Path, int]] = []
    table: Path = ()
    pending, start = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        if not pending:
            start = number
        pending += line + "\n"
        try:
            statement = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        is_header = pending.lstrip().startswith("[")
        pending = ""
        if is_header:
            table = _chain(statement)
        elif statement:
            found.extend(((*table, *path), start) for path, _ in _flatten(statement))
    return found


def _chain(data: Any) -> Path:
    """The keys of a table header, outermost first."""
    path: Path = ()
    while isinstance(data, Mapping) and data:
        key, data = next(iter(data.items()))
        path = (*path, key)
        data = data[0] if isinstance(data, list) else data
    return path
