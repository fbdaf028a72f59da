"""Reasoning between ``<think>`` and ``</think>``.

The parsers of one family win over the general ones, ``qwen3`` and ``deepseek_r1``, by their score.
"""

from __future__ import annotations

from functools import partial

from llmk.api import ParserQuery, Verdict
from llmk_parsers.claims import is_model, is_other_model, lacks, mentions, only_by_name, option
from llmk_parsers.spec_of import dialect

_SWITCH = "enable_thinking"
THINK = ("<think>", "</think>")
_FAMILY = 1
_think = partial(dialect, "reasoning", markers=THINK)
_specific = partial(_think, score=_FAMILY)


def _qwen3(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>", _SWITCH)


def _deepseek_r1(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & lacks(query, _SWITCH)


def _deepseek_v31(query: ParserQuery) -> Verdict:
    return mentions(query, "<｜tool▁calls▁begin｜>", "</think>") & option(query, "thinking")


def _deepseek_v32(query: ParserQuery) -> Verdict:
    return mentions(query, "</think>", "｜DSML｜", "function_calls>")


def _deepseek_v4(query: ParserQuery) -> Verdict:
    return mentions(query, "</think>", "｜DSML｜", "tool_calls>")


def _deepseek_v41(query: ParserQuery) -> Verdict:
    return mentions(query, "</think>", "｜DSML｜", " calls>")


def _glm45(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>", "[gMASK]")


def _holo2(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & lacks(query, _SWITCH) & option(query, "thinking") & is_model(query, "qwen3_vl")


def _kimi_k2(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>", "<|im_middle|>")


def _minimax_m2(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>", "<minimax:tool_call>")


def _nemotron_v3(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & is_model(query, "nemotron")


def _granite_thinking(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & lacks(query, "<response>") & is_model(query, "granite")


def _granite33(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>", "<response>") & is_model(query, "granite")


def _olmo3(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & is_model(query, "olmo")


def _step3(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & is_model(query, "step3") & is_other_model(query, "step3p5", "step3_5")


def _step3p5(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & is_model(query, "step3p5", "step3_5")


def _mimo(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & is_model(query, "mimo")


def _minicpm5(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>", '<function name="') & lacks(query, "<minimax:")


def _interns1(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & is_model(query, "intern")


def _hy_v3(query: ParserQuery) -> Verdict:
    return mentions(query, "<think", "no_think", "reasoning_effort") & is_other_model(query, "hy_v4", "hunyuan_v4")


def _hy_v4(query: ParserQuery) -> Verdict:
    return mentions(query, "<think", "no_think", "reasoning_effort") & is_model(query, "hy_v4", "hunyuan_v4")


def _gigachat35(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>", "｜GCML｜")


def _ling3(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & is_model(query, "bailing", "ling")


def _minicpmv(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & is_model(query, "minicpmv")


def _poolside_v1(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & is_model(query, "laguna", "poolside")


def _step5(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & is_model(query, "step5")


def _hunyuan_a13b(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>", "<answer>") & is_model(query, "hunyuan")


def _ernie45(query: ParserQuery) -> Verdict:
    return mentions(query, "<think>") & is_model(query, "ernie")


REASONING_PARSERS = [
    _think("qwen3", "Qwen3", _qwen3, "think tags, with the option enable_thinking"),
    _think("deepseek_r1", "DeepSeekR1", _deepseek_r1, "think tags of models that always think"),
    _think("deepseek_v3", "DeepSeekV3", partial(only_by_name, like="deepseek_v31"), "the same as v31"),
    *(
        _specific(name, parser, claims, "think tags, with the option thinking", module="deepseek_v3")
        for name, parser, claims in (
            ("deepseek_v31", "DeepSeekV3", _deepseek_v31),
            ("deepseek_v32", "DeepSeekV3", _deepseek_v32),
            ("deepseek_v4", "DeepSeekV4", _deepseek_v4),
            ("deepseek_v41", "DeepSeekV4", _deepseek_v41),
        )
    ),
    _specific("ernie45", "Ernie45", _ernie45, "think tags, and response tags that are dropped"),
    _specific("gigachat35", "GigaChat35", _gigachat35, "think tags, with the option reasoning"),
    _specific("glm45", "Glm45", _glm45, "think tags, with the option enable_thinking"),
    _think("glm47", "Glm45", partial(only_by_name, like="glm45"), "the same as glm45", module="glm45"),
    _specific("granite_thinking_parser", "GraniteThinking", _granite_thinking, "think tags of Granite 4"),
    _specific("granite33", "Granite33", _granite33, "think tags, and response tags that are dropped"),
    _specific("holo2", "Holo2", _holo2, "think tags, with the option thinking"),
    _specific("hunyuan_a13b", "HunyuanA13B", _hunyuan_a13b, "think tags, and answer tags that are dropped"),
    _specific("hy_v3", "HunyuanV3", _hy_v3, "think tags, with the option reasoning_effort"),
    _specific("hy_v4", "HunyuanV4", _hy_v4, "think tags, with the option reasoning_effort", module="hy_v3"),
    _specific("interns1", "InternS1", _interns1, "think tags of Intern-S1 and InternLM"),
    _specific("kimi_k2", "KimiK2", _kimi_k2, "think tags, with the option thinking"),
    _specific("ling3", "Ling3", _ling3, "think tags, with the options thinking and enable_thinking"),
    _specific("mimo", "MiMo", _mimo, "think tags, with the option enable_thinking"),
    _specific("minicpm5", "MiniCpm5", _minicpm5, "think tags, with the option enable_thinking"),
    _specific("minicpmv", "MiniCpm5", _minicpmv, "think tags, with the option enable_thinking", module="minicpm5"),
    _specific("minimax_m2", "MiniMaxM2", _minimax_m2, "think tags of MiniMax M2"),
    dialect(
        "reasoning",
        "minimax_m2_append_think",
        "MiniMaxM2AppendThink",
        partial(only_by_name, like="minimax_m2"),
        "no reasoning: content that starts with <think>",
        examples="",
    ),
    _specific("nemotron_v3", "NemotronV3", _nemotron_v3, "think tags, with the option force_nonempty_content"),
    _specific("olmo3", "Olmo3", _olmo3, "think tags of models that always think"),
    _specific("poolside_v1", "DeepSeekV3", _poolside_v1, "think tags, with the option thinking", module="deepseek_v3"),
    _specific("step3", "Step3", _step3, "think tags of models that always think"),
    _specific("step3p5", "Step3p5", _step3p5, "think tags with line breaks of their own"),
    _specific("step5", "DeepSeekR1", _step5, "think tags of models that always think", module="deepseek_r1"),
]
