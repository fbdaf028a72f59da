"""What a quantization method makes of numbers at the edges: zeros, one sign, tiny and huge ones, ties, outliers; of
dummy weights; and of tensors in dtypes that no file of the format has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from llmk.api import Checkpoint, CheckpointError, CheckpointFile, QuantizationSpec, StoredTensor
from llmk.kernel.loader import load_object
from llmk.nn.layer import STORED_DTYPES
from llmk.nn.quantization import Quantization
from llmk.nn.tensor_file import read_headers
from llmk.reference import quantized_weight
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.quantization_example import QuantizationExample
from llmk_testing.settings import leaving_settings
from llmk_testing.watch import held_by_integers
from llmk_testing.weights import MADE_AS
from llmk_testing.weights import stored as weight_in

ROWS, COLUMNS = 256, 384
"""Both whole blocks of 128, and unlike."""
TOLERANCE = 3e-4
"""Relative error of a row: a sum in another order may round the scale of one group of 32 to the next float16."""
DTYPES = {dtype: name for name, dtype in STORED_DTYPES.items()}
"""The names that files use, of all dtypes that an example may store."""
FOREIGN = ("F64", "F8_E5M2", "BOOL", "I16")
INTEGERS = ("F8_E4M3", "I8", "U8", "I32", "I64")
"""What no plain weight is stored in."""
WIDE = ("F32", "BF16", "F16")
_FLOATS = {torch.float32, torch.bfloat16, torch.float16}
_FURTHER = {"weight_zero_point", "weight_order"}
"""Parameters that a format of groups may have."""


def number_cases(spec: QuantizationSpec, bench: Bench, example: QuantizationExample) -> Iterator[Case]:
    """The cases of one example."""
    trial = Numbers(spec, bench, example)
    checks = {
        "weights at the edges are what the stored tensors represent": trial.edges,
        "a share of the rows is that share of the weights": trial.share,
        "dummy weights are near what they were": trial.dummy,
        "tensors in dtypes that the format has not are refused": trial.foreign,
        "tensors of other sizes are refused by name": trial.other_sizes,
        "tensors that are missing, and unknown ones, are refused by name": trial.other_tensors,
        "a tensor in another shape is refused, or means the same": trial.other_shapes,
        "a method without a checkpoint converts plain weights": trial.bare,
        "scales in any floating-point dtype of files are read": trial.wide_scales,
    }
    return example_cases(spec, example, checks)


def example_cases(
    spec: QuantizationSpec, example: QuantizationExample, checks: Mapping[str, Callable[[], str | None]]
) -> Iterator[Case]:
    """A case of one example for each of ``checks``, by name."""
    for name, run in checks.items():
        yield Case(spec.id, "quantization", f"{example.name}: {name}", torch.inference_mode()(run))


class Numbers:
    """One example of one method, without a model."""

    def __init__(self, spec: QuantizationSpec, bench: Bench, example: QuantizationExample) -> None:
        self._spec, self._bench, self._example = spec, bench, example

    def edges(self) -> str:
        """Each kind of number in rows of its own, and each magnitude of rows in a weight of its own."""
        weights = self._edges()
        for name, weight in weights.items():
            given = self._given(weight)
            self._compare(self._meaning(given, [len(weight)]), self._right(weight), name)
        return f"{len(weights)} weights"

    def share(self) -> None:
        """What a method keeps of one layer must not be used for another of the same shape."""
        methods, weights, every = (self._method(), self._method()), list(self._edges().values())[:3], []
        for number, weight in enumerate((*weights, *weights)):
            given = self._read(self._given(weight))
            made = methods[number // 3].convert("layer", given, [len(weight)])
            self._compare(self._dequantized(made), self._right(weight), "the next layer of one shape")
            every.append(made)
        for made, weight in zip(every, (*weights, *weights), strict=True):
            self._compare(self._dequantized(made), self._right(weight), "a layer, after later ones were converted")

    def dummy(self) -> str:
        """As ``load_format = "dummy"`` passes them."""
        weight = self._drawn()
        meaning = self._meaning({"weight": weight}, [len(weight)])
        error = float((meaning - weight).norm() / weight.norm())
        assert error <= self._example.error, f"relative error {error:.1e}, at most {self._example.error} is allowed"
        return f"relative error {error:.1e}"

    def foreign(self) -> str:
        """One tensor at a time."""
        good, tried = self._stored(), 0
        self._check(good)
        for part in good.keys() - set(self._example.unused):
            for dtype in {*FOREIGN, *(INTEGERS if self._spec.online else ())} - {good[part].dtype}:
                spoilt = {**good, part: replace(good[part], dtype=dtype)}
                refusal = self._refusal(spoilt)
                assert refusal, f"{part} is accepted as {dtype}, though the format stores {good[part].dtype}"
                assert "model.layer" in refusal, f"the refusal doesn't name the module: {refusal}"
                tried += 1
        return f"{tried} dtypes"

    def other_sizes(self) -> str:
        """One dimension of one tensor longer or shorter, which no config can mean."""
        good, tried = self._stored(), 0
        for part in good.keys() - set(self._example.unused):
            for at, size in enumerate(good[part].shape):
                for other in sorted({size + 1, size - 1, 2 * size + 1, 0} - {size}):
                    shape = (*good[part].shape[:at], other, *good[part].shape[at + 1 :])
                    # A weight by itself may have any number of rows.
                    if other < 0 or (self._spec.online and len(good) == 1):
                        continue
                    changed = good | {part: replace(good[part], shape=shape)}
                    self._refuse(changed, f"{part} of {list(shape)}")
                    self._decode(changed, part)
                    tried += 1
        return f"{tried} shapes"

    def other_tensors(self) -> str:
        """Each one missing, all but each one missing, and one that no file has."""
        good, unused = self._stored(), set(self._example.unused)
        needed = good.keys() - unused
        first = next(iter(good.values()))
        self._refuse({**good, "surprise": replace(first, name="model.layer.surprise")}, "an unknown tensor")
        for part in needed - set(self._example.optional) if len(needed) > 1 else ():
            self._refuse({name: each for name, each in good.items() if name != part}, f"no {part}")
            self._refuse({part: good[part]}, f"{part} alone")
        for part in {"surprise", "bias_of_another", *unused} - needed:
            self._refuse({part: replace(first, name=f"model.layer.{part}")}, f"{part} alone")
        for part in unused:
            self._check({name: each for name, each in good.items() if name != part})
        return f"{len(needed)} tensors"

    def other_shapes(self) -> str:
        """The same numbers with a dimension more or less."""
        tensors, right, taken = self._given(self._drawn()), self._right(self._drawn()), []
        for part, tensor in tensors.items():
            shapes = [(*tensor.shape, 1), (1, *tensor.shape), tuple(tensor.shape[:-1]), (tensor.numel(),)]
            for shape in {shape for shape in shapes if shape != tuple(tensor.shape)}:
                if part in self._example.unused or torch.Size(shape).numel() != tensor.numel():
                    continue
                given = {**tensors, part: tensor.reshape(shape)}
                if refusal := self._refusal(self._described(given)):
                    assert "model.layer" in refusal, f"the refusal doesn't name the module: {refusal}"
                    continue
                self._compare(self._meaning(given, [ROWS]), right, f"{part} of {list(shape)}, which is accepted,")
                taken.append(f"{part} {list(shape)}")
        return f"accepted: {', '.join(taken) or 'none'}"

    def bare(self) -> None:
        """As plain weights, in any dtype of an engine, are made to stand for stored ones."""
        method: Quantization = load_object(self._spec.implementation)()
        for rows, columns in ((ROWS, COLUMNS), (ROWS, 128)):
            for dtype in _FLOATS:
                weight = self._drawn()[:, :columns].to(dtype)
                meaning = self._dequantized(method.convert("layer", {"weight": weight.clone()}, [rows]))
                error = float((meaning - weight.float()).norm() / weight.float().norm())
                assert error <= self._example.error, f"{[rows, columns]} in {dtype}: relative error {error:.1e}"

    def wide_scales(self) -> str:
        """Files store them in any of three dtypes, of which a format may have fewer: others are refused by name."""
        tensors, good, tried = self._given(self._drawn()), self._stored(), 0
        if self._example.presented:
            raise Skip("its tensors are presented by a reader, which chooses their dtypes")
        if self._spec.online:
            for dtype in _FLOATS:
                self._method().check("model.layer", {"weight": replace(good["weight"], dtype=DTYPES[dtype])})
                weight = self._wide(dtype)
                right = self._right(weight.float())
                self._compare(self._meaning({"weight": weight}, [ROWS]), right, f"a plain weight in {dtype}")
            return f"plain weights of {', '.join(WIDE)}"
        for part, tensor in tensors.items():
            if tensor.dtype not in _FLOATS:
                continue
            for dtype in _FLOATS - {tensor.dtype}:
                stored = {**tensors, part: tensor.to(dtype)}
                other = {**good, part: replace(good[part], dtype=DTYPES[dtype])}
                if DTYPES[dtype] in self._refusal(other):
                    continue
                self._check(other)
                widened = {name: value.float() if name == part else value for name, value in stored.items()}
                self._compare(
                    self._meaning(stored, [ROWS]), self._example.restored(widened).float(), f"{part}, {dtype}"
                )
                tried += 1
        return f"{tried} dtypes"

    def _refusal(self, stored: Mapping[str, StoredTensor]) -> str:
        try:
            self._check(stored)
        except CheckpointError as error:
            return str(error)
        return ""

    def _refuse(self, stored: Mapping[str, StoredTensor], what: str) -> None:
        refusal = self._refusal(stored)
        assert refusal, f"{what} is accepted, with {', '.join(stored)}"
        assert "model.layer" in refusal, f"the refusal of {what} doesn't name the module: {refusal}"

    def _decode(self, changed: Mapping[str, StoredTensor], part: str) -> None:
        """Tensors of which the model alone says that they are of other sizes, and one may be, can be read."""
        if 0 in changed[part].shape or not self._shape(changed):
            return
        tensors, shape = self._given(self._drawn()), changed[part].shape
        tensors[part] = torch.zeros(shape, dtype=tensors[part].dtype)
        try:
            self._read(tensors)
        except RuntimeError as error:
            raise AssertionError(f"{part} of {list(shape)} is taken, and can't be read: {error}") from error

    def _shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """The shape of the weight; ``()`` where the method refuses its tensors."""
        try:
            return self._presented(stored)
        except CheckpointError:
            return ()

    def _check(self, stored: Mapping[str, StoredTensor]) -> None:
        """As a model's layers do: presents the files' tensors, checks them, and compares the weight's shape."""
        shape = self._presented(stored)
        if shape != (ROWS, COLUMNS):
            raise CheckpointError(f"model.layer has shape {list(shape)}, not {[ROWS, COLUMNS]}")

    def _presented(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        method = self._method()
        given = [replace(each, name=f"model.layer.{name}") for name, each in stored.items()]
        presented = {each.name.rpartition(".")[2]: each for each in method.present("model.layer", given)}
        method.check("model.layer", presented)
        return tuple(method.shape(presented))

    def _drawn(self) -> Tensor:
        return torch.randn(ROWS, COLUMNS, generator=self._bench.random("numbers", self._example.name))

    def _wide(self, dtype: torch.dtype) -> Tensor:
        """Of which the largest are near those of float16, in the last of each three rows; and small ones."""
        magnitudes = torch.tensor([1e-3, 1.0, 6e4]).repeat(ROWS)[:ROWS, None]
        return (torch.rand(ROWS, COLUMNS, generator=self._bench.random("wide")) * 2 - 1).mul(magnitudes).to(dtype)

    def _edges(self) -> dict[str, Tensor]:
        drawn = self._drawn()
        steps = torch.arange(COLUMNS).remainder(255).sub(127).div(2).expand(ROWS, COLUMNS)
        mixed = drawn.clone()
        mixed[0::4] = drawn[0::4].abs() + 0.5
        mixed[1::4] = -drawn[1::4].abs() - 0.5
        mixed[2::4] *= 1e-3
        mixed[3::8] *= 100
        outliers = drawn.clone()
        outliers[:, 5] *= 50
        return {
            "rows of one sign, and of several magnitudes": mixed,
            "zeros alone": torch.zeros_like(drawn),
            "one number among zeros": torch.zeros_like(drawn).index_fill_(1, torch.tensor([7]), 0.5),
            "one number everywhere": torch.full_like(drawn, -0.25),
            "zeros in whole rows": drawn * (torch.arange(ROWS) % 3 > 0)[:, None],
            "tiny numbers": drawn * 1e-6,
            "large numbers": drawn * 300,
            "ties between two steps": steps.clone().float(),
            "an outlier in each row": outliers,
        }

    def _method(self) -> Quantization:
        config = {"architectures": ["Some"], "quantization_config": dict(self._example.quantization_config)}
        made: Quantization = load_object(self._spec.implementation)(Checkpoint(Path("/nowhere"), config))
        return made

    def _given(self, weight: Tensor) -> dict[str, Tensor]:
        return {"weight": weight.clone()} if self._spec.online else self._example.stored(weight.clone())

    def _right(self, weight: Tensor) -> Tensor:
        return self._example.restored(self._example.stored(weight.clone())).float()

    def _stored(self) -> dict[str, StoredTensor]:
        return self._described(self._given(self._drawn()))

    def _described(self, given: Mapping[str, Tensor]) -> dict[str, StoredTensor]:
        file: Any = None  # checks read no tensor
        return {
            name: StoredTensor(f"model.layer.{name}", file, DTYPES[tensor.dtype], tuple(tensor.shape), 0, tensor.nbytes)
            for name, tensor in given.items()
        }

    def _read(self, given: Mapping[str, Tensor], method: Quantization | None = None) -> dict[str, Tensor]:
        """What the loader gets of stored tensors: the method, or a new one, presents those of a file, and they are
        decoded."""
        if self._example.presented:
            return dict(given)
        with TemporaryDirectory(prefix="llmk-") as folder:
            file = CheckpointFile(Path(folder), "model.safetensors")
            save_file({f"model.layer.{name}": tensor.contiguous() for name, tensor in given.items()}, file.path)
            data = file.path.read_bytes()
            found = (method or self._method()).present("model.layer", read_headers([file]))
        return {each.name.rpartition(".")[2]: _values(each, data) for each in found}

    def _meaning(self, stored: Mapping[str, Tensor], rows: list[int]) -> Tensor:
        given = self._read(stored)
        before = {name: tensor.clone() for name, tensor in given.items()}
        with held_by_integers(), leaving_settings():
            made = self._method().convert("layer", dict(given), rows)
        for name, tensor in before.items():
            after, kept = (each.contiguous().view(-1).view(torch.uint8) for each in (given[name], tensor))
            same = torch.equal(after, kept)
            assert same, f"convert changed the stored {name}, which it was given"
        return self._dequantized(made)

    def _dequantized(self, made: dict[str, Tensor]) -> Tensor:
        weight_format = MADE_AS.get(self._spec.weight_format, self._spec.weight_format)
        prepare: Any = getattr(quantized_weight, f"prepare_{weight_format}", None)
        if prepare is None:
            raise Skip(f"the reference can't dequantize {weight_format}")
        for name, tensor in made.items():
            assert tensor.is_contiguous(), f"{name} of strides {tensor.stride()} is not contiguous"
            assert tensor.dtype != torch.float64, f"{name} is float64, which no format has"
        usual = weight_in(self._bench.registry, weight_format, torch.ones(128, 128)).parameters
        unknown = made.keys() - usual.keys() - _FURTHER
        assert not unknown, f"{', '.join(sorted(unknown))} is no parameter of the format {weight_format}"
        for name in usual.keys() & made.keys():
            shape = list(made[name].shape)
            same = made[name].dtype == usual[name].dtype or (
                made[name].dtype in _FLOATS and usual[name].dtype in _FLOATS
            )
            assert same, f"{name} is {made[name].dtype}; the format {weight_format} has {usual[name].dtype}"
            assert len(shape) == usual[name].ndim, (
                f"{name} of {shape} has {len(shape)} dimensions; the format {weight_format} has {usual[name].ndim}"
            )
        found: Tensor = prepare(made).dequantize(torch.float32)
        return found

    def _compare(self, found: Tensor, right: Tensor, what: str) -> None:
        assert found.shape == right.shape, f"{what}: {list(found.shape)}, expected {list(right.shape)}"
        assert bool(found.isfinite().all()), f"{what}: not all weights are finite"
        error = (found - right).norm(dim=1) - TOLERANCE * right.norm(dim=1)
        wrong = (error > 1e-30).nonzero().flatten().tolist()
        if wrong:
            row = wrong[0]
            place = int((found[row] - right[row]).abs().argmax())
            values = f"{float(found[row, place]):.4g}, expected {float(right[row, place]):.4g}"
            raise AssertionError(
                f"{what}: {len(wrong)} of {len(right)} rows differ, first {row}: input {place} is {values}"
            )


def _values(stored: StoredTensor, data: bytes) -> Tensor:
    """The values of a tensor of a file that has no more rows than are decoded at once."""
    taken = torch.frombuffer(bytearray(data[stored.start : stored.stop]), dtype=torch.uint8)
    if stored.decode is not None:
        multiple = stored.decode.multiple
        assert isinstance(multiple, int), f"{stored.name} is decoded in multiples of {multiple} rows"
        rows = stored.shape[0] if multiple else 1
        return stored.decode(taken.view(rows, -1)).reshape(stored.shape).contiguous()
    return taken.view(STORED_DTYPES[stored.dtype]).reshape(stored.shape)
