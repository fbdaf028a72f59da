"""The headers of tar archives."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmk.api import OK, CheckpointError, CheckpointFile, Verdict, no

BLOCK = 512


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says of a member: ``kind`` is its type, one byte."""

    name: str
    size: int
    kind: bytes


def claims(file: CheckpointFile) -> Verdict:
    """By the first header: its mark and its checksum."""
    with file.open() as stream:
        block = stream.read(BLOCK)
    return OK if is_header(block) else no("magic", wanted="ustar, and the checksum of a header")


def is_header(block: bytes) -> bool:
    """Whether a block is whole, and its bytes have the sum that it states, its own field counted as spaces."""
    if len(block) < BLOCK or block[257:262] != b"ustar":
        return False
    return _number(block[148:156]) == sum(block) - sum(block[148:156]) + 8 * 32


def header(file: CheckpointFile, block: bytes) -> Header:
    """The header in a block. Raises CheckpointError."""
    if not is_header(block):
        raise damaged(file, "a header is cut, or its checksum is another")
    name, prefix, size = text_of(block[:100]), text_of(block[345:500]), _number(block[124:136])
    if prefix and block[257:263] == b"ustar\0":
        name = f"{prefix}/{name}"
    if size is None:
        raise damaged(file, f"{name!a} has no valid size")
    return Header(name, size, block[156:157])


def pax_records(file: CheckpointFile, data: bytes) -> dict[str, str]:
    """The records of a pax header, each of which says its own length first: ``"22 path=model/a b.txt\\n"``."""
    found, at = {}, 0
    while at < len(data):
        match = re.compile(rb"([0-9]{1,8}) ").match(data, at)
        end = at + int(match[1]) if match else 0
        if match is None or end > len(data) or end <= match.end() or data[end - 1] != 10:
            raise damaged(file, "a pax header is not valid")
        key, equals, value = data[match.end() : end - 1].partition(b"=")
        if not equals:
            raise damaged(file, "a record of a pax header has no value")
        found[key.decode(errors="replace")] = value.decode(errors="surrogateescape")
        at = end
    return found


def text_of(field: bytes) -> str:
    """A text that ends at its first NUL. Names need not be UTF-8."""
    return field.partition(b"\0")[0].decode(errors="surrogateescape")


def damaged(file: CheckpointFile, why: str) -> CheckpointError:
    """The error about a file."""
    return CheckpointError(f"{file} can't be read as a tar archive of a model: {why}", hint="pack or copy it again")


def _number(field: bytes) -> int | None:
    """Octal digits, or GNU's base 256; ``None`` if it is neither, or negative."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    return int(digits, 8) if re.fullmatch(b"[0-7]+", digits) else None
