"""Reasoning of Muse and Muse Glimmer: messages to ``self``."""

from __future__ import annotations

from llmk_parsers.channels import ChannelReasoning
from llmk_parsers.muse_channels import MuseChannels

EXAMPLES = (
    " to=self<|message|>Twelve plus thirty.<|eom|><|start|>assistant to=user<|message|>42<|eom|>",
    " to=self<|message|>I look.<|eom|><|start|>assistant to=find<|message|><atem:function_calls>\n"
    '<atem:invoke name="find">\n<atem:parameter name="q">x</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
    "to=user<|message|>Paris.",
)
"""Answers as models write them, for the conformance kit."""


class Muse(MuseChannels, ChannelReasoning):
    """Reasoning and content; calls are left to the tool parser."""


class MuseGlimmer(Muse):
    """The same, with a space before each call, as in its conversations."""

    CALL_LEAD = " "
