"""Prompts that are not all tokens: runs of token ids, and runs of embeddings in their place."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

KEY_BYTES = 16
"""Length of the key of an embedding."""


class EmbeddingRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Embeddings of ``length`` positions of a prompt, from number ``start`` on, which are not looked up by token id.

    ``data`` are the bytes of a contiguous tensor ``[length, size]`` of torch's ``dtype`` of that name. ``keys`` are
    hashes of its rows, of :data:`KEY_BYTES` bytes each, by which the prefix cache knows their content.
    """

    start: int
    length: int
    dtype: str
    data: bytes
    keys: bytes

    @property
    def stop(self) -> int:
        """The position behind the last one."""
        return self.start + self.length

    def after(self, position: int) -> EmbeddingRun:
        """What is left of it from ``position`` on, which is before its end."""
        if position <= self.start:
            return self
        skipped = position - self.start
        data = self.data[len(self.data) // self.length * skipped :]
        return EmbeddingRun(position, self.length - skipped, self.dtype, data, self.keys[KEY_BYTES * skipped :])

    def keys_between(self, start: int, stop: int) -> bytes:
        """The keys of its positions between ``start`` and ``stop``."""
        first, end = max(0, start - self.start), max(0, stop - self.start)
        return self.keys[KEY_BYTES * first : KEY_BYTES * end]


class EmbeddedPrompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt with ``runs`` of embeddings, in the order of positions. At these, ``token_ids`` has the vocabulary's
    size, which is no token's id."""

    token_ids: list[int]
    runs: list[EmbeddingRun]

    def __len__(self) -> int:
        return len(self.token_ids)


class EmbeddingFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What embeddings in prompts must be like for the model of the implementation ``model``: of ``size`` elements (0:
    it takes none), which are finite in ``dtype``."""

    model: str = ""
    size: int = 0
    dtype: str = "float32"


def token_ids_of(prompt: list[int] | EmbeddedPrompt) -> list[int]:
    """The token ids of a prompt."""
    return prompt if isinstance(prompt, list) else prompt.token_ids


def left_of(runs: Sequence[EmbeddingRun], position: int) -> list[EmbeddingRun]:
    """What is left of ``runs`` from ``position`` on."""
    return [run.after(position) for run in runs if run.stop > position]
