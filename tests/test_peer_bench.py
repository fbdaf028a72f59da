"""The benchmark beside other engines: llmk's part runs for real, on a shape that is made on the spot."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow_file

PEERS = Path(__file__).resolve().parents[1] / "benchmarks/peers"
ROOFLINE = {"kind": "roofline", "copy_gb_s": 10, "bf16_tflop_s": 1}


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs one of the scripts."""
    command = [sys.executable, str(PEERS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two workloads on made-up weights write."""
    file = tmp_path_factory.mktemp("peers") / "lines.jsonl"
    settings = {"platform.use": "cpu", "platform.threads": 1, "cache.num_blocks": 64}
    options = ["--engine-args", json.dumps(settings), "--reps", "1", "--max-len", "300", "--out", str(file)]
    done = run("peer_bench.py", "--engine", "llmk", "--model", "tiny", "--workload", "P128,d1", *options)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("{")] == file.read_text().splitlines()
    return file


def test_start_up_and_workloads_are_measured(lines: Path) -> None:
    start, prefill, decode = (json.loads(line) for line in lines.read_text().splitlines())
    assert (start["kind"], start["dummy_weights"]) == ("startup", True)
    assert 0 < start["start_s"] <= start["first_answer_s"]
    assert start["platform"].startswith("cpu/")
    assert (prefill["workload"], prefill["prompt"], prefill["new"], prefill["complete"]) == ("p128", 128, 1, True)
    assert prefill["prefill_tok_s"] == pytest.approx(128 / prefill["wall_s"], rel=0.01)
    assert (decode["workload"], decode["complete"], decode["walls_s"]) == ("d1", True, [decode["wall_s"]])
    assert decode["out_tok_s"] == pytest.approx(128 / decode["wall_s"], rel=0.01)
    assert 0 < 127 * decode["tpot_p50_ms"] + decode["ttft_p50_ms"] <= 1e3 * decode["wall_s"] + 1


def test_results_stand_against_the_roofline(lines: Path, tmp_path: Path) -> None:
    roofline = tmp_path / "roofline.jsonl"
    roofline.write_text(json.dumps(ROOFLINE))
    done = run("summary.py", str(roofline), str(lines))
    rows: list[list[str]] = [line.split(" | ") for line in done.stdout.splitlines()]
    assert [row[3] for row in rows[2:]] == ["start-up", "p128", "d1"], done.stderr
    step: dict[str, Any] = json.loads(lines.read_text().splitlines()[-1])
    layers, head, cache = 2 * (256 * 128 * 12 + 3 * 256 * 512), 151936 * 256, 2 * 2 * 2 * 128 * (128 + 64)
    floor_ms = 1e3 * 2 * (layers + head + cache) / 10e9
    assert rows[-1][-1] == f"{floor_ms / step['tpot_p50_ms']:.0%} |"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--engine", "llmk,other", "--model", "tiny"], "--engine: there is no other, but llmk, vllm, transformers"),
        (["--engine", "llmk", "--model", "tiny", "--workload", "w9"], "--workload: there is no w9, but w1, wp"),
        (["--engine", "llmk", "--model", "nowhere"], "nowhere is neither a checkpoint folder nor one of tiny"),
    ],
)
def test_says_what_there_is(arguments: list[str], text: str) -> None:
    done = run("peer_bench.py", *arguments)
    assert done.returncode != 0
    assert text in done.stderr


def test_code_for_other_chips_is_blanked(tmp_path: Path) -> None:
    def entry(kind: int, chip: int) -> bytes:
        payload = f"{kind}:{chip:03}!".encode()
        head = struct.pack("<HHIQ", kind, 0, 64, len(payload))
        return head + bytes(12) + struct.pack("<I", chip) + bytes(32) + payload

    def fat_binary(*entries: bytes) -> bytes:
        body = b"".join(entries)
        return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body

    hopper = fat_binary(entry(2, 80), entry(2, 90), entry(2, 100), entry(1, 90))
    older = fat_binary(entry(2, 80), entry(1, 86), entry(2, 120))
    library = tmp_path / "lib.so"
    before = b"ELF" + hopper + b"between" + older + b"end"
    library.write_bytes(before)
    assert run("prune_fatbin.py", str(library), "90").returncode == 0
    after = library.read_bytes()
    assert len(after) == len(before)
    kept = [f"{kind}:{chip:03}!".encode() in after for kind, chip in ((2, 90), (1, 86), (2, 100), (1, 90), (2, 120))]
    assert kept == [True, True, False, False, False]
    assert after.count(b"2:080!") == 1, "of two, the one beside machine code of the target's own generation is blanked"
    assert after.startswith(b"ELF")
    assert after.endswith(b"end")
