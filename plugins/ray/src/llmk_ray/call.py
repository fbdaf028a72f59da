"""An HTTP request on its way to a replica, and what a router must know of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from llmk.api import RoutedRequest

TEXT_BLOCK, TOKENS = 256, 64
"""Characters of a prompt that are hashed together, and about how many tokens they are."""
OUTPUT = 128
"""Tokens that an answer is expected to have where no limit is lower."""
GENERATING = ("/v1/chat/completions", "/v1/completions")
"""Paths whose answers can be made again, by their seed."""


@dataclass(frozen=True, slots=True)
class Call:
    """``facts`` are for the router. ``seed`` is that of an answer that can be made again; 0: it can't."""

    method: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    facts: RoutedRequest = field(default_factory=RoutedRequest)
    seed: int = 0
    streams: bool = False

    @classmethod
    def of(cls, method: str, path: str, query: str, headers: Sequence[tuple[str, str]], body: bytes) -> Call:
        """Reads what it must know of the body. Where that is not an object, a replica says what is wrong with it."""
        call = cls(method, path, query, headers, body)
        if method != "POST" or path not in GENERATING:
            return call
        try:
            content = json.loads(body)
        except ValueError:
            return call
        if not isinstance(content, dict):
            return call
        facts = _facts(content, dict(headers))
        if content.get("seed") is None:
            content["seed"] = 1 + secrets.randbits(62)
            body = json.dumps(content).encode()
        streams = content.get("stream") is True
        return replace(call, body=body, facts=facts, seed=_seed(content), streams=streams)


def _seed(content: Mapping[str, Any]) -> int:
    seed = content["seed"]
    return seed if isinstance(seed, int) else 0


def _facts(content: Mapping[str, Any], headers: Mapping[str, str]) -> RoutedRequest:
    """The prompt as text, cut into blocks: a replica tokenizes it, and equal texts are equal tokens."""
    prompt = content.get("messages", content.get("prompt", ""))
    text = json.dumps([content.get("tools"), prompt], ensure_ascii=False)
    limits = [content.get(name) for name in ("max_completion_tokens", "max_tokens")]
    limit = min([OUTPUT, *(each for each in limits if isinstance(each, int) and each > 0)])
    key = headers.get("authorization", headers.get("x-api-key", ""))
    session = content.get("prompt_cache_key")
    return RoutedRequest(
        tenant=blake2b(key.encode(), digest_size=8).hexdigest() if key else "",
        session=session if isinstance(session, str) else "",
        blocks=_hashes(text, f"{content.get('cache_salt', '')}\0{content.get('model', '')}"),
        block_size=TOKENS,
        num_prompt_tokens=1 + len(text) * TOKENS // TEXT_BLOCK,
        expected_tokens=limit,
    )


def _hashes(text: str, salt: str) -> tuple[int, ...]:
    hashes, parent = [], salt.encode()
    for start in range(0, len(text) - TEXT_BLOCK + 1, TEXT_BLOCK):
        parent = blake2b(parent + text[start : start + TEXT_BLOCK].encode(), digest_size=8).digest()
        hashes.append(int.from_bytes(parent))
    return tuple(hashes)
