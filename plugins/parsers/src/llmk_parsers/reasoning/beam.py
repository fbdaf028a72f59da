"""Reasoning of Beam: the channel ``analysis``, of messages without a recipient."""

from __future__ import annotations

from llmk_parsers.beam_channels import BeamChannels
from llmk_parsers.channels import ChannelReasoning


class Beam(BeamChannels, ChannelReasoning):
    """Reasoning and content; calls are left to the tool parser."""
