"""The platform Tern as it runs: its units share the host's memory, so that torch addresses them as the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType

from llmk.api import Host, PlatformFacts, Verdict, no
from llmk.reference.accelerator import map_tensors
from llmk_estuary import tern_machine

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class TernDevice:
    """The device facet."""

    def torch_device(self, index: int) -> torch.device:
        """The CPU, for every rank."""
        return torch.device("cpu")

    def setup(self, index: int, threads: int = 0) -> None:
        """Sets torch's compute threads; by default, one for each core that this process may use."""
        torch.set_num_threads(threads or tern_machine.physical_cores(Host(), os.sched_getaffinity(0)))

    def synchronize(self) -> None:
        """Work is finished when a call returns."""


class TernMemory:
    """The memory facet: the host's memory, which the unit shares, or a card's part of it."""

    def __init__(self, facts: PlatformFacts, host: Host) -> None:
        self._facts, self._host = facts, host

    def total(self) -> int:
        """What the facts say, where they say it."""
        return self._facts.memory_bytes or tern_machine.total_memory(self._host)

    def available(self) -> int:
        """What can be allocated now."""
        return min(self.total(), tern_machine.available_memory(self._host))

    def measure(self, run: Callable[[], None]) -> int | None:
        """The peak of what torch's allocator hands out while ``run`` runs."""
        with torch.autograd.profiler.profile(use_device=None, profile_memory=True) as profile:
            run()
        now = peak = 0
        for event in sorted(profile.kineto_results.events(), key=lambda event: event.start_ns()):
            if event.name() == "[memory]" and event.device_type() == DeviceType.CPU:
                now += event.nbytes()
                peak = max(peak, now)
        return peak


class TernGraphs:
    """The graphs facet. The unit keeps a step's list of commands on the host and submits it again, so that a replay
    computes everything anew; its results are copied to where those of the first replay lie."""

    on_demand = 16

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """The replay of ``run``, which does not run before."""
        kept: list[Any] = []

        def replay() -> Any:
            result = run()
            if not kept:
                kept.append(map_tensors(result, torch.clone))
                return kept[0]
            places = _tensors(kept[0])
            found = _tensors(result)
            if [tensor.shape for tensor in places] != [tensor.shape for tensor in found]:
                raise RuntimeError("a replay's results have other shapes than those of the step that was recorded")
            for place, tensor in zip(places, found, strict=True):
                place.copy_(tensor)
            return kept[0]

        return replay

    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """One after the other."""
        return first(), second()


class TernCollectives:
    """The collectives facet: Gloo, over the host's memory."""

    backend = "gloo"
    recordable = True

    def all_reduce(self, group: ProcessGroup, device: torch.device) -> Verdict:
        """Units have no links of their own."""
        return no("not_offered", wanted="an all-reduce between Tern units", found="gloo")


class TernPlatform:
    """Tern units, on cards or in the host's processor."""

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device = TernDevice()
        self.memory = TernMemory(facts, Host())
        self.graphs = TernGraphs()
        self.compiling = None
        self.collectives = TernCollectives()


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of a result, in the order in which it has them."""
    found: list[Tensor] = []

    def add(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, add)
    return found
