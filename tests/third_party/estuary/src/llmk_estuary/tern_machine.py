"""What machines with Tern units are, by their files. It needs no torch.

Tern is a matrix unit. It comes on cards (TN100, TN200), whose driver maps their memory into the host's, and as a part
of host processors: those with AVX2 or AVX-512 on x86-64, with ASIMD dot products on Arm. A machine with cards uses
these; without, the processor's own unit.

The driver has ``/proc/driver/tern/version``, and for each card a folder ``/sys/class/tern/tern<N>`` with ``model``,
``memory_bytes`` and ``state`` (``ready``, or why not). ``TERN_VISIBLE_DEVICES`` lists the cards that a process may use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

from llmk.api import OK, Host, PlatformFacts, Probe, no

NAME = "tern"
VISIBLE = "TERN_VISIBLE_DEVICES"
DRIVER = "/proc/driver/tern/version"
OLDEST_DRIVER = (2, 1)
READY = "ready"

_CARDS = "/sys/class/tern"
_MODELS = {
    "TN100": ("tn100", (1, 0), ("bfloat16", "float32")),
    "TN200": ("tn200", (2, 0), ("bfloat16", "float16", "float32")),
}
"""By the model's name: arch, version, dtypes."""
_HOSTS = (
    # machine, extensions, arch, family, version, dtypes; the best first.
    ("x86_64", {"avx512f", "avx512_bf16"}, "host-avx512", "tern_x86", (2,), ("bfloat16", "float32")),
    ("x86_64", {"avx2", "fma"}, "host-avx2", "tern_x86", (1,), ("float32",)),
    ("aarch64", {"asimddp", "bf16"}, "host-asimd-bf16", "tern_arm", (2,), ("bfloat16", "float32")),
    ("aarch64", {"asimddp"}, "host-asimd", "tern_arm", (1,), ("float32",)),
)
_NO_LIMIT = 1 << 60
"""Control groups of the first version state so much, and more, where they limit nothing."""
_FEATURES = frozenset({"graphs", "unified_memory"})


@dataclass(frozen=True, slots=True)
class Card:
    """A card by its files; ``index`` is the number in its name."""

    index: int
    model: str
    memory_bytes: int
    state: str

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.model or 'card'} (tern{self.index}, {self.state or 'no state'})"


def probe(host: Host) -> Probe:
    """Cards, if there are any; else the unit of the host's processor."""
    if host.system != "Linux":
        return Probe(no("no_device", wanted="Linux", found=host.system))
    return _probe_cards(host, found) if (found := cards(host)) else _probe_host(host)


def cards(host: Host) -> list[Card]:
    """All cards of the machine, by their numbers."""
    folder = host.path(_CARDS)
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    numbers = sorted(int(match[1]) for name in names if (match := re.fullmatch(r"tern([0-9]{1,4})", name)))
    return [_card(host, number) for number in numbers]


def visible(host: Host, indices: list[int]) -> list[int]:
    """Those of ``indices`` that the environment lets this process use, in its order; all, where it says nothing."""
    listed = host.environ.get(VISIBLE)
    if listed is None:
        return indices
    named = [int(entry) for entry in map(str.strip, listed.split(",")) if entry.isascii() and entry.isdecimal()]
    return [index for index in dict.fromkeys(named) if index in indices]


def total_memory(host: Host) -> int:
    """Bytes of the host's memory that this process may use: without swap space, and no more than its control groups
    allow. 0: unknown."""
    total = _meminfo(host).get("MemTotal", 0)
    limits = [limit for limit, _ in _control_groups(host)]
    return min([total, *limits]) if total else min(limits, default=0)


def available_memory(host: Host) -> int:
    """Bytes of it that can be allocated now."""
    info = _meminfo(host)
    free = info.get("MemAvailable", sum(info.get(name, 0) for name in ("MemFree", "Buffers", "Cached")))
    left = [max(0, limit - used) for limit, used in _control_groups(host)]
    return min([free, *left])


def physical_cores(host: Host, allowed: set[int]) -> int:
    """Cores that the processors ``allowed`` belong to; at least 1."""
    base = "/sys/devices/system/cpu"
    cores = {host.read(f"{base}/cpu{cpu}/topology/thread_siblings_list").strip() or f"cpu {cpu}" for cpu in allowed}
    return max(1, len(cores))


def known() -> tuple[PlatformFacts, ...]:
    """Machines to plan for."""
    cards = [_facts(arch, "tern", version, dtypes) for arch, version, dtypes in _MODELS.values()]
    hosts = [
        _facts(arch, family, version, dtypes, shared_device=True) for _, _, arch, family, version, dtypes in _HOSTS
    ]
    return (*cards, *hosts)


def _probe_cards(host: Host, found: list[Card]) -> Probe:
    names = tuple(card.name for card in found)
    driver = host.read(DRIVER).strip()
    if not driver:
        return Probe(no("no_driver", wanted=DRIVER, hint="load the module tern"), unused=names)
    version = re.match(r"(\d+)\.(\d+)", driver)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_DRIVER:
        oldest = ".".join(map(str, OLDEST_DRIVER))
        return Probe(no("driver_too_old", wanted=f"{oldest} or later", found=driver), unused=names)
    usable = [card for card in found if card.state == READY and card.model in _MODELS]
    if not usable:
        code = "unknown_architecture" if any(card.state == READY for card in found) else "driver_failed"
        return Probe(no(code, wanted=f"{READY}: {', '.join(_MODELS)}", found=", ".join(names)), unused=names)
    chosen = visible(host, [card.index for card in usable])
    if not chosen:
        return Probe(no("no_visible_device", wanted=f"one of {', '.join(names)} in {VISIBLE}"), unused=names)
    by_index = {card.index: card for card in usable}
    first = by_index[chosen[0]]
    # All ranks of a model run on one kind of card.
    alike = [by_index[index] for index in chosen if by_index[index].model == first.model]
    arch, arch_version, dtypes = _MODELS[first.model]
    facts = _facts(
        arch,
        "tern",
        arch_version,
        dtypes,
        memory_bytes=min(card.memory_bytes for card in alike),
        num_devices=len(alike),
        device_name=f"Tern {first.model}",
    )
    return Probe(OK, facts, unused=tuple(card.name for card in found if card not in alike))


def _probe_host(host: Host) -> Probe:
    info = host.read("/proc/cpuinfo")
    match = re.search(r"^(?:flags|Features)[ \t]*:(.*)$", info, re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    for machine, wanted, arch, family, version, dtypes in _HOSTS:
        if machine == host.machine and wanted <= flags:
            model = re.search(r"^model name[ \t]*:[ \t]*(.+)$", info, re.MULTILINE)
            facts = _facts(
                arch,
                family,
                version,
                dtypes,
                shared_device=True,
                memory_bytes=total_memory(host),
                device_name=model[1].strip() if model else "",
            )
            return Probe(OK, facts)
    return Probe(no("no_device", wanted=f"{_CARDS}, or AVX2 or ASIMD dot products", found=host.machine))


def _facts(
    arch: str, family: str, version: tuple[int, ...], dtypes: tuple[str, ...], **others: object
) -> PlatformFacts:
    return PlatformFacts(
        name=NAME,
        arch=arch,
        device_type="cpu",
        arch_family=family,
        arch_version=version,
        features=_FEATURES,
        dtypes=dtypes,
        **others,  # type: ignore[arg-type]
    )


def _card(host: Host, index: int) -> Card:
    model, memory, state = (
        host.read(f"{_CARDS}/tern{index}/{name}").strip() for name in ("model", "memory_bytes", "state")
    )
    return Card(index, model, _number(memory), state)


def _meminfo(host: Host) -> dict[str, int]:
    """The sizes in ``/proc/meminfo``, in bytes."""
    sizes = re.findall(r"^(\w+):[ \t]*(\d+) kB$", host.read("/proc/meminfo"), re.MULTILINE)
    return {name: int(size) << 10 for name, size in sizes}


def _control_groups(host: Host) -> list[tuple[int, int]]:
    """Limit and use, in bytes, of each control group that limits this process's memory: its own and those above."""
    found = []
    for line in host.read("/proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            base, limit_name, use_name = "/sys/fs/cgroup", "memory.max", "memory.current"
            cold = "inactive_file"
        elif "memory" in controllers.split(","):
            base, limit_name, use_name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cold = "total_inactive_file"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for folder in accumulate(parts, "{}/{}".format, initial=base):
            limit, use = (_number(host.read(f"{folder}/{name}")) for name in (limit_name, use_name))
            if limit and limit < _NO_LIMIT:
                # Pages of files that nobody uses are given up for whoever allocates.
                stat = re.search(rf"^{cold} (\d+)$", host.read(f"{folder}/memory.stat"), re.MULTILINE)
                found.append((limit, max(0, use - (int(stat[1]) if stat else 0))))
    return found


def _number(text: str) -> int:
    """The number in a file that has one; 0 where it has none, such as ``max``."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else 0
