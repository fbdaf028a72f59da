"""Which GPUs the environment makes visible, by Level Zero's and SYCL's rules, and which of those serve."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from llmk.api import Host
from llmk_xpu.topology import Gpu, read_gpus

MASK = "ZE_AFFINITY_MASK"
SELECTOR = "ONEAPI_DEVICE_SELECTOR"


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that torch shows, in the order in which it numbers them.

    :data:`MASK` is a list of indices for Level Zero, :data:`SELECTOR` one for SYCL of what the mask has left. torch
    shows processors' graphics only where there is no card.
    """
    found = _masked(gpus, environ.get(MASK, ""))
    found = _selected(found, environ.get(SELECTOR, ""))
    cards = [gpu for gpu in found if not gpu.integrated]
    return cards or found


def serving(gpus: Sequence[Gpu]) -> list[int]:
    """Indices of the GPUs that are used together: those of one architecture, since a plan is made for one. A known
    architecture comes before an unknown one, more memory before less."""
    if not gpus:
        return []
    best = max(gpus, key=lambda gpu: (gpu.known, gpu.memory_bytes))
    return [index for index, gpu in enumerate(gpus) if gpu.arch == best.arch]


def device_index(host: Host, rank: int) -> int:
    """torch's number of the device that worker ``rank`` of this machine uses."""
    indices = serving(visible(read_gpus(host), host.environ))
    return indices[rank] if rank < len(indices) else rank


def _masked(gpus: Sequence[Gpu], mask: str) -> list[Gpu]:
    """``0,2``; of ``1.0``, with stacks that are joined, the first number counts. Entries that are no device's are
    skipped."""
    numbers = [entry.strip().partition(".")[0] for entry in mask.split(",") if entry.strip()]
    if not numbers:
        return list(gpus)
    # Level Zero keeps its own order.
    wanted = {int(number) for number in numbers if number.isdecimal()}
    return [gpu for index, gpu in enumerate(gpus) if index in wanted]


def _selected(gpus: Sequence[Gpu], selector: str) -> list[Gpu]:
    """``level_zero:0,1;opencl:*``: the devices of all terms for Level Zero or any backend, without those of terms that
    start with ``!``."""
    terms = [term.strip().lower() for term in selector.split(";") if term.strip()]
    if not terms:
        return list(gpus)
    accepting = [term for term in terms if not term.startswith("!")]
    shown = set[int]().union(*(_term(gpus, term) for term in accepting)) if accepting else set(range(len(gpus)))
    hidden = set[int]().union(*(_term(gpus, term[1:]) for term in terms if term.startswith("!")))
    return [gpu for index, gpu in enumerate(gpus) if index in shown - hidden]


def _term(gpus: Sequence[Gpu], term: str) -> set[int]:
    backend, _, devices = term.partition(":")
    if backend not in ("level_zero", "*"):
        return set()
    found: set[int] = set()
    for entry in re.split(r"\s*,\s*", devices):
        number = entry.partition(".")[0]
        if number in ("*", "gpu"):
            return set(range(len(gpus)))
        if number.isdecimal():
            found.add(int(number))
    return found
