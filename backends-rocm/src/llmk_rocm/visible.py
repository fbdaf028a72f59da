"""Which GPUs the environment makes visible, by ROCm's rules, and which of those serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmk.api import Host
from llmk_rocm.architectures import FEATURES
from llmk_rocm.topology import Gpu, read_gpus

RUNTIME = "ROCR_VISIBLE_DEVICES"
LIBRARY = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""The first that is set counts, and numbers what :data:`RUNTIME` has left."""
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
"""``11.0.0`` makes ROCm take every GPU for a gfx1100."""


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that HIP shows, in the order in which it numbers them, with the architecture that it sees.

    Each variable is a list of indices, :data:`RUNTIME` also of UUIDs; devices from the first entry on that is invalid
    or repeats another are hidden.
    """
    found = _selected(gpus, environ.get(RUNTIME), uuids=True)
    found = _selected(found, next((environ[name] for name in LIBRARY if environ.get(name)), None))
    override = environ.get(OVERRIDE, "").split(".")
    if len(override) == 3 and all(part.isdecimal() for part in override):
        return [replace(gpu, version=tuple(map(int, override))) for gpu in found]
    return found


def serving(gpus: Sequence[Gpu]) -> list[int]:
    """Indices of the GPUs that are used together: those of one architecture, since a plan is made for one. A known
    architecture comes before an unknown one, a card before a processor's own graphics, more memory before less."""
    if not gpus:
        return []

    def worth(gpu: Gpu) -> tuple[bool, bool, int]:
        features = FEATURES.get(gpu.arch)
        return features is not None, "unified_memory" not in (features or ()), gpu.memory_bytes

    best = max(gpus, key=worth)
    return [index for index, gpu in enumerate(gpus) if gpu.arch == best.arch]


def device_index(host: Host, rank: int) -> int:
    """HIP's number of the device that worker ``rank`` of this machine uses."""
    indices = serving(visible(read_gpus(host), host.environ))
    return indices[rank] if rank < len(indices) else rank


def _selected(gpus: Sequence[Gpu], setting: str | None, *, uuids: bool = False) -> list[Gpu]:
    if setting is None:
        return list(gpus)
    found: list[Gpu] = []
    for entry in (entry.strip() for entry in setting.split(",")):
        by_uuid = [gpu for gpu in gpus if uuids and gpu.uuid.lower() == entry.lower()]
        by_index = gpus[int(entry) : int(entry) + 1] if entry.isdecimal() else ()
        chosen = [gpu for gpu in by_uuid or by_index if not any(gpu is other for other in found)]
        if not chosen:
            break
        found += chosen
    return found
