"""Compiles the kernels to SPIR-V for Intel GPUs that aren't here, as ``ahead_of_time.py`` compiles for others.

    pip install --no-deps --pre --target DIR triton-xpu     # not into the environment, where it would overwrite triton
    PYTHONPATH=DIR python plugins/triton/tests/spirv.py pvc --only 'qwen3-8b bf16' --save

prints a line of JSON for each kernel, and exits with 1 where one does not compile or needs more local memory (SLM) than
there is. SPIR-V is what Triton hands to the driver, which assigns registers: what a kernel spills is not known here.
The package index has older releases than the kernels need; what the front end of those lacks is added here.
``--save`` writes the most that each kernel takes to :data:`RESULTS`, from which the docs have a table.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
import triton.backends
import triton.compiler.code_generator as code_generator
import triton.compiler.compiler as compiler
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.language.extra import cuda
from triton.runtime import driver

RESULTS = Path(__file__).with_name("spirv.json")
SLM = {"pvc": 131_072, "bmg": 131_072, "dg2": 65_536}
"""Bytes of local memory of a work-group, by Intel's tables: not read from the package, whose own table they check."""
PROPERTIES: dict[str, dict[str, Any]] = {
    "pvc": {"version": "12.60.7", "sub_group_sizes": [16, 32], "has_subgroup_2d_block_io": True},
    "bmg": {"version": "20.1.4", "sub_group_sizes": [16, 32], "has_subgroup_2d_block_io": True},
    "dg2": {"version": "12.55.8", "sub_group_sizes": [8, 16, 32], "has_subgroup_2d_block_io": False},
}
"""What SYCL says of a device. The first is from a trace of a Max 1550, others have what differs."""
COMMON = {
    "driver_version": "1.6.33276+22",
    "platform_name": "Intel(R) oneAPI Unified Runtime over Level-Zero",
    "vendor": "Intel(R) Corporation",
    "type": "gpu",
    "architecture": 0,
    "gpu_eu_count": 512,
    "gpu_subslice_count": 64,
    "max_compute_units": 512,
    "max_work_group_size": 1024,
    "max_num_sub_groups": 64,
    "has_atomic64": True,
    "has_fp16": True,
    "has_fp64": True,
    "has_bfloat16_conversions": True,
    "has_subgroup_matrix_multiply_accumulate": True,
    "has_subgroup_matrix_multiply_accumulate_tensor_float32": False,
}
_MATRIX = re.compile(r"call [^@]*@\S*(?:dpas|SubgroupMatrixMultiply|matrix_mad)")


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel: bytes of local memory and of SPIR-V, and how many matrix instructions (DPAS)."""

    case: str
    arch: str
    kernel: str
    seconds: float
    shared: int
    size: int
    matrix: int


class StandIn(DriverBase):
    """The driver of a device that isn't there. It launches nothing."""

    def __init__(self, arch: str) -> None:
        self.utils = self
        self.launcher_cls = lambda src, metadata: lambda *launch: None
        properties = {**COMMON, **PROPERTIES[arch], "name": arch, "local_mem_size": SLM[arch]}
        self.target = GPUTarget("xpu", properties, 32)
        self.shared = SLM[arch]

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.shared, "multiprocessor_count": 64, "max_work_group_size": 1024}

    def load_binary(self, *given: Any) -> tuple[int, ...]:
        return 1, 1, 0, 0

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing runs here")


def complete() -> None:
    """Adds what older releases lack and the kernels' modules name, and what compares constants of the front end."""
    if not hasattr(triton, "knobs"):
        triton.knobs = SimpleNamespace(runtime=SimpleNamespace(interpret=False))
    for name in ("gdc_wait", "gdc_launch_dependents"):
        if not hasattr(cuda, name):
            setattr(cuda, name, tl.debug_barrier)
    if find_spec("triton.tools.tensor_descriptor") is None:
        module = ModuleType("triton.tools.tensor_descriptor")
        module.TensorDescriptor = type("TensorDescriptor", (), {})
        sys.modules[module.__name__] = module
    generator = code_generator.CodeGenerator
    inherited = generator._apply_binary_method
    logical: dict[str, Callable[[Any, Any], bool]] = {
        "logical_and": lambda a, b: bool(a) and bool(b),
        "logical_or": lambda a, b: bool(a) or bool(b),
    }

    def apply(self: Any, method: str, left: Any, right: Any) -> Any:
        a, b = (value.value if isinstance(value, tl.constexpr) else value for value in (left, right))
        if not all(isinstance(value, int | float | bool | str) for value in (a, b)):
            return inherited(self, method, left, right)
        return tl.constexpr(logical[method](a, b) if method in logical else getattr(a, method)(b))

    generator._apply_binary_method = apply
    # It is built with a compiler for SYCL, to ask the driver for the architecture's name.
    backend = triton.backends.backends["intel"].compiler
    parser = SimpleNamespace(parse_device_arch=lambda number: "")
    backend.__init__.__globals__["compile_module_from_src"] = lambda *given: parser


def watch(found: list[Compiled]) -> dict[str, str]:
    """Collects the kernels that are compiled from now on; the result's ``case`` and ``arch`` are to say for what.
    Triton keeps the function that compiles with each kernel, so that it can be replaced only once."""
    original, now = compiler.compile, {"case": "", "arch": ""}

    def compile(src: Any, target: Any = None, options: Any = None) -> Any:
        started = time.perf_counter()
        made = original(src, target=target, options=options)
        matrix = len(_MATRIX.findall(str(made.asm["llir"])))
        seconds = round(time.perf_counter() - started, 2)
        shared, size = made.metadata.shared, len(made.asm["spv"])
        found.append(Compiled(**now, kernel=src.name, seconds=seconds, shared=shared, size=size, matrix=matrix))
        print(json.dumps(asdict(found[-1])), flush=True)
        return made

    compiler.compile = triton.compiler.compile = compile
    return now


def summary(kernels: list[Compiled]) -> dict[str, dict[str, int]]:
    """By kernel: how many of its variants were compiled, and the most that one of them takes."""
    found: dict[str, dict[str, int]] = {}
    for compiled in kernels:
        most = found.setdefault(compiled.kernel, {"variants": 0, "shared": 0, "matrix": 0})
        most["variants"] += 1
        for name in ("shared", "matrix"):
            most[name] = max(most[name], getattr(compiled, name))
    return dict(sorted(found.items()))


def run(arch: str, only: str) -> tuple[list[Compiled], list[str]]:
    """The kernels of the matching cases, and what did not compile."""
    from shipped import CASES

    driver.set_active(StandIn(arch))
    kernels: list[Compiled] = []
    problems: list[str] = []
    now = watch(kernels)
    for name, case in CASES.items():
        if not re.search(only, name):
            continue
        now |= {"case": name, "arch": arch}
        try:
            case()
        except Exception as error:
            problems.append(f"{arch} {name}: {type(error).__name__}: {str(error)[-300:]}")
    problems += [f"{arch} {k.case}: {k.kernel} takes {k.shared} bytes" for k in kernels if k.shared > SLM[arch]]
    return kernels, problems


def main() -> int:
    """Compiles the requested cases; 1 where one of them does not compile or exceeds its limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", choices=PROPERTIES)
    parser.add_argument("--only", default="", help="regular expression of the cases to compile")
    parser.add_argument("--save", action="store_true", help="write what each architecture's kernels take at most")
    args = parser.parse_args()
    if "intel" not in triton.backends.backends:
        parser.error(f"Triton {triton.__version__} does not compile for these GPUs: put triton-xpu on PYTHONPATH")
    complete()
    kernels, problems = run(args.arch, args.only)
    if args.save:
        saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        saved[args.arch] = {"triton": triton.__version__, "only": args.only, "kernels": summary(kernels)}
        RESULTS.write_text(json.dumps(dict(sorted(saved.items())), indent=1) + "\n")
    print("\n".join(problems), file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
