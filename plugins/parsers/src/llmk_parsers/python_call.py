"""One tool call written as a Python call, ``name(key=value, …)``, whose arguments are streamed as a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from llmk_parsers.call_reader import LONGEST_NAME, CallReader
from llmk_parsers.python_literals import scalar, unescape
from llmk_parsers.schema_values import escaped

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[\w.-]*")
_WORD = re.compile(r"[\w.]*")
_STARTS_WORD = re.compile(r"[\w.+-]")
_PREFIXES = {"r", "R", "u", "U"}
_DEEPEST = 64
_LONGEST_WORD = 512
_PLAIN = {quote: re.compile(rf"[^{quote}\\]*") for quote in "'\""}
_LONGEST_LOOK = 320
_GOES_ON = re.compile(r"\s*(?:,\s*(?:[A-Za-z_]\w{0,255}\s*=(?!=)|\*\*\{|\))|\)\s*(?:[\],;<\n]|\Z))")
"""What follows the quote that ends an argument."""
_MAY_GO_ON = re.compile(r"\s*(?:,\s*(?:[A-Za-z_]\w{0,255}\s*=?|\*{1,2})?|\)\s*)?\Z")


class _Frame:
    """An open bracket. ``held`` is the JSON inside while its kind isn't known yet."""

    __slots__ = ("closing", "held", "is_spread", "kind", "num_items")

    def __init__(self, kind: str, closing: str, held: list[str] | None = None, *, is_spread: bool = False) -> None:
        self.kind = kind
        self.closing = closing
        self.held = held
        self.is_spread = is_spread
        self.num_items = 0

    @property
    def wants_key(self) -> bool:
        return self.kind == "dict" and self.num_items % 2 == 0

    @property
    def wants_value(self) -> bool:
        """Whether a key's value is missing."""
        return self.kind == "dict" and self.num_items % 2 == 1


class PythonCall(CallReader):
    """Reads a call with literals as arguments: strings of any kind but bytes and format strings, numbers, constants,
    lists, tuples and sets (which become arrays), dictionaries, and also the constants of JSON.

    Args:
        index: the call's number.
        parameters: the names of positional arguments by the tool's name.
        loose_quotes: whether a quote ends an argument's string only where the call goes on behind it, for models that
            don't escape quotes: ``run(cmd='sed -n '1,9p' x')``.
    """

    _called: str
    """The call's name."""
    _quote: str
    """Of the open string: how it starts, one of three quotes where there are three."""
    _closing: str
    """Of the open string: how it ends."""
    _raw_string: bool

    def __init__(
        self, index: int, parameters: Callable[[str], Sequence[str]] = lambda name: (), *, loose_quotes: bool = False
    ) -> None:
        super().__init__(index)
        self._parameters = parameters
        self._loose_quotes = loose_quotes
        self._step = self._in_name
        self._word = ""
        self._frames: list[_Frame] = []
        self._keywords: set[str] = set()
        self._is_string = False
        """Whether the last value is a string, which another one may continue."""

    def _in_name(self, text: str, at: int) -> int:
        end = self._read_word(_NAME, text, at, LONGEST_NAME)
        if end < len(text) and not self.bad:
            self._called = self._word
            self.bad = not self._called or self._called[0] in "0123456789.-" or self._called[-1] in ".-"
            self._step = self._before_arguments
        return end

    def _before_arguments(self, text: str, at: int) -> int:
        if text[at] in " \t":
            return at + 1
        self._frames.append(_Frame("call", ")"))
        self._step = self._argument
        return self._expect(text, at, "(")

    def _argument(self, text: str, at: int) -> int:
        """The next argument, or the end of the call."""
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        if text[at] == ")":
            return self._close(text, at)
        if text[at] == "*":
            return self._members(text, at)
        if text[at].isalpha() or text[at] == "_":
            self._start_word(self._keyword)
            return at
        self._positional()
        return at

    def _members(self, text: str, at: int) -> int:
        """A dictionary of arguments, ``**{"name": value}``."""
        if at + 3 > len(text) and not self.final:
            self._waits = True
            return at
        self.bad = text[at : at + 3] != "**{"
        self._name = self._called
        self._frames.append(_Frame("dict", "}", is_spread=True))
        self._step = self._value
        return at if self.bad else at + 3

    def _keyword(self, text: str, at: int) -> int:
        end = self._read_word(_WORD, text, at, LONGEST_NAME)
        if end < len(text) and not self.bad:
            self._step = self._behind_word
        return end

    def _behind_word(self, text: str, at: int) -> int:
        """Behind a word that is the name of an argument, or a constant, or the prefix of a string."""
        if text[at].isspace():
            return at + 1
        if text[at] == "=":
            self._put_key(self._word)
            return at + 1
        self._positional()
        if not self.bad:
            return self._end_word(text, at)
        return at

    def _positional(self) -> None:
        """The next value is that of the next of the tool's parameters."""
        names = self._parameters(self._called)
        number = self._frames[0].num_items
        if number < len(names):
            self._put_key(names[number])
        else:
            self.bad = True

    def _put_key(self, key: str) -> None:
        self.bad = key in self._keywords or not key
        self._keywords.add(key)
        frame = self._frames[0]
        self._name = self._called
        self._emit(f"{', ' if frame.num_items else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        frame.num_items += 1
        self._step = self._value

    def _value(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        mark, frame = text[at], self._frames[-1]
        if mark in "'\"":
            self._start_string(mark)
        elif mark in "[({":
            self._open(mark)
        elif mark == frame.closing and frame.kind != "call" and not frame.wants_value:
            return self._close(text, at)
        elif _STARTS_WORD.match(mark):
            self._start_word(self._in_word)
            return at
        else:
            self.bad = True
            return at
        return at + 1

    def _open(self, mark: str) -> None:
        self.bad = len(self._frames) >= _DEEPEST or self._frames[-1].wants_key
        self._separate()
        if mark == "[":
            self._emit("[")
            self._frames.append(_Frame("list", "]"))
        else:
            kind, closing = ("brace", "}") if mark == "{" else ("paren", ")")
            self._frames.append(_Frame(kind, closing, []))
        self._step = self._value

    def _separate(self) -> None:
        """Before an item of a bracket; counts it."""
        frame = self._frames[-1]
        if frame.kind == "call":
            return
        if frame.is_spread and frame.wants_key:
            self._emit(", " if self._frames[0].num_items else "{")
            self._frames[0].num_items += 1
        elif frame.num_items:
            self._emit(": " if frame.wants_value else ", ")
        frame.num_items += 1

    def _in_word(self, text: str, at: int) -> int:
        """A number, a constant, or the prefix of a string."""
        if text[at] in "+-" and self._takes_sign():
            self._word += text[at]
            return at + 1
        end = self._read_word(_WORD, text, at, _LONGEST_WORD)
        if end == len(text) or self.bad or (text[end] in "+-" and self._takes_sign()):
            return end
        return self._end_word(text, end)

    def _takes_sign(self) -> bool:
        """At the start of a number, and of its exponent."""
        return not self._word or self._word[-1] in "eE"

    def _end_word(self, text: str, at: int) -> int:
        if text[at] in "'\"" and self._word in _PREFIXES:
            self._start_string(text[at], raw=self._word in "rR")
            return at + 1
        written = scalar(self._word)
        if written is None:
            self.bad = True
            return at
        is_key = self._frames[-1].wants_key
        self._separate()
        self._emit(f'"{written}"' if is_key else written)
        self._is_string = False
        self._step = self._after_value
        return at

    def _start_string(self, quote: str, *, raw: bool = False) -> None:
        if not self._is_string:
            self._separate()
            self._emit('"')
        self._is_string = True
        self._raw_string = raw
        self._quote = self._closing = quote
        self._step = self._after_quote

    def _after_quote(self, text: str, at: int) -> int:
        """Behind the first quote: of an empty string, of a string, or of three."""
        if text[at] != self._quote:
            self._step = self._string
        elif at + 1 == len(text) and not self.final:
            self._waits = True
        elif text[at + 1 : at + 2] == self._quote:
            self._closing = self._quote * 3
            self._step = self._string
            return at + 2
        else:
            self._step = self._string
            if not (self._loose_quotes and self._is_argument()):
                self._step = self._after_value
                return at + 1
        return at

    def _string(self, text: str, at: int) -> int:
        found = _PLAIN[self._quote].match(text, at)
        end = found.end() if found else at
        self._emit(escaped(text[at:end]))
        if end == len(text):
            return end
        if text[end] == "\\":
            return self._escape(text, end)
        return self._string_end(text, end)

    def _escape(self, text: str, at: int) -> int:
        end, said = unescape(text, at, self.final)
        if end == at:
            self._waits = True
        else:
            self._emit(escaped(text[at:end] if self._raw_string else said))
        return end

    def _string_end(self, text: str, at: int) -> int:
        """At a quote, which may end the string."""
        if len(self._closing) == 3:
            quotes = text[at : at + 3]
            if quotes == self._closing:
                self._step = self._after_value
                return at + 3
            if not self.final and self._closing.startswith(quotes):
                self._waits = True
                return at
        else:
            ends = self._ends_argument(text, at + 1) if self._loose_quotes and self._is_argument() else True
            if ends is None:
                self._waits = True
                return at
            if ends:
                self._step = self._after_value
                return at + 1
        self._emit(escaped(self._quote))
        return at + 1

    def _is_argument(self) -> bool:
        return len(self._frames) == 1

    def _ends_argument(self, text: str, at: int) -> bool | None:
        """Whether the call goes on behind a quote; ``None``: more text is needed."""
        piece = text[at : at + _LONGEST_LOOK]
        if not self.final and len(piece) < _LONGEST_LOOK and _MAY_GO_ON.match(piece):
            return None
        return bool(_GOES_ON.match(piece))

    def _after_value(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        if at == len(text):
            return at
        mark, frame = text[at], self._frames[-1]
        if self._is_string:
            if mark in "'\"":
                self._start_string(mark)
                return at + 1
            self._emit('"')
            self._is_string = False
        if mark == ":":
            return self._colon(at, frame)
        if frame.wants_value:
            self.bad = True
            return at
        if mark == ",":
            return self._comma(at, frame)
        if mark == frame.closing:
            return self._close(text, at)
        self.bad = True
        return at

    def _comma(self, at: int, frame: _Frame) -> int:
        if frame.held is not None:
            self._decide(frame, "list", "[")
        self._step = self._argument if frame.kind == "call" else self._value
        return at + 1

    def _colon(self, at: int, frame: _Frame) -> int:
        if frame.kind == "brace":
            assert frame.held is not None
            key = "".join(frame.held)
            self.bad = key[0] in "[{"
            frame.held = [key if key[0] == '"' else f'"{key}"']
            self._decide(frame, "dict", "{")
        elif not frame.wants_value:
            self.bad = True
        self._step = self._value
        return at + 1

    def _decide(self, frame: _Frame, kind: str, opening: str) -> None:
        """The kind of a bracket is known: what is held of it may be passed on."""
        held, frame.held, frame.kind = frame.held or [], None, kind
        self._emit(opening + "".join(held))

    def _close(self, text: str, at: int) -> int:
        frame = self._frames[-1]
        if frame.kind == "call":
            return self._close_call(at)
        if frame.held is not None:
            if frame.kind == "paren" and frame.num_items:
                self._decide(frame, "paren", "")
            else:
                is_dict = frame.kind == "brace" and not frame.num_items
                self._decide(frame, *(("dict", "{") if is_dict else ("list", "[")))
        self._emit("" if frame.is_spread else {"list": "]", "dict": "}", "paren": ""}[frame.kind])
        self._frames.pop()
        self._step = self._after_value
        return at + 1

    def _close_call(self, at: int) -> int:
        self._name = self._called
        self._emit("}" if self._frames[0].num_items else "{}")
        self._end()
        self.done = True
        return at + 1

    def _emit(self, piece: str) -> None:
        for frame in reversed(self._frames):
            if frame.held is not None:
                frame.held.append(piece)
                return
        self._pass_on(piece)

    def _start_word(self, step: Callable[[str, int], int]) -> None:
        self._word = ""
        self._step = step

    def _read_word(self, wanted: re.Pattern[str], text: str, at: int, longest: int) -> int:
        found = wanted.match(text, at, at + longest)
        end = found.end() if found else at
        self._word += text[at:end]
        self.bad = len(self._word) > longest
        return end

    @staticmethod
    def _skip_space(text: str, at: int) -> int:
        found = _SPACE.match(text, at)
        return found.end() if found else at
