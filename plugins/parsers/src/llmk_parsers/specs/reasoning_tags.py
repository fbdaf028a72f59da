"""Reasoning between other tags, and in channels and sections."""

from __future__ import annotations

from functools import partial

from llmk.api import OK, ParserQuery, Verdict
from llmk_parsers.claims import is_model, is_other_model, lacks, mentions, model_type, only_by_name, template_of
from llmk_parsers.spec_of import dialect

_family = partial(dialect, "reasoning", score=1)
_tokens = partial(_family, special_tokens=True)


def _says(*texts: str) -> partial[Verdict]:
    return partial(_mentions, texts=texts)


def _mentions(query: ParserQuery, texts: tuple[str, ...]) -> Verdict:
    return mentions(query, *texts)


def _exaone(query: ParserQuery) -> Verdict:
    return mentions(query, "<th") & is_model(query, "exaone")


def _openai(query: ParserQuery) -> Verdict:
    return mentions(query, "<|channel|>", "analysis") & lacks(query, "<rfl:parameter")


def _kimi_k3(query: ParserQuery) -> Verdict:
    """Checkpoints write prompts with code of their own, so they may lack a template."""
    if not template_of(query) and model_type(query) == "kimi_k3":
        return OK
    return mentions(query, "<|open|>", "<|sep|>", "think")


def _muse(query: ParserQuery) -> Verdict:
    return mentions(query, "<atem:function_calls>") & is_other_model(query, "muse_glimmer")


def _muse_glimmer(query: ParserQuery) -> Verdict:
    return mentions(query, "<atem:function_calls>") & is_model(query, "muse_glimmer")


REASONING_PARSERS = [
    _tokens(
        "apertus",
        "Apertus",
        _says("<|inner_prefix|>"),
        "<|inner_prefix|> and <|inner_suffix|>",
        markers=("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    _tokens("beam", "Beam", _says("<rfl:parameter"), "messages in channels"),
    _tokens("command", "Command", _says("<|START_THINKING|>"), "sections of Cohere's models"),
    *(
        _tokens(name, "Command", partial(only_by_name, like="command"), "the same as command", module="command")
        for name in ("cohere_command3", "cohere_command4")
    ),
    _family("exaone", "Exaone", _exaone, "think or thought tags"),
    _tokens(
        "gemma4",
        "Gemma4",
        _says("<|channel>"),
        "<|channel>thought and <channel|>",
        markers=("<|channel>", "<channel|>"),
    ),
    _family("granite", "Granite", _says("Here is my thought process"), "sentences that announce thoughts"),
    _tokens("inkling", "Inkling", _says("<|content_thinking|>"), "messages whose tokens say what they are"),
    _tokens("k2_horizon", "K2Horizon", _says("<ifm|think"), "tags for three depths of thinking"),
    _tokens(
        "kimi_k3",
        "KimiK3",
        _kimi_k3,
        "XTML elements",
        markers=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ),
    _family("kimi", "Kimi", _says("◁think▷"), "tags of triangles", markers=("◁think▷", "◁/think▷")),
    _tokens("minimax_m3", "MiniMaxM3", _says("<mm:think>"), "<mm:think> tags", markers=("<mm:think>", "</mm:think>")),
    _tokens("mistral", "Mistral", _says("[THINK]"), "[THINK] and [/THINK]", markers=("[THINK]", "[/THINK]")),
    _tokens("muse", "Muse", _muse, "messages to self"),
    _tokens("musespark1x", "Muse", partial(only_by_name, like="muse"), "the same as muse", module="muse"),
    _tokens("muse_glimmer", "MuseGlimmer", _muse_glimmer, "messages to self", module="muse"),
    _tokens("openai_gptoss", "OpenAIGptOss", _openai, "harmony's channel analysis"),
    _tokens("plamo3", "Plamo3", _says("<|plamo:"), "begin_think and end_think"),
    _tokens(
        "seed_oss", "SeedOss", _says("<seed:think>"), "<seed:think> tags", markers=("<seed:think>", "</seed:think>")
    ),
    _tokens(
        "solar_open2",
        "SolarOpen2",
        _says("<|think:start|>"),
        "<|think:start|> and <|think:end|>",
        markers=("<|think:start|>", "<|think:end|>"),
    ),
]
