"""Checks every Triton kernel against its reference on shapes of real models, and times it.

    python benchmarks/kernels.py                    # on the accelerator that torch finds
    python benchmarks/kernels.py --only attention   # some cases, by regular expression
    python benchmarks/kernels.py --sweep            # attention over tile sizes
    python benchmarks/kernels.py --sweep latent     # latent attention over tile sizes
    python benchmarks/kernels.py --sweep moe --save DIR    # mixtures of experts over tile sizes, saves the best
    python benchmarks/kernels.py --sweep gemm --save DIR        # GEMMs over configurations, saves the best
    python benchmarks/kernels.py --sweep fp8 --save DIR         # those with fp8 weights
    python benchmarks/kernels.py --sweep int4 --save DIR        # those with 4-bit weights
    python benchmarks/kernels.py --sweep sampling   # sampling over rounds and sizes of parts
    TRITON_INTERPRET=1 python benchmarks/kernels.py --device cpu --tiny    # tries the cases out, measures nothing

Each line has the time of one call within a replayed graph, the rate, the share of the roofline (the larger of bytes
over the measured rate of a copy, and operations over that of a large product), and the relative error. What is read
only once in a model is rotated past the device's cache. Exits with 1 where a kernel failed or was wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import triton
from kernel_cases import attention, chains, elementwise, fp8, gemm, int4, latent, moe, recurrent, sampling
from kernel_cases.harness import SHAPES, Bench


def main() -> int:
    """Runs the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="", help="torch device; the current accelerator where it is not given")
    parser.add_argument("--only", default="", help="regular expression of the cases to run")
    parser.add_argument("--seconds", type=float, default=225.0, help="when to stop")
    parser.add_argument("--sweep", nargs="?", const="attention", choices=_SWEPT, help="what to sweep")
    parser.add_argument("--save", type=Path, default=Path("configs"), help="folder for tuned configurations")
    parser.add_argument("--tiny", action="store_true", help="small shapes")
    args = parser.parse_args()
    device = torch.device(args.device) if args.device else torch.accelerator.current_accelerator()
    assert device is not None, "torch finds no accelerator; name a device with --device"
    bench = Bench(device, args.seconds)
    print(f"torch {torch.__version__}, triton {triton.__version__}, {_name(bench)}")
    torch.manual_seed(0)
    bench.calibrate()
    only = re.compile(args.only)
    with torch.inference_mode():
        if args.sweep:
            _SWEPT[args.sweep](bench, only, args.save)
        else:
            for kind in _KINDS:
                bench.run(kind.cases(device, tiny=args.tiny), only=only)
    print(f"{len(bench.failed)} failed, {time.monotonic() - bench.started:.0f} s: {', '.join(bench.failed)}")
    return 1 if bench.failed else 0


_KINDS = (elementwise, gemm, chains, fp8, int4, moe, recurrent, sampling, attention, latent)
_SWEPT: dict[str, Callable[[Bench, re.Pattern[str], Path], None]] = {
    "attention": lambda bench, only, _: attention.sweep(bench, only),
    "latent": lambda bench, only, _: latent.sweep(bench, only),
    "fp8": lambda bench, only, folder: gemm.sweep(bench, only, folder, fp8.sites(SHAPES, fp8.ROWS)),
    "int4": int4.sweep,
    "moe": moe.sweep,
    "gemm": gemm.sweep,
    "sampling": lambda bench, only, _: bench.run(sampling.sweep(bench.device), only=only),
}


def _name(bench: Bench) -> str:
    properties = getattr(bench.module, "get_device_properties", lambda device: None)(bench.device)
    return str(getattr(properties, "name", bench.device))


if __name__ == "__main__":
    sys.exit(main())
