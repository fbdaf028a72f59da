"""Who wins among the candidates that can serve, for every range of token counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from llmk.api import KernelSpec, Reason, SelectionError
from llmk.kernel.registry import Registered

Candidate = Registered[KernelSpec]
END = 1 << 31


@dataclass(frozen=True, slots=True)
class Slot:
    """The winner for token counts from ``start`` to ``stop - 1``, and why it won."""

    start: int
    stop: int
    winner: Candidate
    why: str


class Misfit(Exception):
    """Candidates that could serve by themselves, but leave a gap in the whole. They are to be set aside."""

    def __init__(self, ids: Sequence[str], reason: Reason) -> None:
        super().__init__(str(reason))
        self.ids = frozenset(ids)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Ranking:
    """The rules for one site. ``line`` is the config section that rules it; ``measured`` are times by id, less is better."""

    site: str
    line: str
    pin: str = ""
    prefer: Sequence[str] = ()
    measured: Mapping[str, float] = field(default_factory=dict)
    is_vouched: Callable[[Candidate], bool] = lambda candidate: True

    def lay_out(self, able: Sequence[Candidate], *, one_layout: bool) -> list[Slot]:
        """Covers all token counts, adjacent ranges with one winner merged.

        ``one_layout``: all winners keep their data in the layout of the one that serves one token (or of the pinned one). Raises Misfit
        where that leaves a range without a candidate, SelectionError on a tie.
        """
        pinned = [c for c in able if c.spec.id == self.pin]
        pool = [c for c in able if c.spec.layout == pinned[0].spec.layout] if pinned and one_layout else list(able)
        edges = {1, END} | {edge for c in pool for band in c.spec.bands for edge in (band.start, band.stop)}
        slots: list[Slot] = []
        for start, stop in pairwise(sorted(edge for edge in edges if edge <= END)):
            active = [c for c in pool if _band_score(c.spec, start) is not None]
            if not active:
                wanted = f"token counts from {start} to {stop - 1}"
                raise Misfit([c.spec.id for c in pool], Reason("token_gap", wanted, "no kernel of the same layout"))
            winner, why = self._winner(active, start)
            if not slots and one_layout:
                pool = [c for c in pool if c.spec.layout == winner.spec.layout]
            if slots and slots[-1].winner is winner:
                slots[-1] = Slot(slots[-1].start, stop, winner, slots[-1].why)
            else:
                slots.append(Slot(start, stop, winner, why))
        return slots

    def loser(self, candidate: Candidate, slots: Sequence[Slot], *, one_layout: bool) -> Reason:
        """Why a candidate that can serve is in none of the slots."""
        winner = slots[0].winner
        found = f"{winner.spec.id}, {slots[0].why}"
        line = f'{self.line} prefer = ["{candidate.spec.id}"]'
        if not self.is_vouched(candidate):
            hint = f'to choose it: {line}, or [plugins] trust = ["{candidate.plugin.distribution}"]'
            return Reason("not_vouched", "a wheel that the platform vouches for", candidate.plugin.distribution, hint)
        if one_layout and candidate.spec.layout != winner.spec.layout:
            return Reason("layout", winner.spec.layout, candidate.spec.layout, f"{found}; to choose it: {line}")
        return Reason("outranked", found=f"by {found}")

    def _winner(self, active: Sequence[Candidate], start: int) -> tuple[Candidate, str]:
        by_id = {candidate.spec.id: candidate for candidate in active}
        if self.pin in by_id:
            return by_id[self.pin], f"pinned by {self.line} use"
        for id in self.prefer:
            if id in by_id:
                return by_id[id], f"preferred by {self.line} prefer"
        times = {id: self.measured[id] for id in by_id if id in self.measured}
        if times:
            fastest = min(times, key=lambda id: times[id])
            return by_id[fastest], f"measured fastest ({times[fastest]:.3g})"
        return self._by_tier(active, start)

    def _by_tier(self, active: Sequence[Candidate], start: int) -> tuple[Candidate, str]:
        vouched = [c for c in active if self.is_vouched(c)]
        ranked = sorted(vouched or active, key=lambda c: _merit(c.spec, start), reverse=True)
        best = ranked[0]
        if len(ranked) == 1:
            return best, "only candidate" if len(active) == 1 else "only candidate that the platform vouches for"
        second = ranked[1]
        if _merit(best.spec, start) == _merit(second.spec, start):
            raise SelectionError(
                f"{best.spec.id} of {best.plugin.wheel} and {second.spec.id} of {second.plugin.wheel} "
                f"tie for site {self.site!r} (tier {best.spec.tier.name.lower()}, score {_merit(best.spec, start)[1]})",
                hint=f'settle it with {self.line} prefer = ["{best.spec.id}"] or prefer = ["{second.spec.id}"]',
            )
        if best.spec.tier != second.spec.tier:
            return best, f"tier {best.spec.tier.name.lower()}"
        return best, f"score {_merit(best.spec, start)[1]} in tier {best.spec.tier.name.lower()}"


def _band_score(spec: KernelSpec, start: int) -> int | None:
    return next((band.score for band in spec.bands if band.start <= start < band.stop), None)


def _merit(spec: KernelSpec, start: int) -> tuple[int, int]:
    return int(spec.tier), spec.score + (_band_score(spec, start) or 0)
