"""What may have ``cache_control`` (https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching)."""

from __future__ import annotations

from typing import ClassVar, Literal

from llmk.api.http.bodies import Fields


class CacheControl(Fields):
    """How long the prompt up to the end of a block stays in the cache."""

    taken: ClassVar = frozenset({"scope"})

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class Cacheable(Fields):
    """What may end a prefix that is to stay in the cache."""

    cache_control: CacheControl | None = None
