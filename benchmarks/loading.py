"""How fast a checkpoint's weights reach their device, beside a plain read of the same files.

    python benchmarks/loading.py MODEL                                   # on the platform that would be chosen
    python benchmarks/loading.py MODEL --rounds 5 --platform.use cuda --model.dtype bfloat16

Other options are the engine's. Each round reads the files into memory that is used over and over, by as many threads as
the loader has, and then loads a model anew, all in one process. What is printed is gigabytes a second of both, and what
share of the former the latter reaches: whatever kernels make of the weights is part of loading. What the system's page
cache holds is left as it is, so the first round may be the disk's and the others are memory's.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local

from llmk.config.flags import add_flags, add_model, load_settings
from llmk.engine.device.file_reader import CHUNK_BYTES, NUM_THREADS
from llmk.engine.execution.build import load_model
from llmk.planning.boot import Boot, boot


def main() -> int:
    """Prints both rates for every round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model(parser)
    add_flags(parser, ("model", "platform", "select", "plugins"))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    booted = boot(load_settings(args))
    files = [file.path for file in booted.checkpoint.weight_files]
    size = sum(file.stat().st_size for file in files)
    print(f"{size / 1e9:.2f} GB in {len(files)} files, to {booted.platform_facts.label}")
    for number in range(args.rounds):
        read, loaded = size / read_seconds(files) / 1e9, size / load_seconds(booted) / 1e9
        print(f"round {number + 1}: read {read:6.2f} GB/s, loaded {loaded:6.2f} GB/s ({loaded / read:.0%})", flush=True)
    return 0


def read_seconds(files: Sequence[Path]) -> float:
    """Reads the files once, into one buffer for each thread."""
    own = local()

    def read(place: tuple[Path, int]) -> None:
        buffer = own.__dict__.setdefault("buffer", bytearray(CHUNK_BYTES))
        with place[0].open("rb", buffering=0) as stream:
            stream.seek(place[1])
            stream.readinto(buffer)

    start = time.perf_counter()
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        places = [(file, at) for file in files for at in range(0, file.stat().st_size, CHUNK_BYTES)]
        list(pool.map(read, places))
    return time.perf_counter() - start


def load_seconds(booted: Boot) -> float:
    """Builds the model and loads it; what it took is free again afterwards."""
    start = time.perf_counter()
    loaded = load_model(booted)
    seconds = time.perf_counter() - start
    del loaded
    gc.collect()
    return seconds


if __name__ == "__main__":
    sys.exit(main())
