"""Plans for machines that are not here, in clean environments: for each backend, a virtual environment with what its
users would install, ``llmk doctor`` in it, and ``llmk explain MODEL --on MACHINE`` for four kinds of models.

    python tools/plans_elsewhere.py            # all, which takes some minutes and a package index
    python tools/plans_elsewhere.py rocm --here   # in the environment that runs this, without new ones

A plan is complete where every site is served for all token counts, with a reason. On AMD's Instinct GPUs, plans are
made with AITER's package too, in whose place that of the tests is, with AITER's signatures: as it is chosen by itself,
and where it is preferred. Prints what is left to the references; exits with 1 where a plan is incomplete, a model is
refused that should not be, or AITER does not serve where it is preferred.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess  # nosec B404 # what it runs is named below
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODELS: dict[str, Any] = runpy.run_path(str(ROOT / "tests/support/four_models.py"))["MODELS"]
MACHINES = {
    "rocm": ("rocm/gfx942", "rocm/gfx950", "rocm/gfx1100", "rocm/gfx1201"),
    "xpu": ("xpu/pvc", "xpu/bmg"),
    "tpu": ("tpu/v5e", "tpu/v6e"),
    "cpu": ("cpu/power10", "cpu/neoverse-v2"),
}
WITH_TRITON = ("rocm", "xpu")
REFUSED = {("tpu", "mla"): "LatentAttention", ("tpu", "hybrid"): "DeltaMixer"}
"""Models that a backend doesn't run, and what its refusal must name."""
WITH_AITER = ("rocm/gfx942", "rocm/gfx950")
AITER = ROOT / "backends-rocm/tests/played"
PREFERRED = {
    "select.attention.prefer": "rocm.aiter_attention,rocm.aiter_attention_latent",
    "select.linear.prefer": "rocm.aiter_linear",
    "select.moe.prefer": "rocm.aiter_fused_moe",
}
_END = 1 << 31


def main() -> int:
    """Prints a line for each plan, and what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", default=[*MACHINES])
    parser.add_argument("--here", action="store_true", help="make no environments")
    args = parser.parse_args()
    problems = 0
    for backend in args.backends:
        with tempfile.TemporaryDirectory() as folder:
            python = Path(sys.executable) if args.here else environment(Path(folder) / "venv", backend)
            for line in plans(python, backend, Path(folder)):
                print(line, flush=True)
                problems += "PROBLEM" in line
    return problems > 0


def environment(folder: Path, backend: str) -> Path:
    """The Python of a new environment with the core, the models and a backend; prints what its doctor says."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)  # nosec B603
    python = folder / "bin/python"
    install(python, "core", "models", f"backends-{backend}")
    doctor = run(python, "doctor")
    print(f"== llmk doctor with backends-{backend} (exit status {doctor.returncode})\n{doctor.stdout}", flush=True)
    if backend in WITH_TRITON:
        install(python, "plugins/triton")
    return python


def install(python: Path, *packages: str) -> None:
    """Installs packages of this repository as users do, with the versions of its constraints."""
    wanted = [f"./{package}" for package in packages]
    command = [str(python), "-m", "pip", "install", "-qq", "--no-compile", "-c", "constraints.txt", *wanted]
    subprocess.run(command, cwd=ROOT, check=True)  # nosec B603


def plans(python: Path, backend: str, folder: Path) -> Iterator[str]:
    """A line for each machine and kind of model, and for each with AITER."""
    for machine in MACHINES[backend]:
        for name, config in MODELS.items():
            checkpoint = folder / name
            checkpoint.mkdir(exist_ok=True)
            (checkpoint / "config.json").write_text(json.dumps(config))
            yield f"{machine} {name}: {judged(python, checkpoint, machine, REFUSED.get((backend, name), ''))}"
            if machine in WITH_AITER:
                path = {"PYTHONPATH": str(AITER)}
                yield f"{machine} {name} with AITER: {judged(python, checkpoint, machine, '', **path)}"
                preferring = [f"--{option}={value}" for option, value in PREFERRED.items()]
                found = judged(python, checkpoint, machine, "", *preferring, **path)
                verdict = "" if "rocm.aiter_" in found else "PROBLEM: AITER does not serve: "
                yield f"{machine} {name} preferring AITER: {verdict}{found}"


def judged(python: Path, checkpoint: Path, machine: str, refused: str, *options: str, **environ: str) -> str:
    """What a plan leaves to the references, or what is wrong with it; ``refused``: what a refusal must name."""
    done = run(python, "explain", str(checkpoint), "--on", machine, "--json", *options, **environ)
    if refused:
        fine = done.returncode != 0 and refused in done.stderr
        return f"refused, naming {refused}" if fine else f"PROBLEM: not refused for {refused}: {done.stderr[-300:]}"
    if done.returncode:
        return f"PROBLEM: {done.stderr[-600:]}"
    choices = json.loads(done.stdout)["choices"]
    every = [choice for top in choices for choice in (top, *parts_of(top))]
    if holes := [choice["site"] for choice in every if not is_complete(choice)]:
        return f"PROBLEM: incomplete: {', '.join(holes)}"
    ids = {piece["id"] for choice in every for piece in choice["pieces"]}
    left = sorted(id.removeprefix("reference.") for id in ids if id.startswith("reference."))
    vendor = sorted(id for id in ids if id.startswith("rocm.aiter_"))
    by_vendor = f" of which {', '.join(vendor)};" if vendor else ""
    return f"{len(every)} sites, {len(ids)} kernels;{by_vendor} references: {', '.join(left) or 'none'}"


def parts_of(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The choices of a composite's parts, and of theirs."""
    for part in choice["parts"]:
        yield part
        yield from parts_of(part)


def is_complete(choice: dict[str, Any]) -> bool:
    """Whether a site is served for all token counts, each with a reason."""
    pieces = sorted(choice["pieces"], key=lambda piece: int(piece["start"]))
    edges = [1, *(edge for piece in pieces for edge in (piece["start"], piece["stop"])), _END]
    return bool(pieces) and edges[::2] == edges[1::2] and all(piece["why"] for piece in pieces)


def run(python: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command of llmk in an environment, outside of this repository's folder."""
    command = [str(python), "-m", "llmk", *arguments]
    known = {**os.environ, **environ}
    return subprocess.run(command, cwd="/", env=known, capture_output=True, text=True)  # nosec B603


if __name__ == "__main__":
    sys.exit(main())
