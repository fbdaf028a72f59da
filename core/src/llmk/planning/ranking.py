"""Chooses between the candidates that support a site, for every range of token counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmk.api import Alternative, KernelSpec, Reason, SelectionError, TokenBand
from llmk.config.measurements import NOTHING, Measured
from llmk.config.traffic import Traffic, load_traffic
from llmk.kernel.registry import Registered

Candidate = Registered[KernelSpec]
END = TokenBand().stop
ONLY = "only candidate"
USUALLY = load_traffic("")


@dataclass(frozen=True, slots=True)
class TokenRange:
    """The winner for token counts from ``start`` to ``stop - 1``, and why it won."""

    start: int
    stop: int
    winner: Candidate
    why: str


class IncompatibleParts(Exception):
    """Composite candidates that support a query themselves, but have a part that no kernel supports. They must be
    excluded."""

    def __init__(self, ids: Iterable[str], reason: Reason) -> None:
        super().__init__(str(reason))
        self.ids = frozenset(ids)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Ranking:
    """The selection rules for one site.

    ``line`` is the site's config section, ``measured`` the measurements for its query. With ``one_layout``, all pieces
    must have the same data layout: that of a pin, else of a preference, else the one with the lowest measured cost over
    the ``traffic``, else that of the highest tier at one token. With ``one_piece``, one kernel serves all token counts;
    it is chosen by the same rules.
    """

    site: str
    line: str
    pin: str = ""
    prefer: Sequence[str] = ()
    measured: Measured = NOTHING
    is_vouched: Callable[[Candidate], bool] = lambda candidate: True
    one_layout: bool = False
    one_piece: bool = False
    traffic: Traffic = USUALLY

    def gaps(self, able: Sequence[Candidate]) -> dict[str, Reason]:
        """The candidates whose layout has no kernel for some token counts, with the reason."""
        found: dict[str, Reason] = {}
        for layout, kernels in _grouped(able, lambda c: c.spec.layout if self.one_layout else "").items():
            missing = _first_gap([band for c in kernels for band in c.spec.bands])
            if missing is not None:
                lacking = f"no kernel with layout {layout!r}" if self.one_layout else "no kernel"
                reason = Reason("token_gap", missing, lacking)
                found |= dict.fromkeys((c.spec.id for c in kernels), reason)
        return found

    def lay_out(self, able: Sequence[Candidate]) -> list[TokenRange]:
        """Chooses a kernel for every token count; ``able`` must have no :meth:`gaps`. Adjacent ranges with the same
        winner are merged. Raises SelectionError on a tie."""
        if self.one_piece:
            return [self._alone(able)]
        pool, first = self._of_one_layout(able) if self.one_layout else (able, "{}")
        ranges: list[TokenRange] = []
        for start, stop in pairwise(self._edges(pool)):
            active = [c for c in pool if _merit(c.spec, start)]
            winner, why = self._winner(active, start, ranges[-1].winner.spec.id if ranges else "")
            why = first.replace("{}", why) if start == 1 else why
            if ranges and ranges[-1].winner is winner:
                start, why = ranges[-1].start, ranges.pop().why
            ranges.append(TokenRange(start, stop, winner, why))
        return ranges

    def alternatives(self, able: Sequence[Candidate]) -> list[Alternative]:
        """The measured cost of every alternative, best first. One that was measured for a larger fraction of the
        traffic comes first, since missing measurements mean that it was too slow to measure or gave wrong results."""
        if not (self.one_layout or self.one_piece):
            return []
        found: list[tuple[float, Alternative]] = []
        for name, kernels in _grouped(able, self._alternative).items():
            times = {tokens: _fastest(kernels, self.measured.at(tokens), tokens) for tokens in self.traffic.shares}
            known = {tokens: time for tokens, time in times.items() if time is not None}
            share = sum(self.traffic.shares[tokens] for tokens in known)
            if known:
                mean = sum(self.traffic.shares[tokens] * time for tokens, time in known.items()) / share
                found.append((round(share, 6), Alternative(name, tuple(known.items()), round(mean, 3))))
        return [
            alternative for _, alternative in sorted(found, key=lambda each: (-each[0], each[1].mean, each[1].name))
        ]

    def loser(self, candidate: Candidate, ranges: Sequence[TokenRange]) -> Reason:
        """Why a candidate that supports the site is in none of the ranges."""
        winner, wheel = ranges[0].winner, candidate.plugin.distribution
        if not self.is_vouched(candidate):
            return Reason("not_vouched", "a wheel that the platform vouches for", wheel)
        if candidate.spec.opt_in and not winner.spec.opt_in:
            return Reason("opt_in", "to be chosen by name or measurement", candidate.spec.opt_in)
        if self.one_layout and candidate.spec.layout != winner.spec.layout:
            return Reason("layout", f"{winner.spec.layout}, as {winner.spec.id} has it", candidate.spec.layout)
        return Reason("outranked", found=f"by {winner.spec.id}, {ranges[0].why}")

    def _alternative(self, candidate: Candidate) -> str:
        """The name of the alternative that a candidate belongs to: its id or its layout."""
        return candidate.spec.id if self.one_piece else candidate.spec.layout

    def _of_one_layout(self, able: Sequence[Candidate]) -> tuple[Sequence[Candidate], str]:
        """The candidates of the chosen layout, and the reason for the choice at one token, in which ``{}`` is a
        placeholder for the reason among these candidates."""
        layouts, by_id = _grouped(able, self._alternative), {c.spec.id: c for c in able}
        asked = next((by_id[id] for id in (self.pin, *self.prefer) if id in by_id), None)
        if len(layouts) == 1:
            return able, "{}"
        if asked is not None:
            layout = asked.spec.layout
            return layouts[layout], "{}" if _merit(
                asked.spec, 1
            ) else f"{{}}; layout {layout}, as {asked.spec.id} has it"
        if alternatives := self.alternatives(able):
            best, *others = alternatives
            ratio = f"; layout {best.name}: {best.mean / others[0].mean:.2f}x of {others[0].name}" if others else ""
            return layouts[best.name], f"{{}}{ratio} over the traffic" if others else "{}"
        winner, why = self._by_tier([c for c in able if _merit(c.spec, 1)], 1)
        return layouts[winner.spec.layout], why

    def _alone(self, able: Sequence[Candidate]) -> TokenRange:
        """The one kernel for all token counts."""
        asked = [id for id in (self.pin, *self.prefer) if any(c.spec.id == id for c in able)]
        alternatives = [] if asked else self.alternatives(able)
        if alternatives:
            winner = next(c for c in able if c.spec.id == alternatives[0].name)
            others = [f"{alternatives[0].mean / other.mean:.2f}x of {other.name}" for other in alternatives[1:2]]
            why = f"measured {''.join(others) or 'alone'} over the traffic, {self.measured.date}"
        else:
            winner, why = self._winner(able, 1, "")
            why += " at one token" if len(self._edges(able)) > 2 and not asked else ""
        several = len(self._edges(able)) > 2
        return TokenRange(1, END, winner, f"{why}; serves every count, for batch invariance" if several else why)

    def _edges(self, pool: Sequence[Candidate]) -> list[int]:
        """The token counts at which the best kernel may change."""
        bands = (band for c in pool for band in c.spec.bands)
        edges = {1, END, *self.measured.edges, *(edge for band in bands for edge in (band.start, band.stop))}
        return sorted(edge for edge in edges if edge <= END)

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
        ready = [c for c in vouched if not c.spec.opt_in] or vouched
        ranked = sorted(ready, key=lambda c: _merit(c.spec, start), reverse=True)
        best, tier = ranked[0], ranked[0].spec.tier.name.lower()
        if len(ranked) == 1:
            which = "that is not opt-in" if vouched[1:] else "that the platform vouches for"
            return best, ONLY if len(active) == 1 else f"{ONLY} {which}"
        if _merit(best.spec, start) == _merit(ranked[1].spec, start):
            tied = [f"{c.spec.id} of {c.plugin.wheel}" for c in ranked[:2]]
            lines = [f'prefer = ["{c.spec.id}"]' for c in ranked[:2]]
            message = f"{' and '.join(tied)} tie for site {self.site!r}, in tier {tier} and score"
            raise SelectionError(message, hint=f"settle it with {self.line} {' or '.join(lines)}")
        return best, f"tier {tier}" if best.spec.tier > ranked[1].spec.tier else f"best score in tier {tier}"


def _merit(spec: KernelSpec, start: int) -> tuple[int, ...]:
    """The sort key of a kernel at a token count, by tier and score; empty if the kernel doesn't support the count."""
    scores = [spec.score + band.score for band in spec.bands if band.start <= start < band.stop]
    return (spec.tier, scores[0]) if scores else ()


def _fastest(kernels: Sequence[Candidate], times: Mapping[str, float], tokens: int) -> float | None:
    """The shortest time among the kernels that support a token count."""
    found = (times[c.spec.id] for c in kernels if c.spec.id in times and _merit(c.spec, tokens))
    return min(found, default=None)


def _grouped(able: Sequence[Candidate], key: Callable[[Candidate], str]) -> dict[str, list[Candidate]]:
    groups: dict[str, list[Candidate]] = {}
    for candidate in able:
        groups.setdefault(key(candidate), []).append(candidate)
    return groups


def _first_gap(bands: Sequence[TokenBand]) -> str | None:
    """The first token counts that no band contains, human-readable; ``None`` if every count is in one."""
    reached = 1
    for band in sorted(bands, key=lambda band: band.start):
        if band.start > reached:
            return f"token counts from {reached} to {band.start - 1}"
        reached = max(reached, band.stop)
    return None if reached >= END else f"token counts from {reached}"
