"""Admission: whether there are enough free blocks to admit a waiting sequence."""

from __future__ import annotations

from llmk.engine.cache.block_cache import BlockCache
from llmk.engine.cache.pinned_blocks import PinnedBlocks
from llmk.engine.scheduling.sequence import Sequence


class Admission:
    """Takes blocks for sequences that enter the batch, so that those in it can go on.

    Args:
        max_model_len: longest sequence, in tokens.
        chunk: tokens that one step computes at most.
        chunked_prefill: whether a prompt may be computed in pieces.
    """

    def __init__(
        self, cache: BlockCache, pins: PinnedBlocks, *, max_model_len: int, chunk: int, chunked_prefill: bool
    ) -> None:
        self._cache = cache
        self._pins = pins
        self._max_model_len = max_model_len
        self._chunk = chunk
        self._chunked_prefill = chunked_prefill
        self._refused: tuple[Sequence | None, int] = (None, 0)
        """The sequence for which there were too few blocks at the last attempt, and how many there were."""

    @property
    def refused(self) -> bool:
        """Whether the last attempt to admit a sequence failed."""
        return self._refused[0] is not None

    def forget(self, sequence: Sequence) -> None:
        """Takes note that a sequence has ended."""
        if sequence is self._refused[0]:
            self._refused = (None, 0)

    def why_never(self, sequence: Sequence) -> str:
        """Why a sequence could not run even if it had the engine to itself, or ``""``."""
        length = len(sequence.tokens)
        what = f"the {length} tokens of the prompt{' and its answer so far' if length > sequence.num_prompt else ''}"
        if not length:
            return "the prompt has no tokens"
        if length >= self._max_model_len:
            return f"{what} fill the model's context of {self._max_model_len}"
        blocks = self._cache.least_blocks(length, 1 if self._chunked_prefill else length)
        if blocks > self._cache.num_blocks:
            return (
                f"{what} need {blocks} blocks, the cache has {self._cache.num_blocks};"
                " shorten it or raise cache.num_blocks"
            )
        if not self._chunked_prefill and sequence.limit > self._chunk:
            return (
                f"prompt and output may reach {sequence.limit} tokens, one step runs {self._chunk};"
                " turn on scheduler.chunked_prefill or raise scheduler.max_num_batched_tokens"
            )
        return ""

    def awaits_another(self, sequence: Sequence) -> bool:
        """Whether another sequence is computing this one's next prefix block, which will then be a hit."""
        return not sequence.num_wanted and self._cache.awaits_another(sequence.tables, sequence.tokens)

    def cached(self, sequence: Sequence) -> int:
        """How many tokens of a waiting sequence are cached."""
        return 0 if sequence.num_wanted else self._cache.cached(sequence.tables, sequence.tokens)

    def is_short(self, sequence: Sequence, num_running: int) -> bool:
        """Whether there are too few blocks to admit a sequence to a batch of ``num_running`` others."""
        spare = self._spare(num_running)
        refused, had = self._refused
        if sequence is refused and self._cache.num_free - spare <= had:
            return True
        ahead, reuse = self._ahead(num_running), not sequence.num_wanted
        return not self._cache.fits(sequence.tables, sequence.tokens, ahead=ahead, spare=spare, reuse=reuse)

    def take(self, sequence: Sequence, num_running: int) -> int | None:
        """Takes blocks for all that is known of a sequence; returns how many of its tokens are cached.

        ``None`` where there are too few. The same sequence is not tried again before there are more, or nothing runs
        any longer: pins are dropped then.
        """
        available = self._cache.num_free - self._spare(num_running)
        refused, had = self._refused
        if sequence is refused and available <= had and num_running:
            return None
        cached = self._try(sequence, num_running)
        while cached is None and not num_running and self._pins.drop_oldest():
            cached = self._try(sequence, num_running)
        self._refused = (sequence, available) if cached is None else (None, 0)
        return cached

    def _try(self, sequence: Sequence, num_running: int) -> int | None:
        ahead, spare = self._ahead(num_running), self._spare(num_running)
        reuse = not sequence.num_wanted
        return self._cache.admit(sequence.tables, sequence.tokens, ahead=ahead, spare=spare, reuse=reuse)

    def _spare(self, num_running: int) -> int:
        """Blocks that must stay free, so that each running sequence can go on for a while."""
        return num_running * len(self._cache.groups)

    def _ahead(self, num_running: int) -> int:
        """Tokens for which a sequence has all its blocks at once; alone it gets along with fewer."""
        return self._chunk if num_running or not self._chunked_prefill else 1
