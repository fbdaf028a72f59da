"""Makes docs/configuration.md from the schema: every option with its flag, variable, type, default and meaning.

Without arguments, compares it with the committed page and exits with 1 where they differ; with ``--write``, writes it.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from llmk.config.schema import Config

PAGE = Path(__file__).resolve().parent.parent / "docs/configuration.md"

PREAMBLE = """\
# Configuration

<!-- Made by tools/config_reference.py from llmk.config.schema; `make docs` writes it anew. -->

Every option can be given in three places, of which the first that names it wins:

1. a flag: `--cache.block-size 32`;
2. an environment variable: `LLMK__CACHE__BLOCK_SIZE=32`;
3. a file: `llmk.toml` in the working directory, or the one that `--config FILE` names.

Below them stand what the checkpoint says, what plugins advise for this machine and model, and the defaults that this
page shows. `llmk config show --origin` prints every value with who set it and why. Unknown keys are refused, with the
nearest known one. In flags and variables, lists are comma-separated or JSON.

```toml
# llmk.toml
[model]
path = "/models/my-model"
max_model_len = 8192

[select.attention]
prefer = ["cpu.attention"]

[server]
port = 8080
```
"""


PLUGINS = """\
## `[plugin.<name>]`

A plugin's own options. Their schema is the plugin's (hook `llmk_config_schema`); unknown keys are refused there too.
"""


def render() -> str:
    """The whole page."""
    paths: dict[type[BaseModel], list[str]] = {}
    for path, model in _sections(Config, ""):
        paths.setdefault(model, []).append(path)
    return "\n".join([PREAMBLE, *(_section(names, model) for model, names in paths.items()), PLUGINS])


def difference(page: Path = PAGE) -> str:
    """What changed since the page was written, as a unified diff; empty where nothing did."""
    committed = page.read_text() if page.exists() else ""
    rows = difflib.unified_diff(committed.splitlines(), render().splitlines(), "committed", "now", lineterm="", n=1)
    return "\n".join(rows)


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
        lines.append(f"| `{name}` | {_type(properties[name])} | {_default(field)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    names = {"string": "text", "array": "list", "object": "table", "boolean": "true/false"}
    name: str = names.get(schema["type"], schema["type"])
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


def main() -> int:
    """Compares or writes; 1 where the page is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    if parser.parse_args().write:
        PAGE.write_text(render())
        return 0
    changed = difference()
    if changed:
        print(f"{changed}\n\ndocs/configuration.md is out of date: run `make docs`.")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
