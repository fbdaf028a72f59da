"""The server that is loaded, and how requests to it look."""

from __future__ import annotations

import json
from typing import Any

import msgspec

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server and a model of it.

    Attributes:

    path: the route, which decides what a request looks like. api_key: empty: none. ignore_eos: answers run to their
    full length; servers that don't know the field may refuse it. body: more fields of every request.
    """

    url: str
    model: str = ""
    path: str = CHAT
    api_key: str = ""
    ignore_eos: bool = True
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}

    @property
    def chats(self) -> bool:
        """Whether requests are lists of messages."""
        return self.path.endswith("/chat/completions")

    @property
    def all_headers(self) -> dict[str, str]:
        """Those of every request."""
        return {**({"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}), **self.headers}

    def request(self, history: list[Any], new: int) -> bytes:
        """The body of a request. ``history`` has what was said, the user first, then by turns; the answer may have
        ``new`` tokens."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": new, "temperature": 0, "stream": True}
        if self.chats:
            roles = ("user", "assistant")
            body["messages"] = [{"role": roles[n % 2], "content": text} for n, text in enumerate(history)]
        else:
            body["prompt"] = history[0] if len(history) == 1 else " ".join(history)
        if self.ignore_eos:
            body["ignore_eos"] = True
        return json.dumps({**body, "stream_options": {"include_usage": True}, **self.body}).encode()
