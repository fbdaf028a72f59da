"""The machine of dialects whose calls are Python's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from llmk.api import ParserContext
from llmk_parsers.call_reader import CallReader
from llmk_parsers.call_regions import CallRegions
from llmk_parsers.json_value import Brackets
from llmk_parsers.python_call import PythonCall


class PythonCalls(CallRegions):
    """Regions of Python calls. Positional arguments are those that the tool's schema names first."""

    LOOSE_QUOTES: ClassVar[bool] = False
    """Passed on to :class:`PythonCall`."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._tools = context.tools

    def _starts_call(self, mark: str) -> bool:
        return mark.isalpha() or mark == "_"

    def _reader(self, mark: str) -> CallReader:
        return PythonCall(self._calls, self._parameters, loose_quotes=self.LOOSE_QUOTES)

    def _brackets(self) -> Brackets:
        return Brackets("([{", ")]}", "'\"")

    def _parameters(self, name: str) -> Sequence[str]:
        for tool in self._tools:
            properties = (tool.get("parameters") or {}).get("properties")
            if tool.get("name") == name and isinstance(properties, dict):
                return list(properties)
        return ()
