"""Reasoning of Muse and Muse Glimmer: messages to ``self``."""

from __future__ import annotations

from llmk_parsers.channels import ChannelReasoning
from llmk_parsers.muse_channels import MuseChannels


class Muse(MuseChannels, ChannelReasoning):
    """Reasoning and content; calls are left to the tool parser."""


class MuseGlimmer(Muse):
    """The same, with a space before each call, as in its conversations."""

    CALL_LEAD = " "
