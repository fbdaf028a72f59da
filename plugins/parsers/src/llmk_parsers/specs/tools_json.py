"""Tool calls as JSON objects, between tags or bare."""

from __future__ import annotations

import re
from functools import partial

from llmk.api import ParserQuery, Verdict, no
from llmk_parsers.claims import lacks, mentions, only_by_name, template_of
from llmk_parsers.spec_of import dialect, writing

_NAMED_ARGUMENTS = re.compile(r"\bname\b.*\barguments\b|\barguments\b.*\bname\b", re.DOTALL)


def _hermes(query: ParserQuery) -> Verdict:
    """Tool-call tags around JSON, not around XML as in the dialects of Qwen3-Coder and GLM."""
    verdict = mentions(query, "<tool_call>") & lacks(query, "<function=", "<arg_key>", "<|start_of_role|>")
    if not _NAMED_ARGUMENTS.search(template_of(query)):
        verdict &= no("chat_template", wanted="a call's name and arguments as JSON", found="none")
    return verdict


def _llama3_json(query: ParserQuery) -> Verdict:
    """The Llama 3 header tokens, and calls with ``parameters`` as bare JSON."""
    return mentions(query, "<|start_header_id|>", "ipython", "parameters") & lacks(
        query, "<tool_call>", "pythonic", "xLAM", "functools", "<function=", "func_name1("
    )


def _llama4_json(query: ParserQuery) -> Verdict:
    """The header tokens of Llama 4, and calls with ``parameters`` as bare JSON."""
    return mentions(query, "<|header_start|>", "parameters") & lacks(query, "func_name1(")


TOOL_PARSERS = [
    dialect(
        "tools",
        "qwen3_json",
        "Hermes",
        partial(only_by_name, like="hermes"),
        "the same as hermes",
        module="hermes",
        writer="llmk_parsers.tools.hermes:WRITER",
    ),
    writing("hermes", "Hermes", _hermes, "JSON objects between <tool_call> tags"),
    writing("llama3_json", "Llama3Json", _llama3_json, "bare JSON objects with a name and parameters"),
    writing("llama4_json", "Llama4Json", _llama4_json, "bare JSON objects with a name and parameters"),
]
