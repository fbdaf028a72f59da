"""The messages of Muse: ``<|start|>assistant to=self<|message|>…<|eom|>``."""

from __future__ import annotations

from llmk_parsers.channels import Channels, Kind, recipient_of

_KINDS: dict[str, Kind] = {"": "content", "user": "content", "self": "reasoning", "developer": "hidden"}


class MuseChannels(Channels):
    """Thoughts go to ``self``, answers to ``user``, and calls to the tool's name."""

    ENDS = ("<|eom|>", "<|eot|>")
    HEADERS = (" to=", "to=")

    def _kind_of(self, header: str) -> Kind:
        return _KINDS.get(recipient_of(header), "call")
