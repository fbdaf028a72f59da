"""``/v1/cache/pins``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llmk.serve.protocol.tokens import TokenizeRequest


class PinRequest(TokenizeRequest):
    """A prompt, or a conversation to be rendered first, whose blocks are to stay in the cache.

    The last message's end is cut off with what the template puts behind it, if ``add_generation_prompt`` is off, which
    it is by default: so what is pinned is a prefix of longer conversations.
    """

    id: Annotated[str, Field(min_length=1, max_length=128)]
    seconds: Annotated[float, Field(ge=0)] = 0.0
    cache_salt: str = ""
    tenant: str = ""
    add_generation_prompt: bool = False
