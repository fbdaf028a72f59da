"""Turns tokens into text as they come. The pieces, concatenated, are what decoding all tokens at once would give.

For the decoders that language models use, a token's share of the text is known from the token alone, but for bytes that
are not yet a character; those are held back. Any other decoder is called again with a little context.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Protocol

REPLACEMENT = "\ufffd"
_MAX_HELD = 8
"""Tokens that the general detokenizer waits for to become a character: more than any character has bytes."""
_MAX_TEXTS = 1 << 15
"""Tokens whose texts are kept."""


class Detokenizer(Protocol):
    """One sequence's text."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Takes the next tokens; returns the text that is now certain."""
        ...

    def finish(self) -> str:
        """No more tokens: returns what was held back."""
        ...


class ByteDetokenizer:
    """For byte-level decoders: a token is a string of bytes, the text is their UTF-8."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """Takes the next tokens; returns the text that is now certain."""
        return self._utf8.decode(b"".join(map(self._token_bytes, token_ids)))

    def finish(self) -> str:
        """Returns a replacement character where the last one is incomplete."""
        return self._utf8.decode(b"", final=True)


class PieceDetokenizer:
    """For decoders of the SentencePiece kind: a token is a text or, as a fallback, one byte.

    A run of byte tokens is UTF-8 as a whole or, as in the decoder, as many replacement characters as it has bytes, so
    it is held back until it ends. ``strip`` leading ``strip_char`` are removed from the text.
    """

    def __init__(
        self,
        piece: Callable[[int], str | bytes | None],
        *,
        first_piece: Callable[[int], str | bytes | None] | None = None,
        strip: int = 0,
        strip_char: str = " ",
    ) -> None:
        self._piece = piece
        self._next_piece = first_piece or piece
        self._strip = strip
        self._strip_char = strip_char
        self._held = bytearray()

    def push(self, token_ids: Sequence[int]) -> str:
        """Takes the next tokens; returns the text that is now certain."""
        texts = []
        for token in token_ids:
            piece = self._next_piece(token)
            if piece is None:
                continue
            self._next_piece = self._piece
            if isinstance(piece, bytes):
                self._held += piece
            else:
                if self._held:
                    texts.append(self._release())
                texts.append(piece)
        return self._stripped("".join(texts))

    def finish(self) -> str:
        """Returns the run of bytes that ended the text."""
        return self._stripped(self._release())

    def _release(self) -> str:
        held, self._held = self._held, bytearray()
        try:
            return held.decode("utf-8")
        except UnicodeDecodeError:
            return REPLACEMENT * len(held)

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != self._strip_char:
                self._strip = 0
            else:
                text = text[1:]
                self._strip -= 1
        return text


class WindowDetokenizer:
    """For any other decoder: decodes the last few tokens together and takes what the new ones added."""

    def __init__(self, decode: Callable[[list[int]], str], skip: Collection[int] = ()) -> None:
        self._decode = decode
        self._skip = skip
        self._context: list[int] = []
        self._new: list[int] = []

    def push(self, token_ids: Sequence[int]) -> str:
        """Takes the next tokens; returns the text that is now certain."""
        texts = []
        for token in token_ids:
            if token in self._skip:
                continue
            self._new.append(token)
            text = self._added()
            if not text.endswith(REPLACEMENT) or len(self._new) == _MAX_HELD:
                texts.append(text)
                self._context, self._new = self._new if text else self._context, []
        return "".join(texts)

    def finish(self) -> str:
        """Returns what was held back."""
        text = self._added() if self._new else ""
        self._new = []
        return text

    def _added(self) -> str:
        before = self._decode(self._context) if self._context else ""
        return self._decode(self._context + self._new)[len(before) :]


class Vocabulary:
    """How a decoder turns tokens into text, read from its description in ``tokenizer.json``.

    ``token`` maps an id to the vocabulary's string, ``None`` where it has none. ``special`` are the ids of special
    tokens. ``decode`` decodes ids, special ones included.
    """

    def __init__(
        self,
        decoder: Mapping[str, Any] | None,
        token: Callable[[int], str | None],
        special: frozenset[int],
        decode: Callable[[list[int]], str],
    ) -> None:
        self._decoder = decoder or {}
        self._token = token
        self._special = special
        self._decode = decode
        self._make = {skip: self._compile(skip) for skip in (False, True)}
        self.text = lru_cache(_MAX_TEXTS)(self._text)
        """A token's text inside a longer one; bytes that are no character by themselves are replaced."""

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        """A detokenizer for one sequence."""
        return self._make[skip_special_tokens]()

    def _text(self, token_id: int) -> str:
        once, twice = (self._make[False]() for _ in range(2))
        first = once.push([token_id]) + once.finish()
        return (twice.push([token_id, token_id]) + twice.finish())[len(first) :]

    def token_bytes(self, token_id: int) -> bytes:
        """A token's own bytes, which need not be a character."""
        string = self._token(token_id) or ""
        if self._decoder.get("type") == "ByteLevel":
            return _bytes_of(string)
        match = _BYTE_TOKEN.fullmatch(string)
        return bytes([int(match[1], 16)]) if match else self.text(token_id).encode()

    def _compile(self, skip: bool) -> Callable[[], Detokenizer]:
        """How to make a detokenizer. What tokens stand for is looked up once each; ``None`` is a token without text."""

        def string(token_id: int) -> str | None:
            return None if skip and token_id in self._special else self._token(token_id)

        decoder = self._decoder
        if decoder.get("type") == "ByteLevel":
            token_bytes = cache(lambda token_id: _bytes_of(string(token_id) or ""))
            return lambda: ByteDetokenizer(token_bytes)
        if decoder.get("type") == "Metaspace":
            later = cache(partial(_piece, string, {decoder["replacement"]: " "}, False))
            never = decoder.get("prepend_scheme") == "never"
            first = later if never else cache(partial(_piece, string, {decoder["replacement"]: ""}, False))
            return lambda: PieceDetokenizer(later, first_piece=first)
        shape = _SentencePiece.read(decoder)
        if shape is not None:
            piece = cache(partial(_piece, string, shape.replacements, shape.byte_fallback))
            return lambda: PieceDetokenizer(piece, strip=shape.strip, strip_char=shape.strip_char)
        return lambda: WindowDetokenizer(self._decode, self._special if skip else frozenset())


@dataclass(slots=True)
class _SentencePiece:
    """A decoder that is a sequence of replacements, byte fallback, fusing, and stripping on the left, in this order."""

    replacements: dict[str, str]
    byte_fallback: bool = False
    strip: int = 0
    strip_char: str = " "

    @classmethod
    def read(cls, decoder: Mapping[str, Any]) -> _SentencePiece | None:
        """The shape of ``decoder``, or ``None`` where it is another one."""
        steps = deque(decoder.get("decoders") or ())
        shape = cls({})
        while steps and steps[0]["type"] == "Replace" and "String" in steps[0]["pattern"]:
            step = steps.popleft()
            shape.replacements[step["pattern"]["String"]] = step["content"]
        if steps and steps[0]["type"] == "ByteFallback":
            steps.popleft()
            shape.byte_fallback = True
        if not steps or steps.popleft()["type"] != "Fuse":
            return None
        if steps and steps[0]["type"] == "Strip" and not steps[0]["stop"]:
            step = steps.popleft()
            shape.strip, shape.strip_char = step["start"], step["content"]
        return None if steps else shape


def _piece(
    string: Callable[[int], str | None], replacements: Mapping[str, str], byte_fallback: bool, token_id: int
) -> str | bytes | None:
    text = string(token_id)
    if text is None:
        return None
    for old, new in replacements.items():
        text = text.replace(old, new)
    match = _BYTE_TOKEN.fullmatch(text) if byte_fallback else None
    return bytes([int(match[1], 16)]) if match else text


def _bytes_of(token: str) -> bytes:
    """The bytes that a byte-level vocabulary writes as ``token``; a token that was added as plain text is its UTF-8."""
    try:
        return bytes(_BYTE_OF[char] for char in token)
    except KeyError:
        return token.encode("utf-8")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
