"""Another name of ``qwen3_coder``, which others have two parsers for."""

from __future__ import annotations

from llmk_parsers.tools import qwen3_coder


class Qwen3Xml(qwen3_coder.Qwen3Coder):
    """See the base class."""


WRITER = qwen3_coder.WRITER
