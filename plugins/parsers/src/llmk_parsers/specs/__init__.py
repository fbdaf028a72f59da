"""The plugin module of ``llmk-parsers``: the parsers of all modules of this package.

Each has specs for one family of dialects, in ``REASONING_PARSERS`` and ``TOOL_PARSERS``, with the claims that recognise
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from llmk.api import ParserSpec, hookimpl


@hookimpl
def llmk_reasoning_parsers() -> list[ParserSpec]:
    """Reasoning parsers."""
    return list(_all("REASONING_PARSERS"))


@hookimpl
def llmk_tool_parsers() -> list[ParserSpec]:
    """Tool parsers."""
    return list(_all("TOOL_PARSERS"))


def _all(kind: str) -> Iterator[ParserSpec]:
    for module in iter_modules(__path__):
        yield from getattr(import_module(f"{__name__}.{module.name}"), kind, ())
