"""How a model can be spread over machines that need not be there, what each of its devices holds then, and which spread
suits a target.

Ranks that cut layers (tensor) exchange tensors in every layer, so they stay on one machine; stages (pipeline) pass on
one tensor, and may be on several. What is left of the machines takes replicas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from llmk.api import ConfigError
from llmk.api.sharding import parallel_problems
from llmk.planning.boot import Boot, boot
from llmk.planning.memory import ANY_LENGTH, MemoryPlan, forecast, gib
from llmk.planning.tables import render_rows, wrapped

if TYPE_CHECKING:
    from llmk.config import Settings

TARGETS = ("throughput", "latency", "context")
"""What a spread can be best for: tokens per second of all machines, tokens per second of one request, or the most
requests of the longest length."""
USUAL_TOKENS = 1024
"""Of a request: for throughput, the cache is to hold a full batch of such."""
_DEVICES = 8
"""Of a machine with accelerators, where nothing is said."""


@dataclass(frozen=True, slots=True)
class Machines:
    """``nodes`` equal machines of ``devices`` devices."""

    nodes: int
    devices: int

    @classmethod
    def of(cls, text: str, settings: Settings, on: str | None) -> Machines:
        """From ``"4"`` or ``"4x8"``: as many devices as this machine has, or eight, where they are not named. Raises
        ConfigError."""
        found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,2}))?", text)
        if found is None:
            raise ConfigError(f"--nodes {text} is not a number of nodes", hint="for example: --nodes 4, or --nodes 4x8")
        nodes, devices = found.groups()
        if devices is None:
            facts = boot(settings, on=on, verify=False, outline=True).platform_facts
            devices = 1 if facts.shared_device else _DEVICES if on else facts.num_devices or _DEVICES
        return cls(int(nodes), int(devices))

    @property
    def total(self) -> int:
        """All devices."""
        return self.nodes * self.devices


@dataclass(frozen=True, slots=True)
class Spread:
    """A way to spread a model. ``memory`` is that of a device, as forecast, ``None`` where it is unknown;
    ``replicas`` are as many as the machines have room for, and each takes ``nodes`` of them, or a part of one."""

    tensor: int
    pipeline: int
    nodes: int
    replicas: int
    memory: MemoryPlan | None

    @property
    def devices(self) -> int:
        """Those of a replica."""
        return self.tensor * self.pipeline

    @property
    def num_tokens(self) -> int:
        """What the cache of a replica holds; 0 where the model does not fit."""
        return self.memory.num_tokens if self.memory is not None and self.memory.cache is not None else 0

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self) | {"devices": self.devices, "memory": self.memory and self.memory.to_dict()}


def spreads(settings: Settings, machines: Machines, on: str | None) -> Iterator[Spread]:
    """All spreads by powers of two that the model and the machines allow, those over fewer devices first."""
    first = _spread_boot(settings, machines, on, 1, 1)
    shapes = [
        (tensor, pipeline)
        for tensor in _powers(machines.devices)
        for pipeline in _powers(machines.total // tensor)
        if not parallel_problems(first.facts, first.platform_facts, tensor, pipeline)
    ]
    for tensor, pipeline in sorted(shapes, key=lambda shape: (shape[0] * shape[1], -shape[0])):
        memory = forecast(_spread_boot(settings, machines, on, tensor, pipeline))
        stages_per_node = machines.devices // tensor
        nodes = -(-pipeline // stages_per_node)
        each = machines.devices // (tensor * pipeline) if nodes == 1 else 0
        replicas = machines.nodes * each if nodes == 1 else machines.nodes // nodes
        if replicas:
            yield Spread(tensor, pipeline, nodes, replicas, memory)


def recommended(found: Sequence[Spread], target: str, booted: Boot) -> tuple[Spread | None, str]:
    """The spread that suits a target best, and why; ``None``: the model fits none. ``booted`` has the platform's
    defaults, and the longest request."""
    able = [spread for spread in found if spread.num_tokens or spread.memory is None]
    if not able:
        return None, "the model does not fit, or not with one request of model.max_model_len tokens"
    if target == "latency":
        best = max(able, key=lambda spread: (spread.tensor, -spread.pipeline))
        return best, "for latency: most devices compute each layer at once, on one node, in the fewest stages"
    limits, longest = booted.settings.config.scheduler, booted.facts.max_model_len
    if target == "context":

        def together(spread: Spread) -> int:
            """Requests of the longest length that all replicas have room for."""
            return spread.replicas * min(limits.max_num_seqs, spread.num_tokens // longest)

        best = max(able, key=lambda spread: (together(spread), spread.replicas, -spread.pipeline))
        return best, f"for context: there is room for the most requests of {longest:,} tokens, {together(best):,}"
    wanted = USUAL_TOKENS * limits.max_num_seqs
    roomy = [spread for spread in able if spread.num_tokens >= wanted]
    if roomy:
        return roomy[0], f"for throughput: the fewest devices whose cache holds a full batch, {wanted:,} tokens"
    best = max(able, key=lambda spread: spread.replicas * spread.num_tokens)
    return best, f"for throughput: no cache holds a full batch, {wanted:,} tokens; its replicas together hold the most"


def render_spreads(
    booted: Boot, machines: Machines, found: Sequence[Spread], best: Spread | None, why: str, width: int
) -> str:
    """A table of all, and what each node needs for the one that is recommended."""
    facts = booted.platform_facts
    rows = [
        (
            f"{each.tensor} x {each.pipeline}" + (" *" if each is best else ""),
            str(each.devices),
            str(each.nodes) if each.nodes > 1 else f"1/{machines.devices // each.devices}",
            str(each.replicas),
            gib(each.memory.weights) if each.memory else "unknown",
            _room(each.memory),
        )
        for each in found
    ]
    header = ("tensor x pipeline", "devices", "nodes", "replicas", "weights of a device", "cache of a replica")
    memory = f"{gib(facts.memory_bytes)} a device" if facts.memory_bytes else "unknown memory"
    lines = ["", f"{machines.nodes} nodes of {machines.devices} {facts.label}, {memory}"]
    lines.append(render_rows(header, rows, width))
    if best is None:
        return "\n".join([*lines, f"recommended: none ({why})"])
    flags = f"--parallel.tensor {best.tensor} --parallel.pipeline {best.pipeline}"
    size = booted.checkpoint.weight_bytes
    model = f"the model ({gib(size)})" if size else "the model"
    needs = f"each node needs {_devices(best, machines)}, the same wheels, and {model} at the same path"
    return "\n".join([*lines, wrapped(f"recommended: {flags} ({why})", width), wrapped(needs, width)])


def _devices(spread: Spread, machines: Machines) -> str:
    used = min(spread.devices, spread.tensor * (machines.devices // spread.tensor))
    count = f"{used} free device" + ("s" if used > 1 else "")
    return count if spread.nodes > 1 else f"{count} for each replica on it"


def _room(memory: MemoryPlan | None) -> str:
    if memory is None:
        return "unknown"
    return "does not fit" if memory.cache is None else _tokens(memory.num_tokens)


def _tokens(number: int) -> str:
    return "requests of any length" if number == ANY_LENGTH else f"{number:,} tokens"


def _powers(most: int) -> Iterator[int]:
    number = 1
    while number <= most:
        yield number
        number *= 2


def _spread_boot(settings: Settings, machines: Machines, on: str | None, tensor: int, pipeline: int) -> Boot:
    changed = settings.with_flags({"parallel.tensor": tensor, "parallel.pipeline": pipeline})
    return boot(changed, on=on, verify=False, outline=True, num_devices=machines.total)
