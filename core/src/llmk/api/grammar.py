"""The contract of grammars: which tokens a request's output may continue with.

A grammar belongs to one request. It runs on the host, while the device computes the step whose logits it constrains.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol


class Grammar(Protocol):
    """What the output of one request must match, and how far it has come.

    An exception of any method fails the request, and no other.
    """

    @abstractmethod
    def fill(self, bits: memoryview) -> None:
        """Writes which tokens may come next.

        ``bits`` are ``ceil(vocab_size / 32)`` int32 words, all 0 at first (format ``"i"``, contiguous, writable): token
        ``t`` is allowed where bit ``t % 32`` of word ``t // 32`` is 1. Where the output may end here, the tokens that
        end it must be allowed too. A row that allows nothing fails the request.
        """
        ...

    @abstractmethod
    def accept(self, tokens: Sequence[int]) -> None:
        """Advances over tokens that were added to the output, each of which was allowed. The last of them may be one
        that ends the output."""
        ...

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Takes back the last ``num_tokens`` accepted tokens. Masks of drafted tokens are filled by accepting drafts
        one by one, which are then taken back."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that must come next, in order, as far as that is known; empty where there is a choice. They are
        verified as drafts, so a wrong one costs time, not correctness."""
        return ()
