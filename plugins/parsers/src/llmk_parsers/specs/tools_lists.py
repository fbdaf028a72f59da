"""Tool calls as lists of JSON objects, or as objects with keys of their own."""

from __future__ import annotations

from functools import partial

from llmk.api import ParserQuery, ParserSpec, Verdict
from llmk_parsers.claims import is_model, lacks, mentions
from llmk_parsers.spec_of import writing


def _granite(query: ParserQuery) -> Verdict:
    """Granite's roles, and calls without a closing tag."""
    return mentions(query, "<|start_of_role|>", "tool_call") & lacks(query, "</tool_call>")


def _granite4(query: ParserQuery) -> Verdict:
    """Granite's roles, and calls between tags."""
    return mentions(query, "<|start_of_role|>", "</tool_call>")


def _granite_20b_fc(query: ParserQuery) -> Verdict:
    """The library of functions, and calls behind a tag."""
    return mentions(query, "<function_call>", "<|function_call_library|>")


def _tool_calls_tags(query: ParserQuery, *, models: tuple[str, ...]) -> Verdict:
    """Calls as JSON between tags that several families have."""
    return mentions(query, "<tool_calls>", "name", "arguments") & lacks(query, "<arg_key>") & is_model(query, *models)


def _internlm(query: ParserQuery) -> Verdict:
    """The marker of plugins."""
    return mentions(query, "<|plugin|>")


def _phi4_mini_json(query: ParserQuery) -> Verdict:
    """The word before calls."""
    return mentions(query, "functools[")


def _phi4_mini(query: ParserQuery) -> Verdict:
    """The marker of tools, in the template of the checkpoint."""
    return mentions(query, "<|tool|>") & lacks(query, "functools[") & is_model(query, "phi")


def _gigachat3(query: ParserQuery) -> Verdict:
    """The markers of GigaChat's messages, without the tags of version 3.5."""
    return mentions(query, "<|role_sep|>", "function call") & lacks(query, "GCML")


def _nemotron_json(query: ParserQuery) -> Verdict:
    """The tags of calls."""
    return mentions(query, "<TOOLCALL>")


def _pangu(query: ParserQuery) -> Verdict:
    """The tokens before and behind calls."""
    return mentions(query, "[unused11]", "[unused12]")


def _hyperclovax(query: ParserQuery) -> Verdict:
    """The messages of calls."""
    return mentions(query, "tool/function_call")


def _cohere_command(query: ParserQuery, *, text: str) -> Verdict:
    """The markers of actions, and those of ``text``."""
    return mentions(query, "<|START_ACTION|>", text)


def _cohere_command_r(query: ParserQuery) -> Verdict:
    """Actions in Markdown."""
    return mentions(query, "Action:", "tool_name") & lacks(query, "<|START_ACTION|>")


def _functionary(query: ParserQuery) -> Verdict:
    """The tag with a function's name, around JSON rather than tags."""
    return mentions(query, "<function=", "</function>") & lacks(query, "<parameter=", "<tool_call>")


def _xlam(query: ParserQuery) -> Verdict:
    """The name in the prompt, and calls as a list of JSON."""
    return mentions(query, "xLAM", "arguments")


def _mistral(query: ParserQuery) -> Verdict:
    """Calls as a name and arguments."""
    return mentions(query, "[TOOL_CALLS]", "[ARGS]")


def _mistral_list(query: ParserQuery) -> Verdict:
    """Calls as a list of JSON."""
    return mentions(query, "[TOOL_CALLS]") & lacks(query, "[ARGS]")


_JAMBA = partial(_tool_calls_tags, models=("jamba",))
_HUNYUAN = partial(_tool_calls_tags, models=("hunyuan",))
_MINIMAX = partial(_tool_calls_tags, models=("minimax",))
_COHERE3 = partial(_cohere_command, text="<|START_RESPONSE|>")
_COHERE4 = partial(_cohere_command, text="<|START_TEXT|>")

TOOL_PARSERS: list[ParserSpec] = [
    writing("granite", "Granite", _granite, "a list behind <|tool_call|>", special_tokens=True),
    writing("granite4", "Granite4", _granite4, "JSON between <tool_call> tags, and text", special_tokens=True),
    writing("granite-20b-fc", "Granite20bFc", _granite_20b_fc, "JSON behind <function_call>", special_tokens=True),
    writing("jamba", "Jamba", _JAMBA, "a list between <tool_calls> tags", special_tokens=True),
    writing("hunyuan_a13b", "HunyuanA13B", _HUNYUAN, "a list between <tool_calls> tags", special_tokens=True),
    writing("minimax", "MiniMaxM1", _MINIMAX, "lines of JSON between <tool_calls> tags", special_tokens=True),
    writing("internlm", "InternLM", _internlm, "JSON behind <|plugin|>", special_tokens=True),
    writing("phi4_mini_json", "Phi4MiniJson", _phi4_mini_json, "a list behind functools; also FireFunction"),
    writing("phi4_mini", "Phi4Mini", _phi4_mini, "a list behind <|tool_call|>", special_tokens=True),
    writing("gigachat3", "GigaChat3", _gigachat3, "JSON behind <|function_call|>", special_tokens=True),
    writing("nemotron_json", "NemotronJson", _nemotron_json, "a list between <TOOLCALL> tags", special_tokens=True),
    writing("pangu", "Pangu", _pangu, "a list between [unused11] and [unused12]", special_tokens=True),
    writing("hyperclovax", "HyperClovaX", _hyperclovax, "a list in a message to tool/function_call"),
    writing("cohere_command3", "CohereCommand", _COHERE3, "a list behind <|START_ACTION|>", special_tokens=True),
    writing("cohere_command4", "CohereCommand", _COHERE4, "a list behind <|START_ACTION|>", special_tokens=True),
    writing("cohere_command_r", "CohereCommandR", _cohere_command_r, "a list in Markdown behind Action:"),
    writing("functionary", "Functionary", _functionary, "JSON between <function=name> tags"),
    writing("xlam", "XLam", _xlam, "a list, bare or in a block of code"),
    writing("mistral", "Mistral", _mistral, "names and JSON behind [TOOL_CALLS]", special_tokens=True),
    writing("mistral_list", "MistralList", _mistral_list, "a list behind [TOOL_CALLS]", special_tokens=True),
]
