"""The reference of the configuration, from the schema: every option with its type, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from generated import Page
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from llmk.config.schema import Config


def pages() -> Iterator[Page]:
    """The page of the configuration."""
    yield Page("docs/configuration.md", {"config_reference.py": render})


def render() -> str:
    """A table for each section."""
    paths: dict[type[BaseModel], list[str]] = {}
    for path, model in _sections(Config, ""):
        paths.setdefault(model, []).append(path)
    return "\n".join(_section(names, model) for model, names in paths.items())


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section that holds options of its own, with its dotted path; parents come before their children."""
    if path and any(_nested(field) is None for field in model.model_fields.values()):
        yield path, model
    for name, field in model.model_fields.items():
        if nested := _nested(field):
            yield from _sections(nested, f"{path}.{name}".lstrip("."))


def _nested(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _section(paths: list[str], model: type[BaseModel]) -> str:
    lines = [
        "## " + ", ".join(f"`[{path}]`" for path in paths),
        "",
        (model.__doc__ or "").strip(),
        "",
        "| option | type | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    properties = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        meaning = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{name}` | {type_name(properties[name])} | {_default(field)} | {meaning} |")
    return "\n".join(lines) + "\n"


def type_name(schema: dict[str, Any]) -> str:
    """The type that a JSON schema describes, as a human-readable text."""
    if options := schema.get("anyOf"):
        bounds = {name: schema[name] for name in ("minimum", "maximum") if name in schema}
        kinds = [type_name(bounds | option) for option in options if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    names = {"string": "text", "array": "list", "object": "table", "boolean": "true/false"}
    kind = schema.get("type", "object")
    name: str = names.get(kind, kind)
    low = schema.get("exclusiveMinimum", schema.get("minimum"))
    high = schema.get("maximum")
    if low is None:
        return name
    above = ">" if "exclusiveMinimum" in schema else "≥"
    return f"{name} {above} {low:g}" + (f", ≤ {high:g}" if high is not None else "")


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "empty" if value in ("", (), {}) else f"`{value}`"
