"""Reads a ``tokenizer.json``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken, models

_OPTIONS = (
    *("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"),
    *("fuse_unk", "byte_fallback", "ignore_merges"),
)
"""Of a model of byte pairs."""
_FIELDS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
"""Of an added token."""


def parse(data: bytes) -> tokenizers.Tokenizer:
    """What ``Tokenizer.from_buffer`` returns, and in less memory. Raises the library's errors."""
    with suppress(Exception):  # the library then says what is wrong, or reads what is not known here
        if made := _from_lists(msgspec.json.decode(data)):
            return made
    return tokenizers.Tokenizer.from_buffer(data)


def _from_lists(whole: dict[str, Any]) -> tokenizers.Tokenizer | None:
    """A tokenizer of byte pairs; ``None``: it is of another kind.

    The library parses such a model as a tree that it copies. Strings of the vocabulary then lie between freed nodes of
    trees, and the C library can't return pages that have one: a third of what a vocabulary of 150,000 tokens takes.
    Processes that share the pages copy them as they fill the gaps. So the model is made of lists, and the rest of the
    file is read without it.
    """
    model = whole["model"]
    if model["type"] != "BPE":
        return None
    vocab, merges = model["vocab"], [_pair(merge) for merge in model["merges"]]
    rest = whole | {"model": model | {"vocab": {}, "merges": []}, "added_tokens": []}
    made = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(rest))
    options = {name: model[name] for name in _OPTIONS if model.get(name) is not None}
    made.model = models.BPE(vocab, merges, **options)
    # After the model, which knows their ids.
    made.add_tokens([AddedToken(**{name: token[name] for name in _FIELDS}) for token in whole["added_tokens"]])
    return made


def _pair(merge: str | list[str]) -> tuple[str, str]:
    """Older files have both parts in one string."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second
