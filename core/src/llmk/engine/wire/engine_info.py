"""What a front end knows of its engine."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from llmk.engine.wire.prompt import EmbeddingFormat


class EngineInfo(msgspec.Struct, kw_only=True):
    """What a front end must know of its engine. ``plan`` is :meth:`llmk.api.Plan.to_dict`'s; ``pickled_plan`` is the
    plan itself, where it comes from another process. ``logits_processors`` are ids that requests may name,
    ``grammars`` the kinds of grammars that they may have, ``embeddings`` what embeddings in prompts must be like.
    ``head`` is what the model computes of hidden states: the logits of tokens, or of labels, or nothing. ``executor``
    is the id of a plugin's executor that runs the steps, if one does, and ``lacks`` are sampling parameters that it
    can't do. ``shared_block_size`` is how many tokens the blocks have whose events are sent.
    """

    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    plan: dict[str, Any]
    pickled_plan: bytes = b""
    logits_processors: tuple[str, ...] = ()
    grammars: tuple[str, ...] = ()
    embeddings: EmbeddingFormat = EmbeddingFormat()
    head: Literal["tokens", "labels", ""] = "tokens"
    executor: str = ""
    lacks: tuple[str, ...] = ()
    shared_block_size: int = 0


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that died and is being started again: since when (seconds since the epoch), why, and how many attempts
    there were.
    """

    since: float
    cause: str
    attempts: int
