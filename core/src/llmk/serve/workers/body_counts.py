"""The first and cheapest check of a request: the number of entries of all fields whose cost depends on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmk.api import RequestError
from llmk.config.limits_section import LimitsSection
from llmk.engine.text.input_processor import check_length
from llmk.engine.wire.sampling_params import SamplingParams

_COUNTED = {
    "messages": "messages",
    "tools": "tools",
    "stop": "stop",
    "stop_sequences": "stop",
    "bad_words": "bad_words",
    "stop_token_ids": "stop_token_ids",
    "allowed_token_ids": "allowed_token_ids",
    "logit_bias": "logit_bias",
    "logits_processors": "logits_processors",
    "metadata": "metadata",
}
"""Fields whose entries are limited, by the keys of the limits."""
_CONVERSATIONS = ("messages", "input", "items", "system")
"""Fields that have messages, items or parts."""
_PARTS = ("content", "tool_calls", "output", "summary")
_NESTED = (dict, list)
_NAMES = ("cache_salt", "tenant", "id", "model", "user", "safety_identifier", "prompt_cache_key", "reasoning_effort")


def check_counts(body: Mapping[str, Any], limits: LimitsSection, max_model_len: int) -> None:
    """Raises :class:`~llmk.api.RequestError`, with the field and the key, if a body exceeds a limit."""
    longest = max(body, key=len, default="")
    _check(longest[:64], len(longest), limits.name_characters, "characters in its name", "name_characters")
    for name, key in _COUNTED.items():
        if isinstance(found := body.get(name), list | dict):
            _check(name, len(found), getattr(limits, key), "entries", key)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not all(isinstance(item, int) for item in prompt[:1]):
        _check("prompt", len(prompt), limits.prompts, "prompts", "prompts")
        check_length(max((len(item) for item in prompt if isinstance(item, list)), default=0), max_model_len)
    elif isinstance(prompt, list):
        check_length(len(prompt), max_model_len)
    if isinstance(found := body.get("prompt_embeds"), list):
        _check("prompt_embeds", len(found), limits.prompts, "prompts", "prompts")
    for name in ("stop", "bad_words"):
        _check(
            name, _characters(body.get(name)), getattr(limits, f"{name}_characters"), "characters", f"{name}_characters"
        )
    for name in _NAMES:
        if isinstance(found := body.get(name), str):
            _check(name, len(found), limits.name_characters, "characters", "name_characters")
    for name in _CONVERSATIONS:
        if isinstance(found := body.get(name), list) and isinstance(next(iter(found), None), dict):
            _check(name, len(found), limits.parts, "entries", "parts")
            _check(name, sum(map(_parts, found)), limits.parts, "parts and tool calls", "parts")
    if isinstance(tokens := body.get("tokens"), list):
        _check("tokens", len(tokens), limits.tokens, "tokens", "tokens")


def check_bad_words(params: SamplingParams, limits: LimitsSection) -> None:
    """Checks the total number of tokens of bad words: each step compares all of them for each choice."""
    tokens = sum(map(len, params.bad_word_ids)) * params.n
    _check("bad_words", tokens, limits.bad_words_tokens, "tokens, times 'n',", "bad_words_tokens")


def check_embeddings(embeddings: Sequence[str], n: int, limits: LimitsSection) -> None:
    """Checks the total size of embeddings, in base64: each choice has its own."""
    num_bytes = sum(len(text) // 4 * 3 for text in embeddings) * n
    _check("prompt_embeds", num_bytes, limits.prompt_embeds_bytes, "bytes, times 'n',", "prompt_embeds_bytes")


def check_values(body: Mapping[str, Any], most: int) -> None:
    """The same for a body whose fields only a plugin knows: how many values there are at any depth."""
    found, left = 0, [body.values()]
    while left:
        values = left.pop()
        found += len(values)
        if found > most:
            raise RequestError(f"the body has {found} values or more; no more than {most} may be (limits.io_values)")
        left += [value.values() if isinstance(value, dict) else value for value in values if type(value) in _NESTED]


def _check(field: str, found: int, most: int, what: str, key: str) -> None:
    if found > most:
        raise RequestError(f"'{field}' has {found} {what}; the limit is {most} (limits.{key})", param=field)


def _parts(message: Any) -> int:
    """How many parts a message or an item has, with the parts of parts: results of tools have some."""
    if not isinstance(message, dict):
        return 0
    lists = [found for name in _PARTS if isinstance(found := message.get(name), list)]
    nested = [part for parts in lists for part in parts if isinstance(part, dict) and "content" in part]
    return sum(map(len, lists)) + sum(map(_parts, nested))


def _characters(texts: Any) -> int:
    if isinstance(texts, str):
        return len(texts)
    return sum(len(text) for text in texts if isinstance(text, str)) if isinstance(texts, Iterable) else 0
