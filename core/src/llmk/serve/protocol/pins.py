"""``/v1/cache/pins``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llmk.serve.protocol.tokens import TokenizeRequest


class PinRequest(TokenizeRequest):
    """A prompt, or a conversation that is rendered first, whose blocks shall stay in the cache.

    Without ``add_generation_prompt``, the default, the template's text after the last message is cut off, so that the
    pinned tokens are a prefix of longer conversations.
    """

    id: Annotated[str, Field(min_length=1, max_length=128)]
    seconds: Annotated[float, Field(ge=0)] = 0.0
    cache_salt: str = ""
    tenant: str = ""
    add_generation_prompt: bool = False
