"""Reads a ``tokenizer.json``."""

from __future__ import annotations

from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken, models

_OPTIONS = (
    *("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"),
    *("fuse_unk", "byte_fallback", "ignore_merges"),
)


def parse(data: bytes) -> tokenizers.Tokenizer:
    """What ``Tokenizer.from_buffer`` returns, and in less memory.

    The library parses a model of byte pairs as a tree that it copies. Strings of the vocabulary then lie between freed
    nodes of trees, and the C library can't return pages that have one: a third of what a vocabulary of 150,000 tokens
    takes. Processes that share the pages copy them as they fill the gaps. So such a model is made of lists, and the
    rest of the file is read without it. Raises the library's errors.
    """
    whole: dict[str, Any] = msgspec.json.decode(data)
    model = whole.get("model") or {}
    if model.get("type") != "BPE":
        return tokenizers.Tokenizer.from_buffer(data)
    vocab, merges = model["vocab"], [_pair(merge) for merge in model["merges"]]
    rest = whole | {"model": model | {"vocab": {}, "merges": []}, "added_tokens": []}
    made = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(rest))
    options = {name: model[name] for name in _OPTIONS if model.get(name) is not None}
    made.model = models.BPE(vocab, merges, **options)
    # After the model, which knows their ids.
    made.add_tokens([_added(token) for token in whole.get("added_tokens") or ()])
    return made


def _pair(merge: str | list[str]) -> tuple[str, str]:
    """Older files have both parts in one string."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _added(token: dict[str, Any]) -> AddedToken:
    return AddedToken(**{name: value for name, value in token.items() if name != "id"})
