"""Calls as GLM-4.5 writes them: Poolside's Laguna."""

from __future__ import annotations

from llmk_parsers.tools import glm45


class PoolsideV1(glm45.Glm45):
    """White space before a call is content."""

    STRIP = False


WRITER = glm45.WRITER
