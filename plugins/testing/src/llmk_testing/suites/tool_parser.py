"""The suite of tool parsers."""

from __future__ import annotations

from collections.abc import Iterator

from llmk.api import ParserSpec
from llmk_testing.bench import Bench
from llmk_testing.case import Case
from llmk_testing.suites.parser import parser_cases


def cases(spec: ParserSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one parser."""
    return parser_cases(spec, bench, "tool_parser")
