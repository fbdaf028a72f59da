"""Reasoning of Beam: the channel ``analysis``, of messages without a recipient."""

from __future__ import annotations

from llmk_parsers.beam_channels import BeamChannels
from llmk_parsers.channels import ChannelReasoning

EXAMPLES = (
    "<|channel|>analysis<|message|>Twelve plus thirty.<|end|><|start|>assistant<|channel|>final<|message|>42<|return|>",
    "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant to=find<|channel|>analysis <|constrain|>xml"
    '<|message|><rfl:parameter name="q">\nx\n</rfl:parameter><|call|>',
    "<|channel|>final<|message|>Paris.",
)
"""Answers as models write them, for the conformance kit."""


class Beam(BeamChannels, ChannelReasoning):
    """Reasoning and content; calls are left to the tool parser."""
