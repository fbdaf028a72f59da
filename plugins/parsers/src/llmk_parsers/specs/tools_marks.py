"""Tool calls as a name and an object, between markers that are special tokens."""

from __future__ import annotations

from collections.abc import Callable

from llmk.api import ParserQuery, ParserSpec, Verdict
from llmk_parsers.claims import lacks, mentions
from llmk_parsers.spec_of import writing

_FENCE = "```json"
_NAMED = "a name and a JSON object between markers"
_BRACES = "call:name{key:value}, with markers for quotes"


def _kimi_k2(query: ParserQuery) -> Verdict:
    return mentions(query, "<|tool_calls_section_begin|>")


def _deepseek_v3(query: ParserQuery) -> Verdict:
    return mentions(query, "tool▁calls▁begin", "tool▁sep", _FENCE)


def _deepseek_v31(query: ParserQuery) -> Verdict:
    return mentions(query, "tool▁calls▁begin", "tool▁sep") & lacks(query, _FENCE)


def _apertus(query: ParserQuery) -> Verdict:
    return mentions(query, "<|tools_prefix|>")


def _gemma4(query: ParserQuery) -> Verdict:
    return mentions(query, "<|tool_call>", '<|"|>')


def _functiongemma(query: ParserQuery) -> Verdict:
    return mentions(query, "<start_function_call>")


def _spec(name: str, parser: str, summary: str, claims: Callable[[ParserQuery], Verdict]) -> ParserSpec:
    return writing(name, parser, claims, summary, special_tokens=True)


TOOL_PARSERS = [
    _spec("kimi_k2", "KimiK2", f"an id, {_NAMED}", _kimi_k2),
    _spec("deepseek_v3", "DeepSeekV3", _NAMED, _deepseek_v3),
    _spec("deepseek_v31", "DeepSeekV31", _NAMED, _deepseek_v31),
    _spec("apertus", "Apertus", "a list of JSON objects, with names as keys", _apertus),
    _spec("gemma4", "Gemma4", _BRACES, _gemma4),
    _spec("functiongemma", "FunctionGemma", _BRACES, _functiongemma),
]
