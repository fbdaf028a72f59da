"""DSML with another name of the list, and a space before names: DeepSeek-V4.1."""

from __future__ import annotations

from llmk_parsers.tools import deepseek_v32


class DeepSeekV41(deepseek_v32.DeepSeekV32):
    """See the base class."""

    MARKS = deepseek_v32.dsml_tags("calls", " ")


WRITER = deepseek_v32.dsml_writer(DeepSeekV41.MARKS)
