"""What the Triton kernels take on GPUs that they were compiled for ahead of time, for the pages on those."""

from __future__ import annotations

import json
from collections.abc import Iterator

from generated import ROOT, Page, table

RESOURCES = ROOT / "plugins/triton/tests/resources.json"
SPIRV = ROOT / "plugins/triton/tests/spirv.json"


def pages() -> Iterator[Page]:
    """The pages on AMD and on Intel GPUs."""
    yield Page("docs/backends/rocm.md", {"compiled_kernels.py": render})
    yield Page("docs/backends/xpu.md", {"compiled_kernels.py spirv": render_spirv})


def render() -> str:
    """A row for each kernel, a column for each target."""
    compiled = {name.partition(":")[2]: found for name, found in json.loads(RESOURCES.read_text()).items()}
    names = sorted({name for found in compiled.values() for name in found["kernels"]})
    rows = [(f"`{name}`", *(_cell(found["kernels"].get(name)) for found in compiled.values())) for name in names]
    totals = [sum(most["variants"] for most in found["kernels"].values()) for found in compiled.values()]
    versions = [f"Triton {found['triton']}" for found in compiled.values()]
    rows += [("variants compiled", *totals), ("with", *versions)]
    return table(("kernel", *(f"`{arch}`" for arch in compiled)), rows)


def render_spirv() -> str:
    """The same for Intel GPUs, for which registers are assigned by the driver."""
    compiled = json.loads(SPIRV.read_text())
    names = sorted({name for found in compiled.values() for name in found["kernels"]})
    rows = [(f"`{name}`", *(_spirv_cell(found["kernels"].get(name)) for found in compiled.values())) for name in names]
    totals = [sum(most["variants"] for most in found["kernels"].values()) for found in compiled.values()]
    rows.append(("variants compiled", *totals))
    return table(("kernel", *(f"`{arch}`" for arch in compiled)), rows)


def _spirv_cell(most: dict[str, int] | None) -> str:
    return "-" if most is None else f"{most['shared']:,}, {most['matrix']}"


def _cell(most: dict[str, int] | None) -> str:
    """Registers and local memory; what spills, if anything."""
    if most is None:
        return "-"
    spilled = f", {most['stack']} spilled" if most["stack"] else ""
    return f"{most['registers']}, {most['shared']:,}{spilled}"
