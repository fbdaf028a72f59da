"""Who wins among the candidates that can serve, for every range of token counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmk.api import KernelSpec, Reason, SelectionError, TokenBand
from llmk.config.measurements import NOTHING, Measured
from llmk.kernel.registry import Registered

Candidate = Registered[KernelSpec]
END = TokenBand().stop


@dataclass(frozen=True, slots=True)
class Slot:
    """The winner for token counts from ``start`` to ``stop - 1``, and why it won."""

    start: int
    stop: int
    winner: Candidate
    why: str


class Misfit(Exception):
    """Candidates that could serve by themselves, but leave a gap in the whole. They are to be set aside."""

    def __init__(self, ids: Iterable[str], reason: Reason) -> None:
        super().__init__(str(reason))
        self.ids = frozenset(ids)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Ranking:
    """The rules for one site.

    ``line`` is the config section that rules it, ``measured`` what was measured for its query. Where ``one_layout``
    holds, all pieces keep their data in the layout of the one that serves one token (or of the pinned one). Where
    ``one_piece`` holds, that one serves all token counts.
    """

    site: str
    line: str
    pin: str = ""
    prefer: Sequence[str] = ()
    measured: Measured = NOTHING
    is_vouched: Callable[[Candidate], bool] = lambda candidate: True
    one_layout: bool = False
    one_piece: bool = False

    def lay_out(self, able: Sequence[Candidate]) -> list[Slot]:
        """Covers all token counts; adjacent ranges with one winner are merged.

        Raises Misfit where a layout leaves a range without a candidate, SelectionError on a tie.
        """
        layouts = {c.spec.layout for c in able if c.spec.id == self.pin}
        pool = [c for c in able if not (self.one_layout and layouts) or c.spec.layout in layouts]
        bands = (band for c in pool for band in c.spec.bands)
        edges = {1, END, *self.measured.edges, *(edge for band in bands for edge in (band.start, band.stop))}
        alone = ""
        if self.one_piece and len(edges) > 2:
            edges, alone = {1, END}, " at one token; serves every count, for batch invariance"
        slots: list[Slot] = []
        for start, stop in pairwise(sorted(edge for edge in edges if edge <= END)):
            active = [c for c in pool if _merit(c.spec, start)]
            if not active:
                gap = Reason("token_gap", f"token counts from {start} to {stop - 1}", "no kernel of the same layout")
                raise Misfit((c.spec.id for c in pool), gap)
            winner, why = self._winner(active, start, slots[-1].winner.spec.id if slots else "")
            if slots and slots[-1].winner is winner:
                start, why = slots[-1].start, slots.pop().why
            slots.append(Slot(start, stop, winner, why + alone))
            pool = [c for c in pool if not self.one_layout or c.spec.layout == winner.spec.layout]
        return slots

    def loser(self, candidate: Candidate, slots: Sequence[Slot]) -> Reason:
        """Why a candidate that can serve is in none of the slots."""
        winner, wheel = slots[0].winner, candidate.plugin.distribution
        how = f'to choose it: {self.line} prefer = ["{candidate.spec.id}"]'
        if not self.is_vouched(candidate):
            hint = f'{how}, or [plugins] trust = ["{wheel}"]'
            return Reason("not_vouched", "a wheel that the platform vouches for", wheel, hint)
        if candidate.spec.only_if_asked and not winner.spec.only_if_asked:
            return Reason("only_if_asked", "to be chosen by name or measurement", candidate.spec.only_if_asked, how)
        if self.one_layout and candidate.spec.layout != winner.spec.layout:
            return Reason("layout", f"{winner.spec.layout}, as {winner.spec.id} has it", candidate.spec.layout, how)
        return Reason("outranked", found=f"by {winner.spec.id}, {slots[0].why}", hint=how)

    def _winner(self, active: Sequence[Candidate], start: int, last: str) -> tuple[Candidate, str]:
        by_id = {candidate.spec.id: candidate for candidate in active}
        if self.pin in by_id:
            return by_id[self.pin], f"pinned by {self.line} use"
        for id in self.prefer:
            if id in by_id:
                return by_id[id], f"preferred by {self.line} prefer"
        if fastest := self.measured.fastest(by_id, start, last):
            return by_id[fastest[0]], fastest[1]
        return self._by_tier(active, start)

    def _by_tier(self, active: Sequence[Candidate], start: int) -> tuple[Candidate, str]:
        vouched = [c for c in active if self.is_vouched(c)] or active
        ready = [c for c in vouched if not c.spec.only_if_asked] or vouched
        ranked = sorted(ready, key=lambda c: _merit(c.spec, start), reverse=True)
        best, tier = ranked[0], ranked[0].spec.tier.name.lower()
        if len(ranked) == 1:
            which = "that need not be asked for" if vouched[1:] else "that the platform vouches for"
            return best, "only candidate" if len(active) == 1 else f"only candidate {which}"
        if _merit(best.spec, start) == _merit(ranked[1].spec, start):
            tied = [f"{c.spec.id} of {c.plugin.wheel}" for c in ranked[:2]]
            lines = [f'prefer = ["{c.spec.id}"]' for c in ranked[:2]]
            message = f"{' and '.join(tied)} tie for site {self.site!r}, in tier {tier} and score"
            raise SelectionError(message, hint=f"settle it with {self.line} {' or '.join(lines)}")
        return best, f"tier {tier}" if best.spec.tier > ranked[1].spec.tier else f"best score in tier {tier}"


def _merit(spec: KernelSpec, start: int) -> tuple[int, ...]:
    """What decides between kernels at a token count; nothing where the kernel is not offered there."""
    scores = [spec.score + band.score for band in spec.bands if band.start <= start < band.stop]
    return (spec.tier, scores[0]) if scores else ()
