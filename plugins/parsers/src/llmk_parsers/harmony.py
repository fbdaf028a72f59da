"""The harmony format of gpt-oss: channels, recipients and content types in the headers of messages.

``<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>``. The channel
``analysis`` is reasoning, ``final`` is the answer, ``commentary`` is a call or what the model says before one. The
format is described in OpenAI's cookbook ("OpenAI harmony response format").
"""

from __future__ import annotations

import re

from llmk_parsers.channels import Channels, Kind, recipient_of

FUNCTIONS = "functions."
_BUILT_IN = ("python", "browser", "container")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class Harmony(Channels):
    """What the reasoning parser and the tool parser share."""

    ENDS = ("<|end|>", "<|return|>", "<|call|>")
    MARKS = ("<|start|>", "<|channel|>")
    HEADERS = (" to=", "<|constrain|>")

    def _kind_of(self, header: str) -> Kind:
        recipient = recipient_of(header)
        if recipient.startswith(_BUILT_IN):
            return "reasoning"
        if recipient and recipient not in ("assistant", "user", "all"):
            return "call"
        found = _CHANNEL.search(header)
        return "reasoning" if found and found.group(1) == "analysis" else "content"
