"""Regular expressions of a safe subset, and the automata of bytes that match them.

There are characters, ``.``, classes, ``\\d \\w \\s`` and their complements (of Unicode, as elsewhere in llmk), groups,
alternatives and repetitions. What can't be an automaton (references, look-around) or would be a surprise (flags,
possessive repetitions, sets of sets) is refused.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from llmk.api import GrammarLimits, RequestError

Ranges = tuple[tuple[int, int], ...]
"""Characters: ranges of code points, both ends included, sorted and apart."""

DEPTH = 50
"""Groups within groups."""

DEAD = -1
"""The state that nothing leads out of."""

SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a regular expression: ``"set"`` (one of ``ranges``), ``"cat"`` (``parts``, one after the other),
    ``"alt"`` (one of ``parts``) or ``"rep"`` (the only part, ``low`` to ``high`` times; None: any number)."""

    kind: str
    parts: Sequence[Node] = ()
    ranges: Ranges = ()
    low: int = 0
    high: int | None = None


def merged(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """The same characters in sorted ranges that don't touch."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return tuple(result)


def complement(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """All other characters. Halves of surrogate pairs are none."""
    stops = [(-1, -1), *merged([*ranges, SURROGATES]), (sys.maxunicode + 1, sys.maxunicode + 1)]
    return tuple((before + 1, after - 1) for (_, before), (after, _) in pairwise(stops) if before + 1 < after)


def literal(text: str) -> Node:
    """Exactly that text."""
    return Node("cat", tuple(Node("set", ranges=((ord(char), ord(char)),)) for char in text))


@cache
def unicode_class(letter: str) -> Ranges:
    """The characters of ``\\d``, ``\\w``, ``\\s`` or, with a capital, all others."""
    tests: dict[str, Callable[[str], bool]] = {
        "d": str.isdecimal,
        "w": lambda char: char.isalnum() or char == "_",
        "s": str.isspace,
    }
    test = tests[letter.lower()]
    ranges = merged([(code, code) for code in range(sys.maxunicode + 1) if test(chr(code))])
    return complement(ranges) if letter.isupper() else ranges


NEWLINE_FREE = complement([(10, 10)])
ESCAPES = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}


class RegexParser:
    """Parses one expression, from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def parse(self) -> Node:
        """The expression. Raises RequestError where it is invalid."""
        node = self._alternatives(0)
        if self._at < len(self._text):
            raise self._refused("a ')' that closes nothing")
        return node

    def _refused(self, what: str) -> RequestError:
        return RequestError(f"the regular expression has {what}, at character {self._at}")

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if self._peek(text):
            self._at += len(text)
            return True
        return False

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._refused("an end where more must follow")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self, depth: int) -> Node:
        if depth > DEPTH:
            raise self._refused(f"more than {DEPTH} groups within groups")
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Node("alt", tuple(parts))

    def _sequence(self, depth: int) -> Node:
        """Up to ``|``, ``)`` or the end. The whole output must match, so anchors at its ends say nothing."""
        parts: list[Node] = []
        if depth == 0:
            self._take("^")
        while self._at < len(self._text) and not self._peek("|") and not self._peek(")"):
            if depth == 0 and self._text[self._at : self._at + 2] in ("$", "$|"):
                self._take("$")
            else:
                parts.append(self._repeated(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Node("cat", tuple(parts))

    def _repeated(self, node: Node) -> Node:
        low: int = 1
        high: int | None = 1
        if self._take("*"):
            low, high = 0, None
        elif self._take("+"):
            low, high = 1, None
        elif self._take("?"):
            low, high = 0, 1
        elif self._take("{"):
            low, high = self._counts()
        else:
            return node
        self._take("?")  # as few as possible: the same texts match
        if self._at < len(self._text) and self._text[self._at] in "*+?{":
            raise self._refused("a repetition of a repetition")
        return Node("rep", (node,), low=low, high=high)

    def _counts(self) -> tuple[int, int | None]:
        first = self._number()
        low, high = first or 0, first
        if self._take(","):
            high = self._number()
        elif first is None:
            raise self._refused("a '{' without a number: write \\{")
        if not self._take("}"):
            raise self._refused("a '{' without a '}'")
        if high is not None and high < low:
            raise self._refused("a repetition from more to fewer")
        return low, high

    def _number(self) -> int | None:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in "0123456789":
            self._at += 1
        if self._at - start > 9:
            raise self._refused("a number of more than nine digits")
        return int(self._text[start : self._at]) if self._at > start else None

    def _atom(self, depth: int) -> Node:
        char = self._next()
        if char == "(":
            if self._take("?") and not self._take(":"):
                raise self._refused("a group other than (...) and (?:...), which is not supported")
            node = self._alternatives(depth + 1)
            if not self._take(")"):
                raise self._refused("a '(' without a ')'")
            return node
        if char == "[":
            return Node("set", ranges=self._class())
        if char == ".":
            return Node("set", ranges=NEWLINE_FREE)
        if char == "\\":
            return Node("set", ranges=self._escape())
        if char in "*+?{}]^$":
            raise self._refused(f"a {char!r} that means nothing there: write \\{char}")
        return Node("set", ranges=self._single(ord(char)))

    def _single(self, code: int) -> Ranges:
        if SURROGATES[0] <= code <= SURROGATES[1]:
            raise self._refused("half of a surrogate pair, which no text has")
        return ((code, code),)

    def _escape(self) -> Ranges:
        char = self._next()
        if char in "dwsDWS":
            return unicode_class(char)
        if char in ESCAPES:
            return self._single(ESCAPES[char])
        if char in "xu":
            digits = self._text[self._at : self._at + (2 if char == "x" else 4)]
            if len(digits) < (2 if char == "x" else 4) or not set(digits) <= set("0123456789abcdefABCDEF"):
                raise self._refused(f"\\{char} without its hexadecimal digits")
            self._at += len(digits)
            return self._single(int(digits, 16))
        if char.isalnum():
            raise self._refused(f"\\{char}, which is not supported")
        return self._single(ord(char))

    def _class(self) -> Ranges:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._member()
            if self._peek("-") and not self._peek("-]"):
                self._take("-")
                high = self._member()
                if len(low) > 1 or len(high) > 1 or low[0][0] != low[-1][1] or high[0][0] < low[0][0]:
                    raise self._refused("a range that is none")
                low = ((low[0][0], high[0][0]),)
            ranges.extend(low)
        result = complement(ranges) if negated else complement(complement(ranges))
        if not result:
            raise self._refused("a class that no character is in, so that nothing matches")
        return result

    def _member(self) -> Ranges:
        char = self._next()
        if char == "\\":
            return self._escape()
        if char == "[" or (char in "&-~|" and self._peek(char)):
            raise self._refused(f"{char!r} in a class, which would be a set of sets: write \\{char}")
        return self._single(ord(char))


def byte_ranges(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The characters from ``low`` to ``high`` as UTF-8: sequences of ranges of bytes."""
    for first, last in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, sys.maxunicode)):
        if max(low, first) <= min(high, last):
            yield from _split(chr(max(low, first)).encode(), chr(min(high, last)).encode())


def _split(low: bytes, high: bytes) -> Iterator[tuple[tuple[int, int], ...]]:
    """Of encodings of one length, those from ``low`` to ``high``."""
    size = len(low) - 1
    least, most = b"\x80" * size, b"\xbf" * size
    first, last = low[0], high[0]
    if first == last and size:
        for rest in _split(low[1:], high[1:]):
            yield ((first, first), *rest)
        return
    if low[1:] != least:
        for rest in _split(low[1:], most):
            yield ((first, first), *rest)
        first += 1
    tail = high[1:] != most
    if first <= last - tail:
        yield ((first, last - tail), *[(0x80, 0xBF)] * size)
    if tail:
        for rest in _split(least, high[1:]):
            yield ((last, last), *rest)


class Nfa:
    """The automaton of an expression with edges of bytes, and edges that take none. State 0 is the first, ``final`` the
    last. Everything that is made counts towards ``limits.symbols``."""

    def __init__(self, node: Node, limits: GrammarLimits) -> None:
        self._left = limits.symbols
        self.edges: list[list[tuple[int, int, int]]] = []
        self.free: list[list[int]] = []
        self.final = self._add(node, self._state())

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise RequestError("the grammar has too many symbols (limits.grammar_symbols)")

    def _state(self) -> int:
        self._count()
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1

    def _add(self, node: Node, start: int) -> int:
        """Adds ``node`` behind the state ``start``, and returns the state behind it."""
        self._count()
        if node.kind == "set":
            return self._add_set(node.ranges, start)
        if node.kind == "cat":
            for part in node.parts:
                start = self._add(part, start)
            return start
        end = self._state()
        if node.kind == "alt":
            for part in node.parts:
                self.free[self._add(part, start)].append(end)
            return end
        for _ in range(node.low):
            start = self._add(node.parts[0], start)
        if node.high is None:  # a state of its own to come back to, so that nothing else is repeated
            self.free[start].append(end)
            self.free[self._add(node.parts[0], end)].append(end)
            return end
        for _ in range(node.high - node.low):
            self.free[start].append(end)
            start = self._add(node.parts[0], start)
        self.free[start].append(end)
        return end

    def _add_set(self, ranges: Ranges, start: int) -> int:
        end = self._state()
        known: dict[tuple[int, int, int], int] = {}
        for low, high in ranges:
            for sequence in byte_ranges(low, high):
                state = start
                for number, (first, last) in enumerate(sequence, 1):
                    self._count()
                    if number == len(sequence):
                        self.edges[state].append((first, last, end))
                    elif (state, first, last) in known:
                        state = known[state, first, last]
                    else:
                        target = known[state, first, last] = self._state()
                        self.edges[state].append((first, last, target))
                        state = target
        return end


class Dfa:
    """The deterministic automaton. ``rows[state][byte]`` is the next state, or ``DEAD``; state 0 is the first;
    ``accepting`` are those where a match may end. From each state one of these is reached."""

    def __init__(self, node: Node, limits: GrammarLimits) -> None:
        nfa = Nfa(node, limits)
        self.rows: list[array[int]] = []
        self.accepting: set[int] = set()
        numbers: dict[frozenset[int], int] = {}
        sets: list[frozenset[int]] = []
        members = 0

        def numbered(states: frozenset[int]) -> int:
            nonlocal members
            closed = _closure(nfa, states)
            if closed not in numbers:
                members += len(closed)
                # The sets' members, too, so that time and memory are bounded.
                if len(sets) >= limits.states or members > 5 * limits.symbols:
                    raise RequestError("the grammar's automaton has too many states (limits.grammar_states)")
                if nfa.final in closed:
                    self.accepting.add(len(sets))
                numbers[closed] = len(sets)
                sets.append(closed)
            return numbers[closed]

        numbered(frozenset((0,)))
        while len(self.rows) < len(sets):
            row = array("i", [DEAD]) * 256
            edges = [edge for state in sets[len(self.rows)] for edge in nfa.edges[state]]
            for first, last, targets in _apart(edges):
                row[first : last + 1] = array("i", [numbered(targets)]) * (last + 1 - first)
            self.rows.append(row)


def _closure(nfa: Nfa, states: frozenset[int]) -> frozenset[int]:
    """``states``, and those that are reached from them without a byte."""
    reached, todo = set(states), list(states)
    while todo:
        for target in nfa.free[todo.pop()]:
            if target not in reached:
                reached.add(target)
                todo.append(target)
    return frozenset(reached)


def _apart(edges: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, frozenset[int]]]:
    """Ranges of bytes that have the same targets, in order, and these."""
    cuts = sorted({first for first, _, _ in edges} | {last + 1 for _, last, _ in edges})
    targets: list[set[int]] = [set() for _ in cuts]
    for first, last, target in edges:
        for place in range(bisect_right(cuts, first) - 1, bisect_right(cuts, last)):
            targets[place].add(target)
    for (first, stop), found in zip(pairwise(cuts), targets, strict=False):
        if found:
            yield first, stop - 1, frozenset(found)
