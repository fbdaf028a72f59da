"""The sampling parameters of a batch: by slot on the host, by row on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmk.engine.device.transfer import to_device

if TYPE_CHECKING:
    from llmk.engine.device.sample_rows import SampleRows
    from llmk.engine.wire.sampling_params import SamplingParams
    from llmk.engine.wire.step import NewRequest

BAN = -1e30
"""Added to the logit of a token that must not be sampled. Finite, so that where nothing else is left a banned token is
taken rather than one that the request does not allow at all."""
_ALWAYS = 1 << 62

Pairs = tuple[Tensor, Tensor, Tensor]


@dataclass(slots=True)
class _Slot:
    """A request in the batch, as the sampler sees it. Tensors are token ids, and what to add to their logits."""

    params: SamplingParams
    held_until: int
    """Length before which none of ``held_back`` may be sampled."""
    held_back: tuple[Tensor, Tensor] | None
    bias: tuple[Tensor, Tensor] | None
    words: list[tuple[int, ...]]
    """Banned sequences of several tokens."""
    allowed: Tensor | None


_USES: dict[str, Callable[[_Slot], object]] = {
    "random": lambda s: not s.params.greedy,
    "top_k": lambda s: s.params.top_k and not s.params.greedy,
    "top_p": lambda s: s.params.top_p < 1 and not s.params.greedy,
    "min_p": lambda s: s.params.min_p and not s.params.greedy,
    "penalties": lambda s: (
        s.params.presence_penalty or s.params.frequency_penalty or s.params.repetition_penalty != 1.0
    ),
    "bias": lambda s: s.bias is not None,
    "held": lambda s: s.held_back is not None,
    "words": lambda s: s.words,
    "allowed": lambda s: s.allowed is not None,
    "logprobs": lambda s: s.params.logprobs is not None,
}
"""The features, and whether a request uses each. A row that is greedy has no use for truncation."""
_TABLED = frozenset({"random", "penalties", "words"})
"""Features that read the tables."""


@dataclass(slots=True)
class BannedSequences:
    """Banned sequences: row, last token, and the tokens before it (int64 ``[W, P]``, -1 on the left: any)."""

    at: Tensor
    last: Tensor
    before: Tensor


@dataclass(slots=True)
class Controls:
    """The sampling parameters of one step's rows, on the device; ``None`` and empty: no row does. Valid for ``steps``
    steps more in which the same ``slots`` sample.

    ``table`` and ``whole`` are the rows of the sampler's tables. ``penalized`` are the rows with penalties;
    ``bias`` is row, token id and what to add; ``held`` the same, each as long as its row's length is below the one in
    ``held_until``; ``allowed`` is the restricted rows, and row and id of what they allow.
    """

    slots: list[int]
    steps: int
    using: dict[str, list[int]]
    table: Tensor | None
    whole: Tensor | None
    penalized: Tensor | None
    bias: Pairs | None
    held: Pairs | None
    held_until: Tensor | None
    words: BannedSequences | None
    allowed: Pairs | None
    scored: Tensor | None
    num_top: list[int]

    @property
    def changes_logits(self) -> bool:
        """Whether any row's logits are to be changed before one is sampled."""
        changes = (self.penalized, self.bias, self.held, self.words, self.allowed)
        return any(part is not None for part in changes)

    def of(self, feature: str, column: Tensor) -> Tensor | None:
        """``column`` where any row uses the feature."""
        return column if feature in self.using else None


class ControlTable:
    """The requests of a batch by slot.

    ``table`` is float32 ``[slots, 6]``: temperature, top-p, min-p, presence, frequency and repetition penalty;
    ``whole`` is int64 ``[slots, 3]``: top-k, seed, prompt length. Rows of requests that have no use for them stay zero.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self.device = device
        self.table = torch.zeros(num_slots, 6, dtype=torch.float32, device=device)
        self.whole = torch.zeros(num_slots, 3, dtype=torch.int64, device=device)
        self._slots: dict[int, _Slot] = {}
        self._users: dict[str, set[int]] = {}
        self._tabled: set[int] = set()
        """Slots whose rows of the tables are not zero."""

    def leave(self, slots: Iterable[int]) -> None:
        """Forgets requests."""
        for slot in slots:
            self._slots.pop(slot, None)
            for feature in [feature for feature, users in self._users.items() if slot in users]:
                self._stop(feature, slot)

    def enter(self, requests: Sequence[NewRequest]) -> None:
        """Takes note of how new requests want to be sampled."""
        self.leave(request.slot for request in requests)
        rows, table, whole = [], [], []
        for request in requests:
            state = self._slots[request.slot] = self._slot(request)
            used = [feature for feature, uses in _USES.items() if uses(state)]
            for feature in used:
                self._users.setdefault(feature, set()).add(request.slot)
            tabled = not _TABLED.isdisjoint(used)
            if tabled or request.slot in self._tabled:
                (self._tabled.add if tabled else self._tabled.discard)(request.slot)
                p = request.params
                rows.append(request.slot)
                penalties = (p.presence_penalty, p.frequency_penalty, p.repetition_penalty)
                table.append((p.temperature, p.top_p, p.min_p, *penalties) if tabled else (0.0,) * 6)
                whole.append((p.top_k, request.seed, request.num_prompt_tokens) if tabled else (0,) * 3)
        if rows:
            index = self._tensor(rows)
            self.table[index] = self._tensor(table, torch.float32)
            self.whole[index] = self._tensor(whole)

    def untouched(self, slots: Iterable[int]) -> bool:
        """Whether none of ``slots`` uses any feature."""
        return all(users.isdisjoint(slots) for users in self._users.values())

    def controls(self, rows: SampleRows) -> Controls:
        """What ``rows`` use."""
        slots, index = rows.slots, rows.index
        using = {
            feature: [row for row, slot in enumerate(slots) if slot in users]
            for feature, users in self._users.items()
            if not users.isdisjoint(slots)
        }
        states = {row: self._slots[slots[row]] for feature in using for row in using[feature]}
        bias = [(row, part) for row in using.get("bias", ()) if (part := states[row].bias)]
        steps, held = self._held(rows, using.get("held", ()), bias)
        tabled = not _TABLED.isdisjoint(using)
        return Controls(
            slots=list(slots),
            steps=steps,
            using=using,
            table=self.table[index] if tabled else None,
            whole=self.whole[index] if tabled else None,
            penalized=self._tensor(using["penalties"]) if "penalties" in using else None,
            bias=self._pairs(bias) if bias else None,
            held=self._pairs(held) if held else None,
            held_until=self._held_until(held, slots) if held else None,
            words=self._words(using["words"], states) if "words" in using else None,
            allowed=self._allowed(using["allowed"], states) if "allowed" in using else None,
            scored=self._tensor(using["logprobs"]) if "logprobs" in using else None,
            num_top=[states[row].params.logprobs or 0 for row in using.get("logprobs", ())],
        )

    def _held(
        self, rows: SampleRows, using: Sequence[int], bias: list[tuple[int, tuple[Tensor, Tensor]]]
    ) -> tuple[int, list[tuple[int, tuple[Tensor, Tensor]]]]:
        """Adds to ``bias`` what is held back of rows whose length the host knows. Returns for how many steps this
        holds, and what may be held back of the others. Stops the feature for slots that are past it."""
        steps, unsure = _ALWAYS, []
        slots = rows.slots
        for row in using:
            state, slot = self._slots[slots[row]], slots[row]
            alone = slot not in (*slots[row - 1 : row], *slots[row + 1 : row + 2])
            if state.held_back is None or rows.fewest[row] >= state.held_until:
                if row == slots.index(slot):  # else a later step may have a shorter row
                    self._stop("held", slot)
            elif rows.fewest[row] == rows.most[row]:
                steps = min(steps, state.held_until - rows.most[row] if alone else 1)
                bias.append((row, state.held_back))
            else:
                steps = 1
                unsure.append((row, state.held_back))
        return steps, unsure

    def _held_until(self, held: list[tuple[int, tuple[Tensor, Tensor]]], slots: Sequence[int]) -> Tensor:
        """int64, one per pair of :meth:`_pairs`."""
        return self._tensor([self._slots[slots[row]].held_until for row, (ids, _) in held for _ in range(len(ids))])

    def _stop(self, feature: str, slot: int) -> None:
        users = self._users.get(feature, set())
        users.discard(slot)
        if not users:
            self._users.pop(feature, None)

    def _slot(self, request: NewRequest) -> _Slot:
        p = request.params
        ends = p.stop_token_ids if p.ignore_eos else (*request.eos_token_ids, *p.stop_token_ids)
        bias = p.logit_bias | {word[0]: BAN for word in p.bad_word_ids if len(word) == 1}
        return _Slot(
            params=p,
            held_until=request.num_prompt_tokens + p.min_tokens,
            held_back=self._pair(dict.fromkeys(ends, BAN)) if p.min_tokens and ends else None,
            bias=self._pair(bias) if bias else None,
            words=[word for word in p.bad_word_ids if len(word) > 1],
            allowed=None if p.allowed_token_ids is None else self._tensor(sorted(set(p.allowed_token_ids))),
        )

    def _pair(self, bias: dict[int, float]) -> tuple[Tensor, Tensor]:
        return self._tensor(list(bias)), self._tensor(list(bias.values()), torch.float32)

    def _pairs(self, parts: list[tuple[int, tuple[Tensor, Tensor]]]) -> Pairs:
        ids = [ids for _, (ids, _) in parts]
        return self._repeat([row for row, _ in parts], ids), torch.cat(ids), torch.cat([v for _, (_, v) in parts])

    def _repeat(self, rows: list[int], parts: list[Tensor]) -> Tensor:
        """Each row as often as its part is long."""
        counts = [part.shape[0] for part in parts]
        return torch.repeat_interleave(self._tensor(rows), self._tensor(counts), output_size=sum(counts))

    def _words(self, rows: list[int], states: dict[int, _Slot]) -> BannedSequences:
        words = [(row, word) for row in rows for word in states[row].words]
        longest = max(len(word) for _, word in words) - 1
        before = [(-1,) * (longest + 1 - len(word)) + word[:-1] for _, word in words]
        return BannedSequences(
            self._tensor([row for row, _ in words]), self._tensor([word[-1] for _, word in words]), self._tensor(before)
        )

    def _allowed(self, rows: list[int], states: dict[int, _Slot]) -> Pairs:
        parts = [ids for row in rows if (ids := states[row].allowed) is not None]
        return self._tensor(rows), self._repeat(rows, parts), torch.cat(parts)

    def _tensor(self, values: Sequence[object], dtype: torch.dtype = torch.int64) -> Tensor:
        return to_device(values, self.device, dtype)
