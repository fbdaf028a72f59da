"""Runs engines on fixed workloads, offline, and prints a line of JSON per measurement, and a table at the end.

    python benchmarks/peers/peer_bench.py --engine llmk,vllm --model /tmp/models/qwen3-0.6b --workload w1,w2,w3,w4
    python benchmarks/peers/peer_bench.py --engine llmk --model qwen3-8b --workload w1

A model is a checkpoint folder, or the name of a shape, of which a checkpoint without weights is made. Without weights
every engine makes up its own. Several engines run one after the other, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median_low
from typing import Any

from engines import ENGINES, Engine, Setup, Timing
from make_model import ALL_SHAPES, write_checkpoint
from summary import render
from workloads import WORKLOADS, Workload

Row = dict[str, Any]


def start_up(engine: Engine) -> Row:
    """Seconds until the engine can answer, its library's import counted in, and until it has answered once."""
    start = time.perf_counter()
    versions = engine.start()
    ready = time.perf_counter() - start
    engine.generate([[11, 12, 13, 14]], 2)
    answered = time.perf_counter() - start
    return {"kind": "startup", "start_s": round(ready, 2), "first_answer_s": round(answered, 2), **versions}


def measure(engine: Engine, workload: Workload, vocab_size: int, *, reps: int, seed: int) -> Row:
    """The median of three or more repetitions, or the best of two; ``walls_s`` has all. The warm-up is not counted."""
    runs: list[tuple[float, list[Timing]]] = []
    for rep in range(reps + 1):
        prompts = workload.prompts(seed + rep, vocab_size)
        start = time.perf_counter()
        timings = engine.generate(prompts, workload.new)
        runs.append((time.perf_counter() - start, timings))
    runs = runs[1:]
    ranked = sorted(runs, key=lambda run: run[0])
    wall, timings = ranked[len(ranked) // 2 if len(ranked) > 2 else 0]
    tokens = sum(timing.tokens for timing in timings)
    firsts, each = ([getattr(t, name) for t in timings if getattr(t, name)] for name in ("first", "each"))
    return {
        "kind": "bench",
        "requests": workload.requests,
        "prompt": workload.prompt,
        "shared": workload.shared,
        "new": workload.new,
        "reps": reps,
        "walls_s": [round(seconds, 4) for seconds, _ in runs],
        "wall_s": round(wall, 4),
        "out_tok_s": round(tokens / wall, 1),
        "prefill_tok_s": round(workload.requests * workload.prompt / wall, 1) if workload.new == 1 else None,
        "ttft_p50_ms": round(1e3 * median_low(firsts), 3) if firsts else None,
        "ttft_max_ms": round(1e3 * max(firsts), 3) if firsts else None,
        "tpot_p50_ms": round(1e3 * median_low(each), 3) if each else None,
        "complete": all(timing.tokens == workload.new for timing in timings),
    }


def gpu_used_gib() -> float | None:
    """Memory in use on the first GPU, ``None`` where there is no NVIDIA driver."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return round(int(done.stdout.split()[0]) / 1024, 2)


def run_engine(args: argparse.Namespace, emit: Callable[[Row], None]) -> None:
    """Starts one engine and runs all workloads on it."""
    folder = Path(args.model)
    config = json.loads((folder / "config.json").read_text())
    setup = Setup(
        model=args.model,
        dummy=not any(folder.glob("*.safetensors")),
        max_len=min(args.max_len, config.get("max_position_embeddings", args.max_len)),
        settings=json.loads(args.engine_args),
    )
    engine = ENGINES[args.engine](setup)
    emit(start_up(engine) | {"dummy_weights": setup.dummy, "gpu_used_gib": gpu_used_gib()})
    for number, name in enumerate(args.workload.split(","), 1):
        workload = WORKLOADS[name]
        reps = args.reps or workload.reps
        row = measure(engine, workload, config["vocab_size"], reps=reps, seed=1000 * number)
        emit({"workload": name} | row | {"gpu_used_gib": gpu_used_gib()})
    engine.close()


def run_apart(name: str, args: argparse.Namespace) -> list[Row]:
    """Runs one engine in a process of its own, whose lines are passed on as they come; they end where it fails."""
    command = [sys.executable, __file__, "--engine", name]
    for option in ("model", "shape", "workload", "reps", "max_len", "engine_args", "tag"):
        command += [f"--{option.replace('_', '-')}", str(getattr(args, option))]
    rows: list[Row] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith('{"engine"'):
                rows.append(json.loads(line))
    if process.returncode:
        print(f"{name} failed with exit code {process.returncode}; its own words stand above", file=sys.stderr)
        rows.append({"kind": "failed", "engine": name})
    return rows


def read_through(folder: Path) -> None:
    """Reads the weights once, so that no engine finds them on disk where the next one finds them in memory."""
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            while stream.read(1 << 26):
                pass


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, help=f"of {', '.join(ENGINES)}; several, separated by commas")
    parser.add_argument("--model", required=True, help=f"checkpoint folder, or one of {', '.join(ALL_SHAPES)}")
    parser.add_argument("--shape", default="", help="shape for the floors in the table; by default the model's name")
    parser.add_argument("--workload", default="w1,w2,w3,w4", type=str.lower, help="names, separated by commas")
    parser.add_argument("--reps", type=int, default=0, help="repetitions; 0: what the workload says")
    parser.add_argument("--max-len", type=int, default=4096, help="longest prompt and output, in tokens")
    parser.add_argument("--engine-args", default="{}", help="the engine's own settings, as JSON")
    parser.add_argument("--tag", default="", help="a word that each line carries")
    parser.add_argument("--out", type=Path, help="file that the lines are added to")
    args = parser.parse_args(arguments)
    for option, known in (("engine", ENGINES), ("workload", WORKLOADS)):
        unknown = sorted(set(getattr(args, option).split(",")) - set(known))
        if unknown:
            parser.error(f"--{option}: there is no {', '.join(unknown)}, but {', '.join(known)}")
    return args


def main() -> int:
    """Measures, and prints lines and table; 1 where an engine failed."""
    args = parse()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        args.shape = args.shape or Path(args.model).name
        if not Path(args.model).is_dir():
            if args.model not in ALL_SHAPES:
                raise SystemExit(f"{args.model} is neither a checkpoint folder nor one of {', '.join(ALL_SHAPES)}")
            args.model = str(Path(scratch) / args.model)
            write_checkpoint(ALL_SHAPES[args.shape], Path(args.model), weights=False)
        read_through(Path(args.model))
        names = args.engine.split(",")
        if len(names) > 1:
            for name in names:
                rows += run_apart(name, args)
            print(render(rows))
        else:

            def emit(row: Row) -> None:
                rows.append({"engine": args.engine, "shape": args.shape, "tag": args.tag} | row)
                print(json.dumps(rows[-1]), flush=True)

            run_engine(args, emit)
    if args.out:
        with args.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return int(any(row["kind"] == "failed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
