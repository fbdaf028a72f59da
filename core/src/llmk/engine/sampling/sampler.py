"""Chooses the next token of every request whose known tokens a step has computed, on the device, for the whole batch at
once.

A feature that no request in the step uses costs nothing: its tensors are not even built. Those of a feature that is
used are built when the step's requests change, and serve until they do again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.engine.device.transfer import to_host
from llmk.engine.sampling import finite_check as finite
from llmk.engine.sampling.controls import BAN, BannedSequences, Controls, ControlTable
from llmk.engine.sampling.finite_check import Problem, problem
from llmk.engine.wire.request import TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llmk.engine.device.batch import Batch
    from llmk.engine.device.sample_rows import SampleRows
    from llmk.engine.sampling.logits_processors import LogitsProcessors
    from llmk.engine.wire.step import NewRequest
    from llmk.nn.build import Build

Scores = tuple[Tensor, Tensor, Tensor, Tensor]
"""What the op ``logprobs`` returns."""


@dataclass(slots=True)
class Sampled:
    """What was sampled: ``token_ids`` int64 ``[samples]``, one per row. ``readback`` is what is read back: they, and
    whether they mean anything (:mod:`llmk.engine.sampling.finite_check`), by numbers of that ``dtype``; where they
    don't, ``processors`` may have caused it.

    ``logprobs`` are those of the rows in ``logprob_rows``, of which ``num_top`` says how many most likely tokens each
    wants. ``errors`` has message and code for rows whose logits processors failed.
    """

    token_ids: Tensor
    readback: Tensor
    dtype: torch.dtype
    logprob_rows: Sequence[int] = ()
    num_top: Sequence[int] = ()
    logprobs: Scores | None = None
    errors: dict[int, Problem] = field(default_factory=dict)
    processors: Sequence[str] = ()

    @property
    def has_details(self) -> bool:
        """Whether anything but tokens is to be read."""
        return bool(self.errors) or self.logprobs is not None

    def to_host(self) -> Sampled:
        """The same on its way to the host (:func:`~llmk.engine.device.transfer.to_host`)."""
        scores = None if self.logprobs is None else scores_to_host(self.logprobs)
        return replace(self, readback=to_host(self.readback), logprobs=scores)

    def read(self) -> tuple[list[int], dict[int, Problem]]:
        """The tokens, and what was wrong, by row, once all is on the host."""
        token_ids, states = finite.unpack(self.readback, self.dtype)
        wrong = {row: problem(state, self.processors) for row, state in enumerate(states) if state}
        return token_ids, wrong

    def logprobs_by_row(self, token_ids: list[int]) -> dict[int, TokenLogprobs]:
        """Reads the log-probabilities back; ``token_ids`` is the host's copy of :attr:`token_ids`."""
        if self.logprobs is None:
            return {}
        chosen = [token_ids[row] for row in self.logprob_rows]
        entries = read_scores(self.logprobs, chosen, self.num_top)
        return dict(zip(self.logprob_rows, entries, strict=True))


def scores_to_host(scores: Scores) -> Scores:
    """Log-probabilities on their way to the host."""
    logprob, rank, top_ids, top_logprobs = scores
    return to_host(logprob), to_host(rank), to_host(top_ids), to_host(top_logprobs)


def read_scores(scores: Scores, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Reads log-probabilities; ``num_top`` says how many most likely tokens each row keeps."""
    logprob, rank, top_ids, top_logprobs = (tensor.tolist() for tensor in scores)
    return [
        TokenLogprobs(token, logprob[i], rank[i], tuple(zip(top_ids[i][:count], top_logprobs[i][:count], strict=True)))
        for i, (token, count) in enumerate(zip(token_ids, num_top, strict=True))
    ]


class Sampler:
    """Binds the sampling ops that the plan chose."""

    def __init__(self, build: Build, num_slots: int, device: torch.device, processors: LogitsProcessors | None = None):
        self._slots = ControlTable(num_slots, device)
        self._processors = processors
        self._controls: Controls | None = None
        self._penalize: Callable[..., Tensor] = build.kernel("op", "apply_penalties")
        self._bias: Callable[..., Tensor] = build.kernel("op", "apply_bias")
        self._match: Callable[..., Tensor] = build.kernel("op", "match_suffixes")
        self._allow: Callable[..., Tensor] = build.kernel("op", "allow_tokens")
        self._mask: Callable[..., Tensor] = build.kernel("op", "apply_mask")
        self._sample: Callable[..., Tensor] = build.kernel("op", "sample")
        self.logprobs: Callable[[Tensor, Tensor, int], Scores] = build.kernel("op", "logprobs")

    def update(self, freed: Sequence[int], new: Sequence[NewRequest], tokens: Tensor) -> None:
        """Forgets requests that left the batch, then takes note of those that entered it."""
        if not (freed or new):
            return
        self._controls = None
        self._slots.leave(freed)
        self._slots.enter(new)
        if self._processors is not None:
            self._processors.update(freed, new, tokens)

    def all_plain_greedy(self, slots: Sequence[int]) -> bool:
        """Whether all of ``slots`` take their most likely token, and their logits need no other processing."""
        return self._slots.untouched(slots) and not (self._processors is not None and self._processors.active)

    def most_likely(self, logits: Tensor) -> Tensor:
        """What rows of ``logits`` take then, int64 ``[samples]``."""
        return self._sample(logits, None, None, None, None, None, None)

    def __call__(
        self, logits: Tensor, rows: SampleRows, batch: Batch, masks: tuple[Tensor, Tensor] | None = None
    ) -> Sampled:
        """Samples one token per row of ``logits`` (``[samples, vocab]``, which may be changed).

        ``masks`` are the last two arguments of the op ``apply_mask``: rows, and what these allow.
        """
        if masks is None and self.all_plain_greedy(rows.slots):
            token_ids = self.most_likely(logits)
            return Sampled(token_ids, finite.pack(token_ids, finite.greatest(logits)), logits.dtype)
        controls = self._controls
        if controls is None or controls.slots != rows.slots or not controls.steps:
            controls = self._controls = self._slots.controls(rows)
        controls.steps -= 1
        raw = None if controls.scored is None else logits[controls.scored]
        processed = self._processors is not None and self._processors.active
        changed = processed or controls.changes_logits or masks is not None
        state = finite.after_model(logits) if changed else None
        if state is not None:
            logits = logits.float()
        if controls.penalized is not None:
            self._apply_penalties(logits, controls, rows, batch)
        errors, names = dict[int, Problem](), list[str]()
        if self._processors is not None and state is not None and processed:
            errors, names = self._processors.apply(logits, state, rows)
        if controls.bias is not None:
            logits = self._bias(logits, *controls.bias)
        if controls.held is not None and controls.held_until is not None:
            at, ids, values = controls.held
            logits = self._bias(logits, at, ids, values * (rows.known[at] < controls.held_until))
        if controls.words is not None:
            logits = self._ban_words(logits, controls, controls.words, rows, batch)
        if controls.allowed is not None:
            logits = self._allow(logits, *controls.allowed)
        if masks is not None:
            logits = self._mask(logits, *masks)
        token_ids = self._draw(logits, controls, rows)
        readback = finite.pack(token_ids, finite.greatest(logits), state)
        sampled = Sampled(token_ids, readback, logits.dtype, errors=errors, processors=names)
        if raw is not None and controls.scored is not None:
            sampled.logprob_rows, sampled.num_top = controls.using["logprobs"], controls.num_top
            sampled.logprobs = self.logprobs(raw, token_ids[controls.scored], max(controls.num_top))
        return sampled

    def _draw(self, logits: Tensor, controls: Controls, rows: SampleRows) -> Tensor:
        table, whole = controls.table, controls.whole
        if "random" not in controls.using or table is None or whole is None:
            return self.most_likely(logits)
        return self._sample(
            logits,
            table[:, 0],
            controls.of("top_k", whole[:, 0]),
            controls.of("top_p", table[:, 1]),
            controls.of("min_p", table[:, 2]),
            whole[:, 1],
            rows.known,
        )

    def _apply_penalties(self, logits: Tensor, controls: Controls, rows: SampleRows, batch: Batch) -> None:
        at, table, whole = controls.penalized, controls.table, controls.whole
        if at is None or table is None or whole is None:
            return
        longest = max(rows.most[row] for row in controls.using["penalties"])
        slots, penalties = rows.index[at], table[at]
        self._penalize(
            logits,
            at,
            batch.tokens[:, :longest],
            slots,
            whole[at, 2],
            rows.known[at],
            *(penalties[:, column] for column in (3, 4, 5)),
        )

    def _ban_words(
        self, logits: Tensor, controls: Controls, words: BannedSequences, rows: SampleRows, batch: Batch
    ) -> Tensor:
        if controls.whole is None:
            return logits
        slots, known = rows.index[words.at], rows.known[words.at]
        matches = self._match(batch.tokens, slots, controls.whole[words.at, 2], known, words.before)
        return self._bias(logits, words.at, words.last, matches * BAN)
