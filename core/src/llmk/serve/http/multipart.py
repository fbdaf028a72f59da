"""Forms with a file (multipart/form-data, RFC 7578), written to disk as they arrive."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from llmk.serve.http.error_handlers import Refused
from llmk.serve.http.errors import InvalidForm

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # its warnings are about invalid forms of clients

MOST_FIELDS, MOST_FIELD_BYTES, MOST_NAME = 16, 4096, 255
PIECE = 256 << 10
"""Bytes that are parsed and written at a time, in a thread."""


class FormReader:
    """Parses a form; the content of its field ``file`` is written to ``place``, synced when the form has ended.

    Call :meth:`feed` and :meth:`end` in a thread. ``check`` gets the number of bytes written so far, before more are.
    """

    def __init__(self, content_type: str, place: Path, check: Callable[[int], None]) -> None:
        _, options = parse_options_header(content_type)
        if not (boundary := options.get(b"boundary", b"")):
            raise Refused(415, "send a form, with the header 'content-type: multipart/form-data; boundary=...'")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.size = 0
        self._place = place
        self._check = check
        self._header = b""
        self._disposition = b""
        self._name = ""
        self._value = bytearray()
        self._ended = False
        self._file = place.open("xb", buffering=0)
        callbacks: MultipartCallbacks = {
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._on_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }
        self._parser = MultipartParser(boundary, callbacks)
        self._field = bytearray()

    def feed(self, data: bytes) -> None:
        """Parses the next bytes of the body. Raises InvalidForm, and what ``check`` raises."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidForm(f"the form can't be parsed: {error}", param="file") from None

    def end(self) -> None:
        """Checks that the form is complete. Raises InvalidForm."""
        if not self._ended:
            raise InvalidForm("the form ends before its last boundary", param="file")
        if self.filename is None:
            raise InvalidForm("the form has no file: send one in the field 'file'", param="file")
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._field.clear()
        self._value.clear()

    def _on_headers(self) -> None:
        kind, options = parse_options_header(self._disposition)
        self._disposition = b""
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if kind != b"form-data" or not name:
            raise InvalidForm("a part of the form has no name", param="file")
        if name in self.fields or (name == "file" and self.filename is not None):
            raise InvalidForm(f"the form has the field {name[:MOST_NAME]!r} twice", param=name)
        if len(self.fields) >= MOST_FIELDS:
            raise InvalidForm(f"the form has more than {MOST_FIELDS} fields", param=name)
        self._name = name
        if name == "file":
            given = options.get(b"filename", b"").decode("utf-8", "replace")
            self.filename = given.replace("\\", "/").rsplit("/", 1)[-1][:MOST_NAME] or "file"

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._name != "file":
            self._value += data[start:end]
            if len(self._value) > MOST_FIELD_BYTES:
                what = f"the field {self._name[:MOST_NAME]!r} has more than {MOST_FIELD_BYTES} bytes"
                raise InvalidForm(what, param=self._name)
            return
        self._check(self.size + end - start)
        left = memoryview(data)[start:end]
        while left:
            left = left[self._file.write(left) :]
        self.size += end - start

    def _on_part_end(self) -> None:
        if self._name != "file":
            self.fields[self._name] = self._value.decode("utf-8", "replace")
            self._value.clear()

    def _on_end(self) -> None:
        self._ended = True


async def pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces of about :data:`PIECE`."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        if len(held) >= PIECE:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
