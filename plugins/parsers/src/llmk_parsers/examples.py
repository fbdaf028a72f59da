"""Examples for the conformance kit: answers as models write them in each dialect, and what they mean.

``examples.json`` has them by kind and dialect: the text, its reasoning, content and calls, and the options and tools of
the request. Some are from the recorded cases (``tests/cases/README.md``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from llmk.api import ParserContext
from llmk_testing.parser_example import ParserExample

_FILE = files(__package__) / "examples.json"
_KINDS: Mapping[str, Mapping[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))


def _example(row: Mapping[str, Any]) -> ParserExample:
    return ParserExample(
        text=row["text"],
        reasoning=row.get("reasoning", ""),
        content=row.get("content", ""),
        calls=[(name, arguments) for name, arguments in row.get("calls", ())],
        ids=row.get("ids", ()),
        context=ParserContext(template_options=row.get("options", {}), tools=row.get("tools", ())),
    )


def _dialects(kind: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: tuple(map(_example, rows)) for name, rows in _KINDS[kind].items()})


reasoning = _dialects("reasoning")
tools = _dialects("tools")
