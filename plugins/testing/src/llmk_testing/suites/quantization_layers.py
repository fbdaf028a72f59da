"""What a quantization method makes of several modules: projections of unlike sizes that a layer packs, and tensors
that the model has no place for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import Tensor

from llmk.api import CheckpointError, CheckpointFile, QuantizationSpec
from llmk.nn.quantization import Quantization
from llmk.nn.tensor_file import read_headers
from llmk_testing.bench import Bench
from llmk_testing.case import Case
from llmk_testing.held import bytes_of, held_bytes
from llmk_testing.quantization_example import QuantizationExample
from llmk_testing.suites.quantization_numbers import COLUMNS, ROWS, Numbers, example_cases

T = TypeVar("T")

_PACKED = ((128, 256), (128, 96, 160), (96, 128, 32), (64, 32, 128), (128, 128, 96))
"""Rows of projections, of which some end within a block of 128."""

_LARGE = 2816
"""Rows of a matrix of more than 2**20 weights."""
_AWKWARD = (96, 132, 96)
"""Inputs that are not whole groups of 128, one of them twice."""

_OTHERS = ((1, COLUMNS), (1, 128), (3, 128), (5, 64), (2, 32), (64, 96), (64, 160), (128, 192), (200, 224), (264, 640))
"""Rows, and inputs: one row, one group, and odd numbers of groups and of parts of blocks."""
_LEAST, _LEAST_STORED, _MOST = 0.89, 0.8, 2.0
"""Of the bits that parameters take, what a spec may declare: a kernel may keep scales in 16 bits, and the groups of
stored formats are of several sizes."""
_KEPT = 0.1
"""Share of a layer's tensors that may stay in memory, besides what is made of them."""


def layer_cases(spec: QuantizationSpec, bench: Bench, example: QuantizationExample) -> Iterator[Case]:
    """The cases of one example."""
    trial = Layers(spec, bench, example)
    checks = {
        "projections that are packed mean what each one means, or are refused by name": trial.packed,
        "a large matrix is what the stored tensors represent, also the next one": trial.large,
        "weights of other sizes are what the stored tensors represent": trial.others,
        "parameters take the bits of an element that the spec declares": trial.bits,
        "nothing is kept of the layers that were converted": trial.kept,
        "an index that is unlike others is followed, or refused by name": trial.index,
        "dummy weights of sizes that have few divisors are converted, or refused by name": trial.dummies,
        "scales of the cache have the names that the example says": trial.cache_scales,
        "tensors that mean nothing are those that the example says": trial.empty,
    }
    return example_cases(spec, example, checks)


class Layers(Numbers):
    """One example of one method, with tensors of several modules."""

    def packed(self) -> str:
        """As layers pack them, one below the other."""
        answers = []
        for number, rows in enumerate(_PACKED):
            weights = [self._of(count, number + place) for place, count in enumerate(rows)]
            try:
                given = [self._given(weight) for weight in weights]
            except (RuntimeError, ValueError):
                answers.append(f"{list(rows)} not stored")
                continue
            parts = below(list(map(self._read, given)))
            found = self._answer(f"{list(rows)} rows", partial(self._packing, parts, list(rows)))
            whole = all(count % 128 == 0 for count in rows)
            assert not (whole and found == "refused"), f"projections of {list(rows)} rows are refused"
            if isinstance(found, Tensor):
                self._compare_packed(found, weights, f"projections of {list(rows)} rows")
            answers.append(f"{list(rows)} {'packed' if isinstance(found, Tensor) else found}")
        return ", ".join(answers)

    def large(self) -> None:
        """Two matrices of one layer's name and shape whose first and last rows are alike, of a size that methods may
        treat in pieces, or keep in files, in the user's cache alone, also where no file can be written."""
        first = self._of(_LARGE, 1)
        second = torch.cat([first[:1], -first[1:-1], first[-1:]])
        tried = {"one": first, "another": second, "the first again": first}
        with TemporaryDirectory(prefix="llmk-") as folder, TemporaryDirectory(prefix="llmk-") as home:
            for caches in (folder, os.devnull, ""):
                with patch.dict(os.environ, {"XDG_CACHE_HOME": caches, "HOME": home}):
                    for what, weight in tried.items():
                        found = self._meaning(self._given(weight), [_LARGE])
                        self._compare(found, self._right(weight), f"{what} large matrix, with caches in {caches},")
                tried = {"one": first}
                left = {*os.listdir(home)} - (set() if caches else {".cache"})
                assert not left, f"with XDG_CACHE_HOME={caches!r} the home directory gets {', '.join(left)}"

    def others(self) -> str:
        """All that the example stores, which raises for what the format has no place for."""
        answers = []
        for shape in _OTHERS:
            weight = self._of(shape[0], 1, shape[1])
            given = self._stored_of(weight)
            if given is None:
                answers.append(f"{list(shape)} not stored")
                continue
            try:
                found = self._checked(given)
            except CheckpointError as error:
                what = f"a weight of {list(shape)}, which the example's stored() stores, is refused"
                raise AssertionError(f"{what}: {error.message}") from error
            self._compare(found, self._right(weight), f"a weight of {list(shape)}")
            answers.append(f"{list(shape)} read")
        return ", ".join(answers)

    def _stored_of(self, weight: Tensor) -> dict[str, Tensor] | None:
        """A weight as the example stores it; ``None`` where that raises, or stores another one."""
        try:
            given = self._given(weight)
            right = self._right(weight)
        except (RuntimeError, ValueError, IndexError, AssertionError):
            return None
        if right.shape != weight.shape or not (right - weight).norm() <= self._example.error * weight.norm():
            return None
        return given

    def _checked(self, given: dict[str, Tensor]) -> Tensor:
        """The weight that tensors of any number of rows represent. Raises CheckpointError if the method refuses
        them."""
        shape = self._presented(self._described(given))
        return self._meaning(given, [shape[0]])

    def bits(self) -> str:
        """The memory that a model needs is planned by them: too few end in memory that is full, and by too many, models
        are refused that fit."""
        weight = self._of(ROWS, 1)
        made = self._method().convert("model.layer", self._read(self._given(weight)), [ROWS])
        found, declared = 8 * bytes_of(made) / weight.numel(), self._spec.weight_bits
        least = _LEAST if self._spec.online else _LEAST_STORED
        assert found * least <= declared <= found * _MOST, (
            f"parameters take {found:.3g} bits for an element, with scales; weight_bits is {declared:g}"
        )
        return f"{found:.3g} bits, {declared:g} declared"

    def kept(self) -> str:
        """With one method, as a model's layers are."""
        method = self._method()
        given = [self._read(self._given(self._of(ROWS, number))) for number in range(4)]
        size = max(map(bytes_of, given))
        method.convert("model.layers.0.mlp", given.pop(0), [ROWS])
        before = held_bytes() - sum(map(bytes_of, given))
        count = len(given)
        for number in range(1, count + 1):
            method.convert(f"model.layers.{number}.mlp", given.pop(0), [ROWS])
        left = (held_bytes() - before) / count
        assert left <= _KEPT * size, f"{left:,.0f} bytes of each layer are kept, of tensors that take {size:,}"
        return f"{left:,.0f} bytes"

    def index(self) -> str:
        """One value of each vector of integers, such as the groups of inputs, is that of another place."""
        tensors, answers = self._given(self._of(ROWS, 1)), []
        vectors = [name for name, each in tensors.items() if each.ndim == 1 and not each.is_floating_point()]
        for name in vectors:
            changed = tensors[name].clone()
            changed[0] = changed[-1] if changed[0] != changed[-1] else int(changed[0]) ^ 1
            given = {**tensors, name: changed}
            found = self._answer(f"another {name}", partial(self._meaning, given, [ROWS]))
            if isinstance(found, Tensor) and name not in self._example.unused:
                self._compare(found, self._example.restored(given).float(), f"another {name}")
            answers.append(f"{name} {'followed' if isinstance(found, Tensor) else found}")
        return ", ".join(answers) or "no vector of integers"

    def dummies(self) -> str:
        """As ``load_format = "dummy"`` passes them, to one method."""
        method, answers = self._method(), []
        for number, columns in enumerate(_AWKWARD):
            weight = self._of(ROWS, number)[:, :columns].contiguous()
            found = self._answer(f"{columns} inputs", partial(self._converted, method, weight))
            if not isinstance(found, str):
                error = float((self._dequantized(found) - weight).norm() / weight.norm())
                assert error <= self._example.error, f"{columns} inputs: relative error {error:.1e}"
            answers.append(f"{columns} {found if isinstance(found, str) else 'converted'}")
        return ", ".join(answers)

    def cache_scales(self) -> None:
        """Without one, the scale would be taken for a tensor that the model has no place for."""
        found, right = (
            [set(names) for names in each] for each in (self._method().cache_scales, self._example.cache_scales)
        )
        for what, one, other in zip("KV", found, right, strict=True):
            assert one == other, f"names of {what} scales are {sorted(one)}, expected {sorted(other)}"

    def empty(self) -> str:
        """Zeros, and tensors of which one value is not zero, under each name of the format, and as a bias."""
        names = {*self._given(self._drawn()), *self._example.empty, "bias", "weight", "weight_scale", "surprise"}
        first, last = torch.zeros(2, ROWS).scatter_(1, torch.tensor([[0], [ROWS - 1]]), 1e-3)
        for name in sorted(names):
            found = {what: self._is_empty(name, values) for what, values in (("first", first), ("last", last))}
            assert not any(found.values()), f"a {name} whose {[*found]} values are not zero is said to mean nothing"
            means_nothing = self._is_empty(name, torch.zeros(ROWS))
            assert means_nothing == (name in self._example.empty), (
                f"a {name} of zeros is said to mean {'nothing' if means_nothing else 'something'}"
            )
        return f"{len(names)} names"

    def _answer(self, what: str, run: Callable[[], T]) -> T | str:
        """What ``run`` returns, or ``refused``."""
        try:
            return run()
        except CheckpointError as error:
            refusal = error.message
        assert "layer" in refusal, f"the refusal of {what} doesn't name the layer: {refusal}"
        return "refused"

    def _converted(self, method: Quantization, weight: Tensor) -> dict[str, Tensor]:
        """What a method makes of a plain weight. One that quantizes plain weights may refuse it beforehand."""
        if self._spec.online:
            method.check("model.layer", self._described({"weight": weight}))
        return method.convert("model.layer", {"weight": weight.clone()}, [ROWS])

    def _packing(self, parts: dict[str, Tensor], rows: Sequence[int]) -> Tensor:
        return self._dequantized(self._method().convert("model.layer", parts, rows))

    def _of(self, rows: int, number: int, columns: int = COLUMNS) -> Tensor:
        """A weight of a magnitude that others do not have."""
        drawn = torch.randn(rows, columns, generator=self._bench.random("layers", self._example.name, number))
        return drawn * (1 + 3 * (number % 4))

    def _compare_packed(self, found: Tensor, weights: Sequence[Tensor], what: str) -> None:
        """Methods that quantize what is plain may round all projections as one weight."""
        if self._spec.online:
            whole = self._right(torch.cat([*weights]))
            if found.shape == whole.shape and torch.allclose(found, whole, rtol=1e-4):
                return
        self._compare(found, torch.cat([self._right(weight) for weight in weights]), what)

    def _is_empty(self, name: str, values: Tensor) -> bool:
        with TemporaryDirectory(prefix="llmk-") as folder:
            file = CheckpointFile(Path(folder), "model.safetensors")
            save_file({f"model.layer.{name}": values}, file.path)
            (stored,) = read_headers([file])
            return self._method().is_empty(stored)


def below(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of several modules, one below the other; numbers by themselves count as one row."""
    packed = {}
    for name, first in parts[0].items():
        every = [part[name].reshape(part[name].shape or (1,)) for part in parts]
        rows = torch.cat([each.view(torch.uint8) if each.dtype.itemsize == 1 else each for each in every])
        packed[name] = rows.view(first.dtype)
    return packed
