"""Programmatic dependent launch (PDL): a kernel's programs may start while the previous kernel still runs.

A kernel that is launched with ``launch_pdl=True`` calls :func:`release` as soon as the next kernel may start, and
:func:`wait` before it reads or writes any tensor that an earlier kernel of the step uses. Weights, which no kernel
writes during a step, it may load before it waits. Every program waits before it ends, so when a kernel has finished,
all earlier kernels have finished too, and a kernel need not know which kernels ran before its predecessor.

``PDL`` is the result of :func:`on`, passed as a constexpr; other targets compile neither instruction and don't know the
launch option::

    on = pdl.on() kernel[grid](..., PDL=on, **({"launch_pdl": True} if on else {}))

which is ``kernel[grid](..., **pdl.options())``.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from llmk_triton.common.targets import current_target


def on() -> bool:
    """Whether the target supports PDL: NVIDIA GPUs from sm_90 on."""
    if triton.knobs.runtime.interpret:
        return False
    target = current_target()
    return bool(target.backend == "cuda" and target.arch >= 90)


def options() -> dict[str, Any]:
    """The launch options of a kernel with PDL."""
    return {"PDL": True, "launch_pdl": True} if on() else {"PDL": False}


@triton.jit
def wait(PDL: tl.constexpr):
    """Waits until every earlier kernel has finished and its writes are visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release(PDL: tl.constexpr):
    """Allows the next kernel to start once every program has called this or ended."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
