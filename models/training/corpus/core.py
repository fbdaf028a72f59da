"""The pieces every task function is made of: turns, samples, phrasing and the train/test split."""

import random
import re
import zlib
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
Tool = dict[str, Any]

TEST_SHARE = 25
"""One key in so many belongs to the test split."""
SHORT_KEY = 16
"""Keys of at most this many characters without a digit are always in the training split."""


@dataclass(frozen=True)
class Call:
    """A tool call: the function's name and its JSON arguments."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Check:
    """How an answer is judged.

    ``kind`` is one of ``has`` (all of the strings occur), ``is`` (exact text), ``json`` (parses to the value),
    ``calls`` (these tool calls), ``prose`` (whole sentences of at least so many words), ``unknown`` (admits
    not to know).
    """

    kind: str
    value: Any = None


@dataclass(frozen=True)
class Turn:
    """A user request with its ideal answer, and what must surround it.

    ``direct`` is the answer to give without thinking, where it differs from ``text``; ``short`` is the bare
    answer; ``key`` decides the split and defaults to the request's text.
    """

    category: str
    user: str
    text: str
    thought: str
    check: Check
    direct: str | None = None
    short: str | None = None
    key: str = ""
    system: str | None = None
    history: tuple[Message, ...] = ()
    results: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One training document: messages up to the reply, and the reply."""

    category: str
    messages: list[Message]
    text: str
    check: Check
    thought: str = ""
    thinking: bool = False
    plain: bool = False
    calls: tuple[Call, ...] = ()
    tools: list[Tool] | None = field(default=None)


def split_of(key: str) -> str:
    """``test`` for about one key in TEST_SHARE, by a hash of its letters and digits; else ``train``."""
    plain = re.sub(r"[^a-z0-9+*/-]", "", key.lower())
    if len(plain) <= SHORT_KEY and not any(letter.isdigit() for letter in plain):
        return "train"
    return "test" if zlib.crc32(plain.encode()) % TEST_SHARE == 0 else "train"


def _typo(rng: random.Random, text: str) -> str:
    """Swap, drop or double one letter of a literal piece of a template."""
    if len(text) < 6:
        return text
    at = rng.randrange(1, len(text) - 2)
    if not text[at : at + 2].isalpha():
        return text
    swapped = text[at + 1] + text[at]
    return text[:at] + rng.choice((swapped, text[at], text[at] * 2 + text[at + 1])) + text[at + 2 :]


OPENERS = (
    "Please ", "Hey, ", "Hi, ", "Hello! ", "Quick question: ", "Ok, ", "So, ", "Can you help me? ", "Tell me, ", "Now: ",
    "I have a question. ", "Hi there! ", "Well, ", "Good morning! ", "Hey llmk, ", "Could you help? ", "One more: ",
)  # fmt: skip
CLOSERS = (" Thanks!", " Please.", " please", " Thank you.", " thanks", " :)")


def phrase(rng: random.Random, templates: tuple[str, ...] | list[str], noise: float = 1.0, **slots: object) -> str:
    """One of the templates with its ``{slots}`` filled, worded as people type: sometimes careless, sometimes polite."""
    template = rng.choice(templates)
    pieces = re.split(r"(\{\w+\})", template)
    literal = [index for index, piece in enumerate(pieces) if piece and not piece.startswith("{")]
    if rng.random() < 0.05 * noise and literal:
        at = rng.choice(literal)
        pieces[at] = _typo(rng, pieces[at])
    careless = rng.random() < 0.22 * noise
    if careless:
        for at in literal:
            pieces[at] = pieces[at].lower()
    text = "".join(str(slots[piece[1:-1]]) if piece.startswith("{") else piece for piece in pieces)
    if rng.random() < 0.2 * noise and text[-1:] in "?.!":
        text = text[:-1]
    if rng.random() < 0.1 * noise:
        opener = rng.choice(OPENERS)
        keep = (
            opener.endswith((". ", "! ", "? ", ": "))
            or text[:2] == "I "
            or not text[:1].isupper()
            or template.startswith("{")
        )
        text = opener + (text if keep else text[0].lower() + text[1:])
    if rng.random() < 0.05 * noise:
        text += rng.choice(CLOSERS)
    return text


def say(rng: random.Random, templates: tuple[str, ...] | list[str], **slots: object) -> str:
    """One of the templates with its slots filled, worded with care: for answers."""
    return rng.choice(templates).format(**slots)


def listing(items: list[str] | tuple[str, ...], last: str = "and") -> str:
    """``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + f" {last} {items[-1]}"


def article(noun: str) -> str:
    """The noun with ``a`` or ``an``."""
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun


def number(value: float) -> str:
    """A number without a trailing ``.0`` and with at most two decimals."""
    return f"{round(value, 2):.2f}".rstrip("0").rstrip(".")


def bars(text: str) -> tuple[str, ...]:
    """Split a text at its bars."""
    return tuple(part.strip() for part in text.split("|"))
