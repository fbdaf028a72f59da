"""Speculators for tests, and engines that draft with them in every step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from paged_device import Always
from spread import tight
from torch import Tensor

from llmk import LLM
from llmk.api import DeviceSpeculator, Speculator
from llmk.engine.scheduling.draft_length import StepCosts
from llmk.engine.scheduling.drafting import Drafting


class Guessing(Speculator):
    """Drafts tokens at random, of few, so that some are accepted."""

    def __init__(self) -> None:
        self.random = Random(9)

    def propose(self, request: str, tokens: Sequence[int], most: int) -> list[int]:
        return [self.random.randrange(3, 380) for _ in range(self.random.randrange(most + 1))]


class Knowing(Speculator):
    """Drafts what a run without drafts came to, but for some tokens."""

    def __init__(self, runs: list[list[int]]) -> None:
        self.runs = runs
        self.random = Random(1)

    def propose(self, request: str, tokens: Sequence[int], most: int) -> list[int]:
        known = list(tokens)
        found = next((run[len(known) :][:most] for run in self.runs if run[: len(known)] == known), [])
        return [token if self.random.random() < 0.8 else 3 for token in found]


class OnDevice(DeviceSpeculator):
    """Drafts on the device what a run without drafts came to, by a hash of a request's first tokens, or nonsense."""

    def __init__(self, runs: list[list[int]]) -> None:
        width = max(map(len, runs)) + 9
        self.runs = torch.tensor([run + [-1] * (width - len(run)) for run in runs])

    def propose(self, tokens: Tensor, known: Tensor, slots: Tensor, width: int) -> Tensor:
        column = torch.arange(self.runs.shape[1])
        own = torch.nn.functional.pad(tokens[slots], (0, self.runs.shape[1]))[:, : self.runs.shape[1]]
        alike = (self.runs == own[:, None]) | (column >= known[:, None, None])
        best = alike.all(2).to(torch.int64).argmax(1)
        places = (known[:, None] + torch.arange(width)).clamp(max=self.runs.shape[1] - 1)
        found = self.runs[best[:, None], places]
        return torch.where(places % 5 == 0, 1 << 40, found)


class Free(StepCosts):
    """Steps of any size take as long."""

    def lacks(self, num_tokens: int) -> bool:
        return False

    def __call__(self, num_tokens: int) -> float:
        return 1.0


def draft(llm: LLM, most: int, speculator: Speculator | None) -> None:
    """Has ``llm`` draft so many tokens in every step."""
    scheduler: Any = llm._core and llm._core.scheduler
    facts = llm.boot.facts
    scheduler._drafting = scheduler.live.drafting = Drafting(
        Always(most), facts.vocab_size, speculator, tails=bool(facts.recurrent)
    )


def drafting(folder: Path) -> dict[str, Any]:
    """:func:`tight`, for an engine that drafts: what layers keep of drafts is allocated where one is configured."""
    return {**tight(folder.name), "speculation": {"use": "prompt_lookup", "num_drafts": 4}}
