"""Calls as GLM-4.5 writes them: Ling 3."""

from __future__ import annotations

from llmk_parsers.tools import glm45


class Ling3(glm45.Glm45):
    """See the base class."""


WRITER = glm45.pairs_writer("")
