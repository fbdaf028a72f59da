"""Reads regular expressions: what Python's and Rust's have in common. What can't be enforced is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NoReturn

from llmk.api import RequestError
from llmk_delta.loon_terms import LAST, SURROGATES, Ranges, Term, Terms

QUANTIFIER = re.compile(r"(?:([*+?])|\{([0-9]{1,6})(,?)([0-9]{0,6})\})\??")
COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
GROUP = re.compile(r"\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>)")
CODE = re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,8})\}|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
CLASSES = {"d": r"\d+", "w": r"\w+", "s": r"[^\S\x1c-\x1f]+"}
SET_OPERATIONS = ("&&", "--", "~~", "||")
MOST_DEEP = 100


def parse(text: str, terms: Terms, most: int) -> Term:
    """The term of a regular expression, which has ``most`` characters at most once counts are written out."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("the regular expression has half of a surrogate pair, which no text has") from error
    return Parser(text, terms, most).whole()


class Parser:
    """Recursive descent. Methods return a term and how many characters it has."""

    def __init__(self, text: str, terms: Terms, most: int) -> None:
        self._text, self._terms, self._most = text, terms, most
        self._at = 0

    def whole(self) -> Term:
        """The term of the whole text."""
        term, _ = self._choice(0)
        if self._at < len(self._text):
            self._refuse("a parenthesis closes nothing")
        return term

    def _choice(self, depth: int) -> tuple[Term, int]:
        if depth > MOST_DEEP:
            self._refuse(f"groups are nested more than {MOST_DEEP} deep")
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return self._terms.alt(term for term, _ in options), self._bounded(sum(size for _, size in options))

    def _sequence(self, depth: int) -> tuple[Term, int]:
        """Anchors say nothing where the whole text starts and ends, and are refused elsewhere."""
        items = []
        if depth == 0:
            self._take("^")
        while self._peek() not in ("", "|", ")"):
            if depth == 0 and self._peek() == "$" and self._text[self._at + 1 : self._at + 2] in ("", "|"):
                self._at += 1
                break
            items.append(self._repeated(depth))
        whole = self._terms.empty
        for term, _ in reversed(items):
            whole = self._terms.cat(term, whole)
        return whole, self._bounded(sum(size for _, size in items))

    def _repeated(self, depth: int) -> tuple[Term, int]:
        term, size = self._atom(depth)
        count = QUANTIFIER.match(self._text, self._at)
        if count is None:
            return term, size
        self._at = count.end()
        sign, least, comma, most = count.groups()
        low, high = COUNTS[sign] if sign else (int(least), int(most or (least if not comma else -1)))
        high = None if high is None or high < 0 else high
        if high is not None and high < low:
            self._refuse(f"a count is at least {low} and at most {high}")
        if self._peek() and self._peek() in "*+?{":
            self._refuse("a count follows another")
        return self._terms.repeat(term, low, high), self._bounded(size * max(low, high or 1))

    def _atom(self, depth: int) -> tuple[Term, int]:
        letter = self._peek()
        self._at += 1
        if letter == "(":
            group = GROUP.match(self._text, self._at)
            if group is None and self._peek() == "?":
                self._refuse("look-around, flags and other extensions of groups can't be enforced")
            self._at = group.end() if group else self._at
            term, size = self._choice(depth + 1)
            if not self._take(")"):
                self._refuse("a group isn't closed")
            return term, size
        if letter in "*+?{":
            self._refuse(f"{letter} repeats nothing")
        if letter in "^$":
            self._refuse(f"the anchor {letter} can't be enforced here")
        ranges = self._set() if letter == "[" else self._one(letter)
        term = self._terms.chars(ranges)
        if term is self._terms.never:
            self._refuse("a set of characters has none, so that nothing matches")
        return term, 1

    def _one(self, letter: str) -> Ranges:
        if letter == ".":
            return complement(((10, 10),))
        return self._escaped() if letter == "\\" else ((ord(letter), ord(letter)),)

    def _set(self) -> Ranges:
        """What stands in brackets."""
        negative = self._take("^")
        found: list[tuple[int, int]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            item = self._member()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                end = self._member()
                if item[0][0] != item[-1][1] or end[0][0] != end[-1][1] or item[0][0] > end[0][0]:
                    self._refuse("a range of characters has no order")
                item = ((item[0][0], end[0][0]),)
            found += item
        self._at += 1
        return complement(found) if negative else joined(found)

    def _member(self) -> Ranges:
        letter = self._peek()
        if not letter:
            self._refuse("a set of characters isn't closed")
        if letter == "[" or self._text.startswith(SET_OPERATIONS, self._at):
            self._refuse("sets of sets can't be enforced: write a backslash before such characters")
        self._at += 1
        return self._escaped() if letter == "\\" else ((ord(letter), ord(letter)),)

    def _escaped(self) -> Ranges:
        """What stands behind a backslash."""
        letter = self._peek()
        code = CODE.match(self._text, self._at)
        self._at = code.end() if code else self._at + 1
        if code:
            point = int(next(filter(None, code.groups())), 16)
            if point > LAST:
                self._refuse(f"there is no character {point:#x}")
            return ((point, point),)
        if letter.lower() in CLASSES and letter:
            ranges = of_class(letter.lower())
            return ranges if letter.islower() else complement(ranges)
        if letter == "0" and not self._peek().isdigit():
            return ((0, 0),)
        if not letter or (letter.isascii() and letter.isalnum() and letter not in CONTROLS):
            self._refuse(f"\\{letter} can't be enforced")
        point = ord(CONTROLS.get(letter, letter))
        return ((point, point),)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, letter: str) -> bool:
        found = self._peek() == letter
        self._at += found
        return found

    def _bounded(self, size: int) -> int:
        if size > self._most:
            self._refuse(f"there are more than {self._most} characters once counts are written out")
        return size

    def _refuse(self, why: str) -> NoReturn:
        raise RequestError(f"the regular expression, at character {min(self._at, len(self._text))}: {why}")


@cache
def of_class(letter: str) -> Ranges:
    """The characters of ``\\d``, ``\\w`` or ``\\s``, in all of Unicode."""
    text = "".join(map(chr, range(LAST + 1)))
    return tuple((found.start(), found.end() - 1) for found in re.finditer(CLASSES[letter], text))


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in order, those that overlap or touch in one."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All other characters."""
    return tuple(_between(joined([*ranges, SURROGATES])))


def _between(ranges: Ranges) -> Iterator[tuple[int, int]]:
    start = 0
    for low, high in ranges:
        if start < low:
            yield start, low - 1
        start = high + 1
    if start <= LAST:
        yield start, LAST
