"""What platforms of accelerators share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from llmk.reference.accelerator import map_tensors


class Pair(NamedTuple):
    first: Tensor
    second: Any


@dataclass(frozen=True)
class Result:
    logits: Tensor
    rest: Any
    name: str = "step"


def test_tensors_are_changed_wherever_they_are() -> None:
    one, two = torch.ones(2), torch.full((3,), 2.0)
    given = Result(one, [Pair(two, (one, None)), 7], name="last")
    changed = map_tensors(given, lambda tensor: tensor + 1)
    assert (type(changed), changed.name) == (Result, "last")
    assert changed.logits.tolist() == [2.0, 2.0]
    pair, seven = changed.rest
    assert (type(pair), seven) == (Pair, 7)
    assert pair.first.tolist() == [3.0, 3.0, 3.0]
    assert isinstance(pair.second, tuple)
    assert (pair.second[0].tolist(), pair.second[1]) == ([2.0, 2.0], None)
    assert one.tolist() == [1.0, 1.0]
