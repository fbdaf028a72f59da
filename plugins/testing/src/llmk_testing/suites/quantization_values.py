"""What a quantization method makes of stored values that few files have: scales far from one, tensors that differ
between the projections of a layer, numbers at the ends of a dtype, sizes of 0, and parts of dummy weights that are
zeros."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""What bits are read as, by bytes of an element: torch computes little with wide dtypes that have no sign."""
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
        "numbers at the ends of a dtype are read, or refused by name": trial.ends,
        "sizes in the config that no checkpoint has are refused": trial.sizes,
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

    def ends(self) -> str:
        """The least and the greatest numbers of each tensor's dtype everywhere and mixed with others, and what is no
        number in one place. What the example itself can't read may be refused, by name."""
        if self._spec.online or self._example.presented:
            return "no file has its tensors"
        tensors, random, answers = self._given(self._drawn()), self._bench.random("ends"), []
        for part in tensors.keys() - {*self._example.unused}:
            refused = list[str]()
            for what, changed in _at_the_ends(tensors[part], random):
                given = {**tensors, part: changed}
                try:
                    found = self._dequantized(self._method().convert("model.layer", self._read(given), [ROWS]))
                except CheckpointError as error:
                    refused.append(str(error))
                    continue
                right = self._restored(given)
                if right is not None and bool(right.isfinite().all()):
                    self._compare(found, right, f"a weight whose {part} are {what}")
            unnamed = [refusal for refusal in refused if "model.layer" not in refusal]
            assert not unnamed, f"a refusal of {part} doesn't name the layer: {unnamed[0]}"
            answers.append(f"{part} refused {len(refused)} times")
        return ", ".join(answers)

    def _restored(self, given: dict[str, Tensor]) -> Tensor | None:
        """``None`` where the example can't read what is stored."""
        try:
            return self._example.restored(given).float()
        except (RuntimeError, ValueError, IndexError):
            return None

    def sizes(self) -> str:
        """0, and one below it, in place of each size. The config is refused, not first the tensors; or the key means
        nothing, and they are read as ever."""
        tried = 0
        for place, config in _with_sizes(self._example.quantization_config):
            checkpoint = Checkpoint(Path("/nowhere"), {"architectures": ["Some"], "quantization_config": config})
            if not self._spec.claims(checkpoint):
                continue
            tried += 1
            other = type(self)(self._spec, self._bench, replace(self._example, quantization_config=config))
            try:
                if not self._spec.modules(checkpoint)("model.layer"):
                    continue
                other._method()
            except CheckpointError:
                continue
            weight = self._drawn()
            try:
                found = other._meaning(self._given(weight), [ROWS])
            except CheckpointError as error:
                raise AssertionError(f"{place} is taken, and then the tensors are refused: {error}") from error
            self._compare(found, self._right(weight), f"a weight where {place}")
        return f"{tried} configs"


def _at_the_ends(tensor: Tensor, random: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the same shape and dtype, and what is in them; of integers, packed words and single bytes."""
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
        for odd in (torch.inf, -torch.inf, torch.nan):
            changed = tensor.clone()
            changed.view(-1)[-1] = odd
            yield f"{odd} in one place", changed
        return
    numbers = tensor.view(_SIGNED[tensor.dtype.itemsize])
    if numbers.dtype.itemsize > 2 and int(numbers.abs().max()) < 1 << 16:
        return  # an index, or a size
    limits = torch.iinfo(numbers.dtype)
    for end in (limits.min, limits.max, 0, -1):
        yield f"{end} everywhere", torch.full_like(numbers, end).view(tensor.dtype)
        some = torch.rand(numbers.shape, generator=random) < 0.3
        yield f"{end} in some places", torch.where(some, end, numbers).to(numbers.dtype).view(tensor.dtype)


def _with_sizes(config: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The config with 0 or -7 in place of each number above 1, and which that is."""
    items = config.items() if isinstance(config, Mapping) else enumerate(config)
    for key, value in items:
        here = f"{place}.{key}".removeprefix(".")
        if isinstance(value, Mapping | list | tuple):
            changes = [*_with_sizes(value, here)]
        elif isinstance(value, int) and value > 1:
            changes = [(f"{here} is {odd}", odd) for odd in (0, -7)]
        else:
            continue
        for what, changed in changes:
            if isinstance(config, Mapping):
                yield what, {**config, key: changed}
            else:
                yield what, [*config[:key], changed, *config[key + 1 :]]


def _alone() -> Tensor:
    weight = torch.zeros(ROWS, COLUMNS)
    weight[5, 9] = 1.0
    return weight


def _rolled(tensor: Tensor, places: int) -> Tensor:
    return tensor.roll(places, -1) if tensor.dim() and tensor.dtype.itemsize > 1 else _bytes_rolled(tensor, places)


def _bytes_rolled(tensor: Tensor, places: int) -> Tensor:
    """Not every dtype of 8 bits can be rolled."""
    return tensor.view(torch.uint8).roll(places, -1).view(tensor.dtype) if tensor.dim() else tensor * (places + 1)
