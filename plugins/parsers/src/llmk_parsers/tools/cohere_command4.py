"""Tool calls of Cohere's Command A Plus and others, which have other markers around text than Command A."""

from __future__ import annotations

from llmk_parsers.tools.cohere_command3 import WRITER, CohereCommand

__all__ = ["WRITER", "CohereCommand"]
