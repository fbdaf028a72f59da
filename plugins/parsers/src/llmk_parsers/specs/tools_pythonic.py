"""Tool calls as Python's."""

from __future__ import annotations

from llmk.api import ParserQuery, Verdict
from llmk_parsers.claims import is_model, lacks, mentions
from llmk_parsers.spec_of import writing


def _pythonic(query: ParserQuery) -> Verdict:
    """The format in the prompt, of others than Llama 4."""
    return mentions(query, "func_name1(") & lacks(query, "<|header_start|>")


def _llama4_pythonic(query: ParserQuery) -> Verdict:
    """The header tokens of Llama 4, and the format in the prompt."""
    return mentions(query, "<|header_start|>", "func_name1(")


def _lfm2(query: ParserQuery) -> Verdict:
    """The model: templates need not mention the markers."""
    return mentions(query, "tools") & is_model(query, "lfm2")


def _olmo3(query: ParserQuery) -> Verdict:
    """The tags, around calls rather than tags."""
    return mentions(query, "<function_calls>", "functions") & lacks(query, "<invoke", "DSML")


TOOL_PARSERS = [
    writing("pythonic", "Pythonic", _pythonic, "a list of Python calls; also ToolACE"),
    writing("llama4_pythonic", "Llama4Pythonic", _llama4_pythonic, "a list of Python calls"),
    writing("lfm2", "Lfm2", _lfm2, "Python calls behind <|tool_call_start|>", special_tokens=True),
    writing("olmo3", "Olmo3", _olmo3, "lines of Python calls between <function_calls> tags"),
]
