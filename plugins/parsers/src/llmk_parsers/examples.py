"""Examples for the conformance kit: answers as models write them in each dialect, and what they mean.

``examples.json`` has them by kind and dialect: the text, its reasoning, content and calls, and of the request the end
of the prompt (``tail``), ``thinking``, options and tools. Some are from the recorded cases (``tests/cases/README.md``).
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
        context=ParserContext(
            prompt_tail=row.get("tail", ""),
            thinking=row.get("thinking"),
            tools=row.get("tools", ()),
            template_options=row.get("options", {}),
        ),
    )


def _dialects(kind: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: tuple(map(_example, rows)) for name, rows in _KINDS[kind].items()})


reasoning = _dialects("reasoning")
tools = _dialects("tools")
