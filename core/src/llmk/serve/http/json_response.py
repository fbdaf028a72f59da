"""JSON responses and server-sent events."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from llmk.api import Frame

_encode = msgspec.json.Encoder().encode


class JsonResponse(Response):
    """A response whose body is ``content`` as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encodes plain data."""
        return _encode(content)


def encoded(data: Any) -> msgspec.Raw:
    """``data`` as encoded JSON, to be embedded in other data."""
    return msgspec.Raw(_encode(data))


def server_sent_event(data: Any) -> bytes:
    """One ``data:`` event."""
    return b"data: " + _encode(data) + b"\n\n"


def named_event(frame: Frame) -> bytes:
    """One event with a name, if the frame has one."""
    name = f"event: {frame.event}\n".encode() if frame.event else b""
    return name + server_sent_event(frame.data)


END_OF_STREAM = b"data: [DONE]\n\n"
