"""The messages of Beam: harmony's, but a message to a tool has its name as the recipient, and its arguments in tags."""

from __future__ import annotations

from llmk_parsers.channels import Kind, recipient_of
from llmk_parsers.harmony import Harmony


class BeamChannels(Harmony):
    """Thoughts in the channel ``analysis``, calls there too but with a recipient, and answers in ``final``."""

    def _kind_of(self, header: str) -> Kind:
        return "call" if recipient_of(header) else super()._kind_of(header)
