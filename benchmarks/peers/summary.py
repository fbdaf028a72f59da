"""A table of what was measured, beside what the machine could do at best.

    python benchmarks/peers/summary.py roofline.jsonl results.jsonl

A step's floor is its bytes over the copy bandwidth; a workload's adds its decode steps' floors and its prompts' matrix
operations over the matrix rate, with no overlap, and no sharing of a prefix's keys and values between requests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from make_model import ALL_SHAPES, AnyShape

Row = dict[str, Any]
HEAD = ("engine", "shape", "tag", "workload", "wall s", "floor", "out tok/s", "prefill tok/s", "TTFT ms", "TPOT ms")


def render(rows: Sequence[Row]) -> str:
    """A Markdown table, in the rows' order. Shares of the floor are given where a roofline is among the rows."""
    roofline = next((row for row in rows if row["kind"] == "roofline"), None)
    lines = [_line((*HEAD, "floor")), _line(["---"] * (len(HEAD) + 1))]
    for row in rows:
        if row["kind"] == "startup":
            start = f"{row['start_s']} (first answer {row['first_answer_s']})"
            name = f"{row['engine']} {row.get('version', '')}".strip()
            lines.append(_line((name, row["shape"], row["tag"], "start-up", start, *[""] * 6)))
        elif row["kind"] == "bench":
            lines.append(_line(_cells(row, roofline)))
    return "\n".join(lines)


def _cells(row: Row, roofline: Row | None) -> Iterable[str]:
    step_share = work_share = ""
    if roofline is not None and row["shape"] in ALL_SHAPES:
        step, work = floors(ALL_SHAPES[row["shape"]], row, roofline)
        work_share = f"{work / row['wall_s']:.0%}"
        step_share = f"{step / row['tpot_p50_ms'] * 1e3:.0%}" if row["tpot_p50_ms"] else ""
    measured = ("out_tok_s", "prefill_tok_s", "ttft_p50_ms", "tpot_p50_ms")
    numbers = ["" if row[name] is None else f"{row[name]:,.2f}" for name in measured]
    name = row["workload"] if row["complete"] else f"{row['workload']} (incomplete!)"
    return row["engine"], row["shape"], row["tag"], name, f"{row['wall_s']:.3f}", work_share, *numbers, step_share


def floors(shape: AnyShape, row: Row, roofline: Row) -> tuple[float, float]:
    """Least seconds of one decode step, and of the whole workload."""
    bandwidth, rate = roofline["copy_gb_s"] * 1e9, roofline["bf16_tflop_s"] * 1e12
    step = shape.decode_bytes(row["requests"], row["prompt"] + row["new"] / 2) / bandwidth
    flops = row["requests"] * shape.prefill_flops(row["prompt"] - row["shared"], row["shared"])
    flops += shape.prefill_flops(row["shared"]) if row["shared"] else 0
    return step, flops / rate + (row["new"] - 1) * step


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(render([json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]))
