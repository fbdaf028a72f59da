"""Reasoning of Inkling: messages of the model, each with a token that says what its content is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from llmk_parsers.sections import Kind, Sections


class Inkling(Sections):
    """Messages of thoughts, text and calls. The prompt ends behind ``<|message_model|>``, after which a name may stand,
    which is not shown."""

    SECTIONS: ClassVar[Mapping[str, Kind]] = {
        "<|content_thinking|>": "reasoning",
        "<|content_text|>": "content",
        "<|content_invoke_tool_json|>": "call",
        "<|content_invoke_tool_text|>": "content",
        "<|content_tool_error|>": "content",
        "<|message_model|>": "header",
        "<|end_message|>": "content",
        "<|content_model_end_sampling|>": "content",
    }
    FIRST: ClassVar[Kind] = "header"
    STRIP: ClassVar[bool] = True
    ENDS: ClassVar[tuple[str, ...]] = ("<|end_message|>", "<|content_model_end_sampling|>")
