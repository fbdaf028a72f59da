"""The model's vocabulary as llguidance takes it."""

from __future__ import annotations

from collections.abc import Sequence

from llmk.api import GrammarContext

_LONGEST = 64
"""Bytes of the longest token that a text is cut into where the tokenizer's own tokens can't be used."""


class Vocabulary:
    """What :class:`llguidance.TokenizerWrapper` takes. One token is added behind the model's: the end of the output.

    ``tokens`` are their bytes; special tokens never match text. Called with a text, it returns the tokens that the
    model's tokenizer would write, for text that has no alternative.
    """

    bos_token_id = None

    def __init__(self, context: GrammarContext) -> None:
        self.tokens: Sequence[bytes] = [*context.tokens, b"<end>"]
        self.eos_token_id = len(context.tokens)
        self.special_token_ids = [*sorted(context.special_token_ids), self.eos_token_id]
        self._special = context.special_token_ids
        self._encode = context.encode
        self._prefix = "\n"
        self._prefix_ids = self._encode(self._prefix)
        self._ids: dict[bytes, int] = {}

    def __call__(self, data: bytes) -> list[int]:
        """Tokens whose bytes are just those of a text. Some tokenizers put a space before a text, and all make special
        tokens of what is spelt as one."""
        own = data.decode(errors="replace")
        ids = self._encode(own)
        if self._is(ids, data):
            return ids
        after = self._encode(self._prefix + own)
        ids = after[len(self._prefix_ids) :]
        if after[: len(self._prefix_ids)] == self._prefix_ids and self._is(ids, data):
            return ids
        return self._longest_first(data)

    def _is(self, ids: Sequence[int], data: bytes) -> bool:
        return self._special.isdisjoint(ids) and b"".join(self.tokens[token] for token in ids) == data

    def _longest_first(self, data: bytes) -> list[int]:
        """As few tokens as taking the longest that fits gives. A byte without a token ends the list: text must then be
        found token by token."""
        if not self._ids:
            known = self.tokens[: self.eos_token_id]
            self._ids = {part: token for token, part in enumerate(known) if part and token not in self._special}
        found, at = [], 0
        while at < len(data):
            sizes = range(min(_LONGEST, len(data) - at), 0, -1)
            size = next((size for size in sizes if data[at : at + size] in self._ids), 0)
            if not size:
                break
            found.append(self._ids[data[at : at + size]])
            at += size
        return found
