"""Reasoning of PLaMo 3, on unless ``enable_thinking`` is off."""

from __future__ import annotations

from llmk_parsers.plamo import TURN_END, PlamoMarkers, marker
from llmk_parsers.think_tags import ThinkTags

_REQUESTS = marker("begin_tool_requests")


class Plamo3(PlamoMarkers, ThinkTags):
    """Markers that text does not mention; requests of tools end a block that the model forgot to close."""

    OPEN = (marker("begin_think"),)
    CLOSE = (marker("end_think"), TURN_END)
    SWITCHES = ("enable_thinking", "thinking")
    ANYWHERE = True
    CALLS = ((_REQUESTS, marker("end_tool_requests")),)
    CALL_STARTS = (_REQUESTS,)
