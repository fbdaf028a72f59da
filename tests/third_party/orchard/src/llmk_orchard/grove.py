"""A platform of the machine's cores, whose steps are recorded by keeping where their results are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from llmk.api import AllReduce, Compiling, Host, PlatformFacts, Verdict, no
from llmk_orchard.soil import cores, free_bytes, total_bytes


class GroveDevice:
    """All cores as one device."""

    def torch_device(self, index: int) -> torch.device:
        """The same for all ranks."""
        return torch.device("cpu")

    def setup(self, index: int, threads: int = 0) -> None:
        """Sets the threads that compute."""
        torch.set_num_threads(threads or cores(Host()))

    def synchronize(self) -> None:
        """What was issued has run."""


class GroveMemory:
    """The machine's memory."""

    def total(self) -> int:
        """Bytes there are."""
        return total_bytes(Host())

    def available(self) -> int:
        """Bytes that could be allocated."""
        return free_bytes(Host())

    def measure(self, run: Callable[[], None]) -> int | None:
        """It is not known how many bytes a run took."""
        run()
        return None


class GroveGraphs:
    """Runs a step again, and copies its results to where the first ones are."""

    on_demand = 8

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """The first call of what this returns keeps the results."""
        kept: list[Any] = []

        def replay() -> Any:
            found = run()
            if not kept:
                kept.append(found)
            for old, new in zip(tensors(kept[0]), tensors(found), strict=True):
                if old.shape != new.shape:
                    raise RuntimeError(f"a recorded step returned {list(old.shape)}, its replay {list(new.shape)}")
                old.copy_(new)
            return kept[0]

        return replay

    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """One after the other."""
        return first(), second()


class GroveCollectives:
    """gloo."""

    backend = "gloo"
    recordable = False

    def all_reduce(self, group: ProcessGroup, device: torch.device) -> AllReduce | Verdict:
        """There is none."""
        return no("not_offered", wanted="an all-reduce of the platform's own", found="gloo's")


class Grove:
    """Follows ``llmk.api.Platform``."""

    compiling: Compiling | None = None

    def __init__(self, facts: PlatformFacts) -> None:
        self.facts = facts
        self.device = GroveDevice()
        self.memory = GroveMemory()
        self.graphs = GroveGraphs()
        self.collectives = GroveCollectives()


def tensors(tree: Any) -> list[Tensor]:
    """Those of a result, which may be a dataclass."""
    if is_dataclass(tree):
        tree = [getattr(tree, field.name) for field in fields(tree)]
    if isinstance(tree, (tuple, list)):
        return [leaf for part in tree for leaf in tensors(part)]
    return [tree] if isinstance(tree, Tensor) else []
