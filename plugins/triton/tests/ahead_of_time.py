"""Compiles the kernels for devices that aren't here, through Triton's own launch path: a driver that launches nothing
stands in for theirs, so what is compiled is what the package's functions would launch, and limits are enforced.

    python plugins/triton/tests/ahead_of_time.py cuda:90 hip:gfx942 --only decode

prints a line of JSON for each kernel that was compiled: what it is, for whom, and the resources that it takes. Exits
with 1 where a kernel takes more than there is, or spills more than is accounted for. ``--save`` writes the most that
each kernel takes on each target to :data:`RESOURCES`, from which the docs have a table.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from matrix_descriptors import misaddressed
from shipped import CASES
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from llmk_triton.common.targets import current_target

TARGETS = {
    "cuda:80": GPUTarget("cuda", 80, 32),
    "cuda:90": GPUTarget("cuda", 90, 32),
    "cuda:100": GPUTarget("cuda", 100, 32),
    **{f"hip:{arch}": GPUTarget("hip", arch, 64) for arch in ("gfx90a", "gfx942", "gfx950")},
    **{f"hip:{arch}": GPUTarget("hip", arch, 32) for arch in ("gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201")},
}

SHARED_MEMORY = {
    "cuda:80": 166_912,
    "cuda:90": 232_448,
    "cuda:100": 232_448,
    **{f"hip:{arch}": 65_536 for arch in ("gfx90a", "gfx942", "gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201")},
    "hip:gfx950": 163_840,
}
"""Bytes that a program may have, by the vendors' tables: not read from the package, whose own table they check."""


STACK = {
    **{(target, dtype): 144 for target in ("cuda:80", "cuda:90", "cuda:100") for dtype in ("bf16", "fp16")},
    **{(target, "fp32"): 200 for target in ("cuda:80", "cuda:90", "cuda:100")},
    **{(f"hip:{arch}", "fp32"): 752 for arch in ("gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201")},
}
"""Bytes per thread that a kernel may spill, by target and dtype; none where nothing is said. NVIDIA's compiler spills a
few for more programs at a time, outside the loop over keys. Float32 is there to be right: GEMMs in three passes, or
without tensor cores, need more registers than available."""


RESOURCES = Path(__file__).with_name("resources.json")
"""By target: Triton's version, and by kernel how often it was compiled, and the most that it took of each resource."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one kernel takes. ``shared`` and ``stack`` are bytes (per program, and per thread), ``registers`` per
    thread; ``matrix`` counts matrix instructions. ``misaddressed``: see :func:`matrix_descriptors.misaddressed`."""

    case: str
    target: str
    kernel: str
    seconds: float
    shared: int
    registers: int
    stack: int
    matrix: int
    misaddressed: bool = False

    @property
    def problem(self) -> str:
        """What is wrong with it, if anything."""
        if self.shared > SHARED_MEMORY[self.target]:
            return f"takes {self.shared} bytes of shared memory of {SHARED_MEMORY[self.target]}"
        if self.misaddressed:
            return "is compiled wrongly: half of a matrix descriptor is the address of shared memory"
        allowed = STACK.get((self.target, self.case.rpartition(" ")[2]), 0)
        return f"spills {self.stack} bytes, {allowed} are accounted for" if self.stack > allowed else ""


class StandIn(DriverBase):
    """The driver of a device that isn't there."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.utils = self
        self.launcher_cls = lambda src, metadata: lambda *launch: None

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_MEMORY[self.name], "multiprocessor_count": 132}

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, ...]:
        return 1, 1, 0, 0, 1024

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return TARGETS[self.name]

    def get_current_device(self) -> str:
        return self.name

    def get_current_stream(self, device: str) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing runs here")


@contextmanager
def watched(case: str, target: str) -> Iterator[list[Compiled]]:
    """Collects the kernels that are loaded meanwhile."""
    found: list[Compiled] = []
    started = time.perf_counter()

    def loaded(module: int, function: int, name: str, files: dict[str, str], hash: str) -> None:
        nonlocal started
        seconds = time.perf_counter() - started
        paths = {Path(file).suffix: Path(path) for file, path in files.items()}
        metadata = json.loads(paths[".json"].read_text())
        resources = _of_cubin(paths) if target.startswith("cuda") else _of_amdgcn(paths)
        wrong = target == "cuda:90" and misaddressed(_cuobjdump("-sass", paths[".cubin"]))
        found.append(Compiled(case, target, name, round(seconds, 2), metadata["shared"], *resources, wrong))
        started = time.perf_counter()

    triton.knobs.runtime.kernel_load_end_hook = loaded
    try:
        yield found
    finally:
        triton.knobs.runtime.kernel_load_end_hook = None


def _cuobjdump(option: str, cubin: Path) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    return subprocess.run([tool, option, cubin], capture_output=True, text=True, check=True).stdout


def _of_cubin(paths: dict[str, Path]) -> tuple[int, int, int]:
    usage = _cuobjdump("-res-usage", paths[".cubin"])
    matrix = len(re.findall(r"mma\.sync|wgmma\.mma_async|tcgen05\.mma", paths[".ptx"].read_text()))
    return int(_first(r"REG:(\d+)", usage)), int(_first(r"STACK:(\d+)", usage)), matrix


def _of_amdgcn(paths: dict[str, Path]) -> tuple[int, int, int]:
    text = paths[".amdgcn"].read_text()
    matrix = len(re.findall(r"v_mfma|v_wmma", text))
    registers = int(_first(r"\.vgpr_count:\s+(\d+)", text))
    return registers, int(_first(r"\.private_segment_fixed_size:\s+(\d+)", text)), matrix


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, f"no {pattern} in the compiler's output"
    return found[1]


def summary(kernels: list[Compiled]) -> dict[str, dict[str, int]]:
    """By kernel: how many of its variants were compiled, and the most that one of them takes; without float32, which is
    there to be right."""
    found: dict[str, dict[str, int]] = {}
    for compiled in kernels:
        if compiled.case.endswith("fp32"):
            continue
        most = found.setdefault(compiled.kernel, {"variants": 0, "registers": 0, "shared": 0, "stack": 0, "matrix": 0})
        most["variants"] += 1
        for name in ("registers", "shared", "stack", "matrix"):
            most[name] = max(most[name], getattr(compiled, name))
    return dict(sorted(found.items()))


def save(target: str, kernels: list[Compiled], *, some: bool) -> None:
    """Puts what a target's kernels take into :data:`RESOURCES`; where only ``some`` cases were compiled, what is there
    stays if it is more."""
    saved = json.loads(RESOURCES.read_text()) if RESOURCES.exists() else {}
    found = summary(kernels)
    if some:
        known = saved.get(target, {}).get("kernels", {})
        more = {
            name: {key: max(value, known.get(name, own)[key]) for key, value in own.items()}
            for name, own in found.items()
        }
        found = dict(sorted((known | more).items()))
    saved[target] = {"triton": triton.__version__, "kernels": found}
    RESOURCES.write_text(json.dumps(dict(sorted(saved.items())), indent=1) + "\n")


def main() -> int:
    """Compiles the requested cases; 1 where one of them exceeds its limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=list(TARGETS))
    parser.add_argument("--only", default="", help="regular expression of the cases to compile")
    parser.add_argument("--save", action="store_true", help="write what each target's kernels take at most")
    args = parser.parse_args()
    problems = 0
    for target in args.targets:
        driver.set_active(StandIn(target))
        current_target.cache_clear()  # which is otherwise the same for a whole process
        kernels = []
        for name, run in CASES.items():
            if not re.search(args.only, name):
                continue
            with watched(name, target) as found:
                run()
            kernels += found
            for compiled in found:
                print(json.dumps(asdict(compiled)), flush=True)
                if compiled.problem:
                    print(f"{compiled.target} {compiled.case}: {compiled.kernel} {compiled.problem}", file=sys.stderr)
                    problems += 1
        if args.save:
            save(target, kernels, some=bool(args.only))
    return problems > 0


if __name__ == "__main__":
    sys.exit(main())
