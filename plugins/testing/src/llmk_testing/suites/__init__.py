"""The suites, one module per kind of spec. Each has ``cases(spec, bench)``, which yields the cases of one spec."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from llmk_testing.case import Case

if TYPE_CHECKING:
    from llmk_testing.bench import Bench

SUITES = {
    "platform": "platform",
    "attention": "attention",
    "linear": "linear",
    "moe": "moe",
    "op": "op",
    "op_contract": "op_contract",
    "model_source": "model_source",
    "checkpoint_format": "checkpoint_format",
    "quantization": "quantization",
    "model": "model",
    "reasoning_parser": "reasoning_parser",
    "tool_parser": "tool_parser",
    "io_processor": "io_processor",
    "policy": "policy",
    "router": "router",
    "logits_processor": "logits_processor",
    "speculator": "speculator",
    "grammar": "grammar",
    "route": "route",
    "page": "page",
    "executor": "executor",
    "launcher": "launcher",
    "stat_logger": "stat_logger",
    "command": "command",
}
"""The module of each kind of spec."""


def cases(kind: str, spec: Any, bench: Bench) -> Iterator[Case]:
    """The cases of one spec of a kind. Raises ``KeyError`` for a kind that has no suite."""
    yield from import_module(f"{__name__}.{SUITES[kind]}").cases(spec, bench)
