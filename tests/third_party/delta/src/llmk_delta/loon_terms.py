"""Regular expressions as terms, and their derivatives by bytes (Brzozowski, 1964): no automaton is built ahead.

What a term matches behind a byte is a term again. Counts are not expanded, and terms that are alike are one object, so
that a term serves as the state of an automaton which is made as texts are matched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from llmk.api import GrammarLimits, RequestError

Ranges = tuple[tuple[int, int], ...]
"""Code points, as ranges with both ends, in order and apart."""
LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
BORDERS = (0x7F, 0x7FF, 0xFFFF, LAST)
"""The last code points with one, two, three and four bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """``parts`` are: of ``chars``, edges of a trie of UTF-8; of ``cat``, two terms; of ``alt``, several; of ``repeat``,
    a term, and how often at least and at most (None: any number)."""

    serial: int
    kind: str
    parts: tuple[Any, ...]
    nullable: bool
    """Whether it matches the empty text."""


class Terms:
    """Makes the terms of one regular expression, within limits."""

    def __init__(self, limits: GrammarLimits) -> None:
        self._limits = limits
        self._made: dict[tuple[Any, ...], Term] = {}
        self._tables: dict[Term, dict[int, Term]] = {}
        """What each state that was met matches behind each byte."""
        self.never = self._make("never", (), False)
        self.empty = self._make("empty", (), True)

    def chars(self, ranges: Ranges) -> Term:
        """One character of a set."""
        paths = [path for low, high in ranges for path in utf8(low, high)]
        return self._edges(trie(paths)) if paths else self.never

    def cat(self, head: Term, tail: Term) -> Term:
        """One behind the other."""
        if head is self.never or tail is self.never:
            return self.never
        if head is self.empty or tail is self.empty:
            return tail if head is self.empty else head
        return self._make("cat", (head, tail), head.nullable and tail.nullable)

    def alt(self, terms: Iterable[Term]) -> Term:
        """Any of them."""
        apart = {part for term in terms for part in (term.parts if term.kind == "alt" else (term,))} - {self.never}
        parts = tuple(sorted(apart, key=lambda term: term.serial))
        if len(parts) < 2:
            return parts[0] if parts else self.never
        return self._make("alt", parts, any(part.nullable for part in parts))

    def repeat(self, term: Term, least: int, most: int | None) -> Term:
        """It several times."""
        if most == 0 or term is self.empty:
            return self.empty
        if least == most == 1 or (term.kind == "repeat" and term.parts[1:] == (0, None)):
            return term
        least = 0 if term.nullable else least
        return self._make("repeat", (term, least, most), least == 0)

    def after(self, state: Term, byte: int) -> Term:
        """What a term that is a state matches behind a byte."""
        table = self._tables.get(state)
        if table is None:
            if len(self._tables) >= self._limits.states:
                raise RequestError(f"the regular expression takes more than {self._limits.states} states")
            table = self._tables[state] = self._table(state)
        return table.get(byte, self.never)

    def _table(self, state: Term) -> dict[int, Term]:
        behind: dict[int, list[Term]] = {}
        for low, high, term in self._forms(state):
            for byte in range(low, high + 1):
                behind.setdefault(byte, []).append(term)
        found: dict[tuple[Term, ...], Term] = {}
        table = {}
        for byte, terms in behind.items():
            key = tuple(terms)
            if key not in found:
                found[key] = self.alt(terms)
            table[byte] = found[key]
        return table

    def _forms(self, term: Term) -> list[tuple[int, int, Term]]:
        """Each way into a term: a range of bytes, and what it matches behind one of them (Antimirov, 1996)."""
        found: dict[tuple[int, int, Term], None] = {}
        left, seen = [term], {term}
        while left:
            term = left.pop()
            if term.kind == "chars":
                ways = [(low, high, self._edges(edges) if edges else self.empty) for low, high, edges in term.parts]
                following: tuple[Term, ...] = ()
            elif term.kind == "cat":
                head, tail = term.parts
                ways = [(low, high, self.cat(rest, tail)) for low, high, rest in self._forms(head)]
                following = (tail,) if head.nullable else ()
            elif term.kind == "repeat":
                inner, least, most = term.parts
                again = self.repeat(inner, max(least - 1, 0), None if most is None else most - 1)
                ways = [(low, high, self.cat(rest, again)) for low, high, rest in self._forms(inner)]
                following = ()
            else:
                ways, following = [], term.parts
            found |= dict.fromkeys(ways)
            left += [part for part in following if part not in seen]
            seen.update(following)
        return list(found)

    def _edges(self, edges: tuple[Any, ...]) -> Term:
        return self._make("chars", edges, False)

    def _make(self, kind: str, parts: tuple[Any, ...], nullable: bool) -> Term:
        key = kind, *parts
        term = self._made.get(key)
        if term is None:
            term = self._made[key] = Term(len(self._made), kind, parts, nullable)
            if len(self._made) > self._limits.symbols:
                raise RequestError(f"the regular expression takes more than {self._limits.symbols} symbols")
        return term


def utf8(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The code points from ``low`` to ``high`` as sequences of ranges of bytes, in order."""
    if low > high:
        return
    if low <= SURROGATES[1] and high >= SURROGATES[0]:
        yield from utf8(low, SURROGATES[0] - 1)
        yield from utf8(SURROGATES[1] + 1, high)
        return
    for border in BORDERS:
        if low <= border < high:
            yield from utf8(low, border)
            yield from utf8(border + 1, high)
            return
    for size in range(1, len(chr(high).encode())):
        mask = (1 << 6 * size) - 1
        if low & ~mask != high & ~mask:
            if low & mask:
                yield from utf8(low, low | mask)
                yield from utf8((low | mask) + 1, high)
                return
            if high & mask != mask:
                yield from utf8(low, (high & ~mask) - 1)
                yield from utf8(high & ~mask, high)
                return
    yield tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))


def trie(paths: list[tuple[tuple[int, int], ...]]) -> tuple[Any, ...]:
    """Sequences of ranges, in order, as edges ``(low, high, edges behind it)``; none are behind a last byte."""
    groups: dict[tuple[int, int], list[tuple[tuple[int, int], ...]]] = {}
    for path in paths:
        groups.setdefault(path[0], []).append(path[1:])
    return tuple((low, high, trie([rest for rest in rests if rest])) for (low, high), rests in groups.items())
