"""Blanks the code for other chips in a CUDA shared library, so that it compresses far better. Its layout stays.

    python benchmarks/peers/prune_fatbin.py LIBRARY.so [90]

Of each fat binary that has machine code of the target's generation, the newest of it up to the target is kept; of
others, everything up to the target. The format is read off libraries as nvcc writes them: a header of 16 bytes, then
entries, each with its kind (1: PTX, 2: machine code), header length, payload length and, at byte 28, its chip.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

MAGIC = struct.pack("<I", 0xBA55ED50)
HEADER = 16
MACHINE_CODE = 2

Entry = tuple[int, int, int, int]
"""Kind, chip, start and length of the payload."""


def fat_binaries(data: bytearray) -> Iterator[list[Entry]]:
    """The entries of every fat binary in a library."""
    at = data.find(MAGIC)
    while at >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, at + len(MAGIC))
        end = at + HEADER + size
        if version == 1 and header == HEADER and end <= len(data):
            yield list(entries(data, at + HEADER, end))
            at = data.find(MAGIC, end)
        else:
            at = data.find(MAGIC, at + len(MAGIC))


def entries(data: bytearray, at: int, end: int) -> Iterator[Entry]:
    """What stands between a fat binary's header and its end, as far as it can be read."""
    while at < end:
        kind, _, header, length = struct.unpack_from("<HHIQ", data, at)
        if not 32 <= header <= 4096:
            return
        (chip,) = struct.unpack_from("<I", data, at + 28)
        yield kind, chip, at + header, length
        at += header + length


def prune(data: bytearray, target: int) -> tuple[int, int]:
    """Blanks in place; returns the bytes that were blanked and kept."""
    dropped = kept = 0
    for found in fat_binaries(data):
        own = [chip for kind, chip, _, _ in found if kind == MACHINE_CODE and target // 10 * 10 <= chip <= target]
        for kind, chip, start, length in found:
            if chip > target or (own and (kind, chip) != (MACHINE_CODE, max(own))):
                data[start : start + length] = bytes(length)
                dropped += length
            else:
                kept += length
    return dropped, kept


def main() -> None:
    """Prunes one library where it lies."""
    path, target = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 90
    data = bytearray(path.read_bytes())
    dropped, kept = prune(data, target)
    path.write_bytes(data)
    print(f"{path}: blanked {dropped / 1e6:.0f} MB and kept {kept / 1e6:.0f} MB of code for GPUs")


if __name__ == "__main__":
    main()
