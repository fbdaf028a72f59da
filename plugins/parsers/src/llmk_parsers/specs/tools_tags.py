"""Tool calls in tags, with arguments in tags of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llmk.api import OK, ParserQuery, ParserSpec, Verdict
from llmk_parsers.claims import is_model, is_other_model, lacks, mentions, model_type, only_by_name, template_of
from llmk_parsers.spec_of import writing

_STEP, _STEP5, _MIMO = ("step3p5", "step3_5"), ("step5",), ("mimo",)
_HY = ("hy", "hunyuan")
_LING, _LAGUNA = ("bailing", "ling"), ("laguna", "poolside")
_ONE_LINE = "</arg_key><arg_value>"
_M3_MARK = "]<]minimax[>["

_FUNCTION = "<function=…> with <parameter=…> tags"
_PAIRS = "<tool_call>name with <arg_key> and <arg_value> tags"
_DSML = "DSML tags, which mark strings"


def _function(query: ParserQuery) -> Verdict:
    return mentions(query, "<tool_call>", "<function=", "<parameter=")


def _qwen3_coder(query: ParserQuery) -> Verdict:
    return _function(query) & is_other_model(query, *_STEP, *_STEP5, *_MIMO)


def _step5(query: ParserQuery) -> Verdict:
    return _function(query) & is_model(query, *_STEP5)


def _step3p5(query: ParserQuery) -> Verdict:
    return _function(query) & is_model(query, *_STEP)


def _mimo(query: ParserQuery) -> Verdict:
    return _function(query) & is_model(query, *_MIMO)


def _seed_oss(query: ParserQuery) -> Verdict:
    return mentions(query, "<seed:tool_call>", "<function=")


def _pairs(query: ParserQuery) -> Verdict:
    return mentions(query, "<tool_call>", "<arg_key>", "<arg_value>") & lacks(query, "<tool_sep>", "<tool_calls>")


def _glm45(query: ParserQuery) -> Verdict:
    return _pairs(query) & lacks(query, _ONE_LINE) & is_other_model(query, *_LING, *_LAGUNA)


def _glm47(query: ParserQuery) -> Verdict:
    return _pairs(query) & mentions(query, _ONE_LINE) & is_other_model(query, *_LING, *_LAGUNA)


def _ling3(query: ParserQuery) -> Verdict:
    return _pairs(query) & is_model(query, *_LING)


def _poolside_v1(query: ParserQuery) -> Verdict:
    return _pairs(query) & is_model(query, *_LAGUNA)


def _hy_v3(query: ParserQuery) -> Verdict:
    return mentions(query, "<tool_calls", "<tool_sep", "<arg_key", "<arg_value")


def _hy_v4(query: ParserQuery) -> Verdict:
    return mentions(query, "<tool_calls", "<arg_key", "<arg_value") & lacks(query, "<tool_sep") & is_model(query, *_HY)


def _minimax_m2(query: ParserQuery) -> Verdict:
    return mentions(query, "minimax:tool_call", "<invoke") & lacks(query, _M3_MARK)


def _minimax_m3(query: ParserQuery) -> Verdict:
    return mentions(query, _M3_MARK, "<invoke")


def _step3(query: ParserQuery) -> Verdict:
    return mentions(query, "steptml:")


def _minicpm5(query: ParserQuery) -> Verdict:
    return mentions(query, "<function name=", "<param name=")


def _gigachat35(query: ParserQuery) -> Verdict:
    return mentions(query, "｜GCML｜")


def _dsml(listed: str, model: str) -> Callable[[ParserQuery], Verdict]:
    """By the mark and the name of the list, which templates may put together; DeepSeek's own checkpoints have none."""

    def claims(query: ParserQuery) -> Verdict:
        if not template_of(query) and model_type(query) == model:
            return OK
        return mentions(query, "｜DSML｜", listed)

    return claims


def _spec(
    name: str, parser: str, summary: str, claims: Callable[[ParserQuery], Verdict], *, special: bool = True
) -> ParserSpec:
    # Other dialects use the same tags with less around them.
    score = 1 if name == "minimax_m3" else 0
    return writing(name, parser, claims, summary, special_tokens=special, score=score)


TOOL_PARSERS = [
    _spec("qwen3_coder", "Qwen3Coder", _FUNCTION, _qwen3_coder, special=False),
    _spec("qwen3_xml", "Qwen3Xml", _FUNCTION, partial(only_by_name, like="qwen3_coder"), special=False),
    _spec("step3p5", "Step3p5", _FUNCTION, _step3p5, special=False),
    _spec("step5", "Step5", _FUNCTION, _step5, special=False),
    _spec("mimo", "MiMo", _FUNCTION, _mimo, special=False),
    _spec("seed_oss", "SeedOss", f"{_FUNCTION}, between <seed:tool_call> tags", _seed_oss),
    _spec("glm45", "Glm45", _PAIRS, _glm45),
    _spec("glm47", "Glm47", _PAIRS, _glm47),
    _spec("ling3", "Ling3", _PAIRS, _ling3),
    _spec("poolside_v1", "PoolsideV1", _PAIRS, _poolside_v1),
    _spec("hy_v3", "HyV3", f"a list of {_PAIRS}", _hy_v3),
    _spec("hy_v4", "HyV4", f"a list of {_PAIRS}", _hy_v4),
    _spec("minimax_m2", "MiniMaxM2", "<invoke> with <parameter> tags", _minimax_m2),
    _spec("minimax_m3", "MiniMaxM3", "<invoke> with nested elements, all after a mark", _minimax_m3),
    _spec("step3", "Step3", "<steptml:invoke> tags", _step3),
    _spec("minicpm5", "MiniCpm5", "XML with <function> and <param> tags", _minicpm5, special=False),
    _spec("deepseek_v32", "DeepSeekV32", _DSML, _dsml("function_calls>", "deepseek_v32")),
    _spec("deepseek_v4", "DeepSeekV4", _DSML, _dsml("tool_calls>", "deepseek_v4")),
    _spec("deepseek_v41", "DeepSeekV41", _DSML, _dsml(" calls>", "deepseek_v41")),
    _spec("gigachat35", "GigaChat35", _DSML, _gigachat35),
]
