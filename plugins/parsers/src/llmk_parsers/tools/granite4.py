"""Tool calls as those of Hermes, with text around them: Granite 4."""

from __future__ import annotations

from llmk_parsers.tools import hermes
from llmk_parsers.tools.hermes import Hermes


class Granite4(Hermes):
    """White space between calls is part of the text, which comes before, between and behind them."""

    def _start_call(self) -> int:
        said = self._said
        number = super()._start_call()
        self._said = said
        return number


WRITER = hermes.WRITER
