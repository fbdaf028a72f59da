"""Examples for the conformance kit: importance matrices, what the command prints of them, and what it refuses."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from llmk_testing.command_example import CommandExample

Tensor = tuple[bytes, int, Sequence[float]]
LAYERS: tuple[Tensor, ...] = tuple((f"blk.{layer}.ffn_up.weight".encode(), 2, (1.0, 3.0, layer)) for layer in range(12))
EXPERTS: Tensor = b"blk.3.ffn_down_exps.weight", 4, (8.0, 8.0)
UNUSED: Tensor = b"blk.3.ffn_gate_exps.weight", 0, (0.0, 0.0)
OUTPUT: Tensor = b"output.weight", 2, (0.5,)


def text(found: bytes) -> bytes:
    """A text behind its length."""
    return struct.pack("<i", len(found)) + found


def matrix(tensors: Sequence[Tensor], name: bytes = b"calib.txt") -> bytes:
    """A file of these tensors."""
    parts = [struct.pack("<i", len(tensors))]
    for title, calls, sums in tensors:
        parts += [text(title), struct.pack(f"<ii{len(sums)}f", calls, len(sums), *sums)]
    return b"".join([*parts, struct.pack("<i", 2), text(name)])


def writer(content: bytes) -> Callable[[Path], object]:
    """Writes a file."""
    return lambda folder: (folder / "imatrix.dat").write_bytes(content)


def lines(*found: str) -> str:
    """What is printed of some tensors."""
    return "".join(f"{line}\n" for line in found)


SMALL = writer(matrix([OUTPUT, *LAYERS, EXPERTS, UNUSED]))
LARGE = writer(matrix([(b"token_embd.weight", 1, [1.0] * 50_000), (b"output.weight", 1, [2.0, 4.0] * 20_000)]))
MATRICES = (
    CommandExample(
        arguments=["imatrix.dat", "--match", "*ffn_*"],
        write=SMALL,
        prints=lines(
            "calib.txt, 2 chunks",
            "tensor                      calls  inputs     mean  most",
            "blk.0.ffn_up.weight             2       3  0.66667   1.5",
            "blk.1.ffn_up.weight             2       3  0.83333   1.5",
            "blk.2.ffn_up.weight             2       3        1   1.5",
            "blk.3.ffn_down_exps.weight      4       2        2     2",
            "blk.3.ffn_gate_exps.weight      0       2        -     -",
            "blk.3.ffn_up.weight             2       3   1.1667   1.5",
            "blk.4.ffn_up.weight             2       3   1.3333     2",
            "blk.5.ffn_up.weight             2       3      1.5   2.5",
            "blk.6.ffn_up.weight             2       3   1.6667     3",
            "blk.7.ffn_up.weight             2       3   1.8333   3.5",
            "blk.8.ffn_up.weight             2       3        2     4",
            "blk.9.ffn_up.weight             2       3   2.1667   4.5",
            "blk.10.ffn_up.weight            2       3   2.3333     5",
            "blk.11.ffn_up.weight            2       3      2.5   5.5",
        ),
        whole=True,
        refuses={
            "a name comes twice": writer(matrix([OUTPUT, OUTPUT])),
            "a name is no text": writer(matrix([(b"\xff", 1, (1.0,))])),
            "a name is empty": writer(matrix([(b"", 1, (1.0,))])),
            "a sum is not a number": writer(matrix([(b"output.weight", 1, (float("nan"),))])),
            "a sum is negative": writer(matrix([(b"output.weight", 1, (-1.0,))])),
            "calls are negative": writer(matrix([(b"output.weight", -1, (1.0,))])),
            "there are more tensors than the file has": writer(struct.pack("<i", 9) + matrix([OUTPUT])[4:]),
        },
    ),
    CommandExample(
        arguments=["imatrix.dat", "--sort", "mean", "--top", "3", "--match", "*"],
        write=SMALL,
        prints=lines(
            "calib.txt, 2 chunks",
            "tensor                calls  inputs    mean  most",
            "blk.11.ffn_up.weight      2       3     2.5   5.5",
            "blk.10.ffn_up.weight      2       3  2.3333     5",
            "blk.9.ffn_up.weight       2       3  2.1667   4.5",
        ),
    ),
    CommandExample(
        arguments=["imatrix.dat", "--sort", "most", "--top", "2", "--match", "*_exps*", "--json"],
        write=SMALL,
        prints=lines(
            '{"name": "blk.3.ffn_down_exps.weight", "calls": 4, "inputs": 2, "mean": 2.0, "most": 2.0}',
            '{"name": "blk.3.ffn_gate_exps.weight", "calls": 0, "inputs": 2, "mean": null, "most": null}',
        ),
    ),
    CommandExample(
        arguments=["imatrix.dat", "--layers", "--top", "5", "--sort", "name"],
        write=SMALL,
        prints=lines(
            "calib.txt, 2 chunks",
            "tensor   calls  inputs     mean  most",
            "layer 0      2       3  0.66667   1.5",
            "layer 1      2       3  0.83333   1.5",
            "layer 2      2       3        1   1.5",
            "layer 3      4       7      1.5     2",
            "layer 4      2       3   1.3333     2",
        ),
    ),
    CommandExample(
        arguments=["imatrix.dat"],
        write=LARGE,
        prints=lines(
            "calib.txt, 2 chunks",
            "tensor             calls  inputs  mean  most",
            "output.weight          1   40000     3     4",
            "token_embd.weight      1   50000     1     1",
        ),
    ),
    CommandExample(arguments=["imatrix.dat", "--match", "none"], write=SMALL, code=1),
)
