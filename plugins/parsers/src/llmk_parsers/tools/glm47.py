"""Calls as GLM-4.5 writes them, without line breaks: GLM-4.7 and GLM-5."""

from __future__ import annotations

from llmk_parsers.tools import glm45


class Glm47(glm45.Glm45):
    """See the base class."""


WRITER = glm45.pairs_writer("")
