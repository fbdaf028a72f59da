"""What a quantization method makes of stored values that few files have: scales far from one, tensors that differ
between the projections of a layer, and parts of dummy weights that are zeros."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llmk.api import Checkpoint, CheckpointError, QuantizationSpec
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.quantization_example import QuantizationExample
from llmk_testing.suites.quantization_layers import Layers, below
from llmk_testing.suites.quantization_numbers import COLUMNS, DTYPES, ROWS, example_cases
from llmk_testing.watch import held_by_integers

_FACTORS = (2.0**-20, 2.0**20)
_PARTS = (128, 256)
"""Rows of projections that are packed."""
_BLANK = 128
"""Inputs that are zeros in dummy weights."""


def value_cases(spec: QuantizationSpec, bench: Bench, example: QuantizationExample) -> Iterator[Case]:
    """The cases of one example."""
    trial = Values(spec, bench, example)
    checks = {
        "scales of any magnitude are read, in each dtype that the method takes": trial.magnitudes,
        "each projection that is packed has its own tensors": trial.own_tensors,
        "zeros in dummy weights stay zeros": trial.zeros,
        "methods of several checkpoints are apart": trial.several,
    }
    return example_cases(spec, example, checks)


class Values(Layers):
    """One example of one method."""

    def magnitudes(self) -> str:
        """Those that the dtype has; a scale that becomes another dtype on the way is 0 or infinite there."""
        if self._spec.online or self._example.presented:
            return "no file has its scales"
        tensors, good, tried = self._given(self._drawn()), self._stored(), []
        for part, tensor in tensors.items():
            for dtype, name in DTYPES.items():
                if not (dtype.is_floating_point and dtype.itemsize > 1 and tensor.is_floating_point()):
                    continue
                if tensor.dtype.itemsize == 1 or self._refusal({**good, part: replace(good[part], dtype=name)}):
                    continue
                for factor in _FACTORS:
                    scaled = (tensor.double() * factor).to(dtype)
                    given = {**tensors, part: scaled}
                    right = self._example.restored({**tensors, part: scaled.float()}).float()
                    if not bool(scaled.isfinite().all() and right.isfinite().all()) or not bool(scaled.any()):
                        continue
                    self._compare(self._meaning(given, [ROWS]), right, f"{part}, {dtype}, times {factor:g}")
                    tried.append(f"{part} {name} times {factor:g}")
        return ", ".join(tried) or "no scale"

    def own_tensors(self) -> str:
        """The same values at other places of each projection's tensors, one tensor at a time."""
        weights = [self._of(rows, number) for number, rows in enumerate(_PARTS)]
        try:
            stored = [self._given(weight) for weight in weights]
        except (RuntimeError, ValueError):
            raise Skip(f"projections of {list(_PARTS)} rows are not stored") from None
        answers = []
        for name in stored[0].keys() - {*self._example.unused} if not self._spec.online else ():
            moved = [{**part, name: _rolled(part[name], number + 1)} for number, part in enumerate(stored)]
            try:
                right = torch.cat([self._example.restored(part).float() for part in moved])
            except (RuntimeError, ValueError, IndexError):
                answers.append(f"{name} has no other place")
                continue
            try:
                found = self._packing(below([self._read(part) for part in moved]), list(_PARTS))
            except CheckpointError:
                answers.append(f"{name} refused")
                continue
            if bool(right.isfinite().all()):
                self._compare(found, right, f"two projections that are packed, with another {name} each,")
                answers.append(f"{name} read")
        return ", ".join(answers) or "nothing is stored"

    def zeros(self) -> str:
        """A group, a row, a block, and all but one number; of the weight alone, as dummy weights are passed."""
        blank = {
            "a block of inputs": self._drawn().index_fill_(1, torch.arange(_BLANK), 0.0),
            "rows": self._drawn().index_fill_(0, torch.arange(0, ROWS, 3), 0.0),
            "a block": self._drawn(),
            "all but one number": _alone(),
            "all numbers": torch.zeros(ROWS, COLUMNS),
        }
        blank["a block"][:_BLANK, _BLANK : 2 * _BLANK] = 0.0
        for what, weight in blank.items():
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                with held_by_integers():
                    made = self._method().convert("layer", {"weight": weight.to(dtype)}, [ROWS])
                found = self._dequantized(made)
                assert bool(found.isfinite().all()), f"{what} of zeros in {dtype}: not all weights are finite"
                assert not found[weight == 0].any(), f"{what} of zeros in {dtype}: not all of them stay zeros"
        return f"{len(blank)} weights"

    def several(self) -> str:
        """A method is of the checkpoint that it was made for, no matter what others were made later."""
        named = load_object(self._spec.examples, plugin=self._spec.id)
        others = [each for each in named if isinstance(each, QuantizationExample) and each is not self._example]
        weight = self._drawn()
        right = self._right(weight)
        for other in others:
            method = self._method()
            config = {"architectures": ["Some"], "quantization_config": dict(other.quantization_config)}
            kept: Any = load_object(self._spec.implementation)(Checkpoint(Path("/elsewhere"), config))
            made = method.convert("model.layer", self._read(self._given(weight), method), [ROWS])
            self._compare(self._dequantized(made), right, f"a weight, after {type(kept).__name__} for {other.name},")
        return f"{len(others)} other methods"


def _alone() -> Tensor:
    weight = torch.zeros(ROWS, COLUMNS)
    weight[5, 9] = 1.0
    return weight


def _rolled(tensor: Tensor, places: int) -> Tensor:
    return tensor.roll(places, -1) if tensor.dim() and tensor.dtype.itemsize > 1 else _bytes_rolled(tensor, places)


def _bytes_rolled(tensor: Tensor, places: int) -> Tensor:
    """Not every dtype of 8 bits can be rolled."""
    return tensor.view(torch.uint8).roll(places, -1).view(tensor.dtype) if tensor.dim() else tensor * (places + 1)
