"""Tool calls as those of Hermes, with text around them: Granite 4."""

from __future__ import annotations

from llmk_parsers.call_examples import NOW, SAY, WEATHER
from llmk_parsers.tools import hermes
from llmk_parsers.tools.hermes import Hermes


class Granite4(Hermes):
    """White space between calls is part of the text, which comes before, between and behind them."""

    WHITE_SPACE = "as written"


WRITER = hermes.WRITER

EXAMPLES = (
    f"I look.\n<tool_call>\n{WEATHER}\n</tool_call>",
    f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{SAY}\n</tool_call>\nDone.",
    f"A <tool_call>{NOW}</tool_call> b <tool_call>{NOW}</tool_call> c",
)
