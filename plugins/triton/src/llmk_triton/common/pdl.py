"""Programmatic dependent launch: a kernel's programs may start while the kernel before still runs.

A kernel that is launched with ``launch_pdl=True`` calls :func:`release` as soon as its successor may start beside it,
and :func:`wait` before it touches anything that an earlier kernel of the step reads or writes. What no kernel writes
during a step, the weights, it reads before it waits. Every program waits before it ends: only then has all that came
before a finished kernel finished too, and a kernel need not know what its predecessor's predecessor did.

``PDL`` is :func:`on`, passed as a constant: other targets compile nothing, and know no such launch option::

    on = pdl.on()
    kernel[grid](..., PDL=on, **({"launch_pdl": True} if on else {}))

which is ``kernel[grid](..., **pdl.options())``.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from llmk_triton.common.targets import current_target


def on() -> bool:
    """Whether the device that kernels are compiled for launches so: NVIDIA's from sm_90 on."""
    if triton.knobs.runtime.interpret:
        return False
    target = current_target()
    return bool(target.backend == "cuda" and target.arch >= 90)


def options() -> dict[str, Any]:
    """What such a kernel is launched with."""
    return {"PDL": True, "launch_pdl": True} if on() else {"PDL": False}


@triton.jit
def wait(PDL: tl.constexpr):
    """Until every earlier kernel has finished, and what they wrote can be seen."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release(PDL: tl.constexpr):
    """Lets the next kernel start once every program has called this or ended."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
