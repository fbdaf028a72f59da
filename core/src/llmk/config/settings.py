"""The configuration as a whole: merged and validated, with the origin of every value."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError

from llmk.api.errors import ConfigError
from llmk.api.hooks import Default
from llmk.config.schema import Config
from llmk.config.schema_tree import Path, canonical, join, leaves, parse_text, split
from llmk.config.sources import (
    FILE_NAME,
    Entry,
    Layer,
    Origin,
    from_environment,
    from_file,
    from_flags,
    from_values,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The merged configuration. Its layers are in order of precedence, highest first."""

    config: Config
    user: tuple[Layer, ...]
    """Flags, environment, file."""
    checkpoint: Layer
    plugins: Layer

    def origin(self, path: str) -> Origin:
        """The origin of the value at ``path``; its source is ``"default"`` if the value was not set."""
        return self._origin(split(path))

    def rows(self) -> list[tuple[str, Any, Origin]]:
        """Every value with its origin, in the schema's order; an open leaf with a table is listed key by key."""
        rows = []
        for path, leaf in leaves().items():
            value = _get(self.config.model_dump(), path)
            if leaf.is_open and isinstance(value, Mapping):
                rows += [(join(p), v, self._origin(p)) for p, v in _flatten(value, path)]
            else:
                rows.append((join(path), value, self._origin(path)))
        return rows

    def with_flags(self, values: Mapping[str, Any]) -> Settings:
        """Adds values (dotted path to value) as flags that come before the user's."""
        flags, *others = self.user
        return _build(({**flags, **from_flags(values)}, *others), self.checkpoint, self.plugins)

    def with_checkpoint(self, values: Mapping[str, Any], why: str) -> Settings:
        """Adds values from the checkpoint, with lower precedence than the user's and higher than plugins' defaults."""
        layer = from_values(values, Origin("checkpoint", why))
        return _build(self.user, {**self.checkpoint, **layer}, self.plugins)

    def with_defaults(self, defaults: Sequence[tuple[str, Default]]) -> Settings:
        """Adds plugins' defaults (plugin name, default); of several for one path, the last is used.

        Raises ConfigError with the plugin's name if a path is unknown or a value is invalid.
        """
        layer = dict(self.plugins)
        for name, default in defaults:
            layer.update(from_values({default.path: default.value}, Origin("plugin", f"{name}: {default.why}")))
        return _build(self.user, self.checkpoint, layer)

    def with_plugin_schemas(self, schemas: Mapping[str, type[BaseModel] | None]) -> Settings:
        """Validates every ``[plugin.NAME]`` with the plugin's schema, and adds the schema's defaults.

        ``schemas`` has an entry for every installed plugin, ``None`` for a plugin without configuration. Raises
        ConfigError.
        """
        written = {canonical(("plugin", name))[1]: values for name, values in self.config.plugin.items()}
        sections: dict[str, dict[str, Any]] = {}
        for name, schema in schemas.items():
            values = written.pop(canonical(("plugin", name))[1], {})
            if schema is not None:
                sections[name] = self._validate_section(name, values, schema)
            elif values:
                origin = self._origin(("plugin", name))
                raise ConfigError(f"plugin {name!r} takes no configuration, but [plugin.{name}] is set by {origin}")
        for name in written:
            raise ConfigError(
                f"[plugin.{name}] is set by {self._origin(('plugin', name))}, but no plugin of that name is installed",
                hint=f"installed plugins: {', '.join(sorted(schemas)) or 'none'}; `llmk plugins` lists them",
            )
        return Settings(self.config.model_copy(update={"plugin": sections}), self.user, self.checkpoint, self.plugins)

    def _validate_section(self, name: str, values: Mapping[str, Any], schema: type[BaseModel]) -> dict[str, Any]:
        fields = schema.model_fields
        parsed = {
            key: parse_text(value, fields[key].annotation) if isinstance(value, str) and key in fields else value
            for key, value in values.items()
        }
        try:
            return schema.model_validate(parsed, extra="forbid").model_dump()
        except ValidationError as error:
            raise _bad_values(error, ("plugin", name), self._origin, list(fields)) from error

    def _origin(self, path: Path) -> Origin:
        path = canonical(path)
        for layer in (*self.user, self.checkpoint, self.plugins):
            if path in layer:
                return layer[path].origin
            below = [entry.origin for key, entry in layer.items() if key[: len(path)] == path]
            if below:
                return below[0]
        return Origin("default")


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    file: FilePath | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: FilePath | None = None,
) -> Settings:
    """Merges flags (dotted path to value), environment variables and file over the core's defaults.

    If ``file`` is given, it must exist; otherwise ``llmk.toml`` in ``cwd`` (by default the current folder) is read if
    it exists. Plugins' sections are validated later, when the plugins are known. Raises ConfigError with the key, the
    value and its origin.
    """
    chosen = file or (cwd or FilePath.cwd()) / FILE_NAME
    from_toml = from_file(chosen) if file is not None or chosen.is_file() else {}
    user = (from_flags(flags or {}), from_environment(os.environ if environ is None else environ), from_toml)
    return _build(user, {}, {})


def _build(user: tuple[Layer, ...], checkpoint: Layer, plugins: Layer) -> Settings:
    merged: dict[str, Any] = {}
    for layer in (plugins, checkpoint, *reversed(user)):
        for path, entry in layer.items():
            _put(merged, path, entry)
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        finder = Settings(Config(), user, checkpoint, plugins)
        raise _bad_values(error, (), finder._origin, []) from error
    return Settings(config, user, checkpoint, plugins)


def _put(tree: dict[str, Any], path: Path, entry: Entry) -> None:
    for key in path[:-1]:
        inner = tree.get(key)
        if not isinstance(inner, dict):
            inner = tree[key] = {}
        tree = inner
    tree[path[-1]] = entry.value


def _get(tree: Mapping[str, Any], path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _flatten(value: Mapping[str, Any], prefix: Path) -> list[tuple[Path, Any]]:
    rows: list[tuple[Path, Any]] = []
    for key, item in value.items():
        path = (*prefix, key)
        rows += _flatten(item, path) if isinstance(item, Mapping) else [(path, item)]
    return rows


def _bad_values(error: ValidationError, prefix: Path, origin_of: Any, keys: list[str]) -> ConfigError:
    """Converts pydantic's errors into one error with each path, value and origin."""
    messages: dict[Path, str] = {}
    for problem in error.errors():
        location = tuple(str(part) for part in problem["loc"])
        path = _known_prefix((*prefix, *location)) if not prefix else (*prefix, *location)
        text = problem["msg"][:1].lower() + problem["msg"][1:]
        if problem["type"] == "extra_forbidden":
            text = f"unknown key; known keys are {', '.join(keys) or 'none'}"
        messages.setdefault(path, f"{join(path)} = {problem['input']!r} (set by {origin_of(path)}): {text}")
    return ConfigError("bad configuration: " + "\n".join(messages.values()), hint=_choices(list(messages)))


def _known_prefix(path: Path) -> Path:
    """``path`` without the parts that pydantic appends for branches of a union and items of a list."""
    table = leaves()
    return next((path[:n] for n in range(1, len(path) + 1) if path[:n] in table), path)


def _choices(paths: list[Path]) -> str:
    table = leaves()
    return "; ".join(f"{join(p)}: {table[p].description}" for p in paths if p in table)
