"""Calls as Hunyuan 3 writes them, without the mark after the name: Hunyuan 4."""

from __future__ import annotations

from dataclasses import replace

from llmk_parsers.tools import hy_v3


class HyV4(hy_v3.HyV3):
    """See the base class."""


WRITER = replace(hy_v3.WRITER, after_name="")
