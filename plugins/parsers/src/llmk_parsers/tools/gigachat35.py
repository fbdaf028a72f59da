"""DSML with a mark of its own: GigaChat 3.5."""

from __future__ import annotations

from llmk_parsers.tools import deepseek_v32

_MARK = "｜GCML｜"


class GigaChat35(deepseek_v32.DeepSeekV32):
    """See the base class."""

    MARKS = deepseek_v32.dsml_tags("tool_calls", mark=_MARK)


WRITER = deepseek_v32.dsml_writer(GigaChat35.MARKS, _MARK)
