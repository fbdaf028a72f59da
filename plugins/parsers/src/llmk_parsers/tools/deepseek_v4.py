"""DSML with another name of the list: DeepSeek-V4."""

from __future__ import annotations

from llmk_parsers.tools import deepseek_v32


class DeepSeekV4(deepseek_v32.DeepSeekV32):
    """See the base class."""

    MARKS = deepseek_v32.dsml_tags("tool_calls")


WRITER = deepseek_v32.dsml_writer(DeepSeekV4.MARKS)
