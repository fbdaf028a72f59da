"""Reads ternary checkpoints of the format T5 into the weight format ``int4_group``.

A module has these tensors:

- ``trits``, uint8 ``[out, ceil(in / 5)]``: five inputs to a byte, the first one in the lowest place of a number in base
  3, whose digits 0, 1 and 2 stand for -1, 0 and 1. What the last byte has beyond the inputs means nothing.
- ``scales``, a float of 16 or 32 bits ``[out, in / group_size]``.
- ``zeros``, int8 of the same shape, where the config says that the weights are not symmetric: the zero, in quarters.

A weight is ``scale * (trit - zero / 4)``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from llmk.api import Checkpoint, CheckpointError, StoredTensor
from llmk.nn import Quantization
from llmk_estuary import tern_t5_config

TRITS, SCALES, ZEROS = "trits", "scales", "zeros"
PER_BYTE = 5
LARGEST_BYTE = 3**PER_BYTE - 1
CENTRE = 8
"""The 4-bit number of a trit of 0, which is the format's zero point where there is none."""
ZEROS_PER_UNIT = 4

_NAMES = {TRITS: "weight_packed", SCALES: "weight_scale", ZEROS: "weight_zero_point"}
_DTYPES = {"weight_packed": ("U8",), "weight_scale": ("F16", "BF16", "F32"), "weight_zero_point": ("I8",)}
_FLOATS = {"F16": 2, "BF16": 2, "F32": 4}
_CHUNK = 1 << 20

_NIBBLES = torch.tensor(
    [[byte // 3**place % 3 + CENTRE - 1 for place in range(PER_BYTE)] for byte in range(LARGEST_BYTE + 1)],
    dtype=torch.uint8,
    device="cpu",
)
"""The 4-bit numbers that a byte of five trits stands for."""


@dataclass(frozen=True, slots=True)
class DecodeTrits:
    """Makes rows of trits rows of 4-bit numbers, two to a byte, of ``in_features`` inputs. ``name`` is for errors."""

    in_features: int
    name: str = field(default="", compare=False)

    @property
    def multiple(self) -> int:
        """Each row stands by itself."""
        return 1

    def __call__(self, stored: Tensor) -> Tensor:
        """uint8 ``[rows, in_features / 2]`` of uint8 ``[rows, ceil(in_features / 5)]``."""
        if stored.numel() and int(stored.max()) > LARGEST_BYTE:
            raise CheckpointError(
                f"{self.name} has the byte {int(stored.max())}, which five trits can't be",
                hint="download or convert the checkpoint again",
            )
        numbers = _NIBBLES[stored.int()].flatten(1)[:, : self.in_features]
        return numbers[:, 0::2] | numbers[:, 1::2] << 4


class T5(Quantization):
    """The method: weights of three values, as 4-bit numbers with a scale and a zero point per group of inputs."""

    cache_scales = (("k_scale", "k_proj.output_scale"), ("v_scale", "v_proj.output_scale"))

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(checkpoint)
        self._config = tern_t5_config.T5Config() if checkpoint is None else tern_t5_config.read(checkpoint)

    def unmatched(self, modules: Collection[str]) -> list[str]:
        """Entries of ``ignore`` that name no module."""
        return self._config.unmatched(modules)

    def present(self, module: str, stored: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
        """The tensors by the names of the weight format, trits as 4-bit numbers."""
        by_name = {tensor.name.rpartition(".")[2]: tensor for tensor in stored}
        trits, scales = by_name.get(TRITS), by_name.get(SCALES)
        if self._config.is_plain(module) or trits is None:
            return stored
        if trits.dtype != "U8" or len(trits.shape) != 2:
            raise _unreadable(trits.name, f"it is {trits.dtype} of shape {list(trits.shape)}, not U8 of two dimensions")
        if scales is None or len(scales.shape) != 2:
            shape = "there is none" if scales is None else f"its shape is {list(scales.shape)}"
            raise _unreadable(f"{module}.{SCALES}", f"{shape}; it has a row per output and a column per group")
        in_features = scales.shape[1] * self._config.group_size
        if scales.shape[0] != trits.shape[0] or trits.shape[1] != -(-in_features // PER_BYTE):
            raise _unreadable(
                trits.name,
                f"its shape is {list(trits.shape)}, which {list(scales.shape)} scales of {self._config.group_size}"
                " inputs don't fit",
            )
        return [self._presented(tensor, in_features) for tensor in stored]

    def is_empty(self, tensor: StoredTensor) -> bool:
        """Biases of zeros: T5's tool writes one for every module."""
        width = _FLOATS.get(tensor.dtype, 0)
        if tensor.name.rpartition(".")[2] != "bias" or not width or tensor.decode:
            return False
        left = tensor.num_bytes
        with tensor.file.open() as stream:
            stream.seek(tensor.start)
            while left:
                chunk = stream.read(min(_CHUNK, left))
                signs = set(chunk[width - 1 :: width])
                if not chunk or not signs <= {0, 0x80} or any(any(chunk[at::width]) for at in range(width - 1)):
                    return False
                left -= len(chunk)
        return True

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Refuses what is missing, unknown, or of another dtype or size."""
        wanted = {"weight_packed", "weight_scale"} | (set() if self._config.symmetric else {"weight_zero_point"})
        if missing := wanted - stored.keys():
            raise _unreadable(module, f"it lacks {_listed(missing)}; it has {_listed(stored)}")
        if unknown := stored.keys() - wanted:
            raise _unreadable(module, f"it has {_listed(unknown)}, which the config doesn't speak of")
        rows, columns = stored["weight_scale"].shape
        shapes = {"weight_packed": (rows, columns * self._config.group_size // 2)}
        for name, tensor in stored.items():
            if tensor.dtype not in _DTYPES[name]:
                raise _unreadable(tensor.name, f"it is {tensor.dtype}, not {' or '.join(_DTYPES[name])}")
            if tensor.shape != (shape := shapes.get(name, (rows, columns))):
                raise _unreadable(tensor.name, f"its shape is {list(tensor.shape)}, not {list(shape)}")

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """Two inputs to a byte."""
        rows, columns = stored["weight_packed"].shape
        return (rows, 2 * columns)

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """The parameters of ``int4_group``, of the presented tensors or of a dummy weight."""
        if "weight_packed" not in parameters:
            return self._ternary(layer, parameters["weight"])
        packed = parameters["weight_packed"]
        scale = parameters["weight_scale"].reshape(packed.shape[0], -1)
        if not bool(scale.isfinite().all()):
            raise _unreadable(f"{layer}.{SCALES}", "some are infinite, or no numbers")
        found = {"weight_packed": packed.contiguous(), "weight_scale": scale.contiguous()}
        if (zeros := parameters.get("weight_zero_point")) is not None:
            # Quarters of at most 8 bits: float16 has all of them.
            zero_point = zeros.reshape(scale.shape).to(torch.float16) / ZEROS_PER_UNIT + CENTRE
            found["weight_zero_point"] = zero_point.contiguous()
        return found

    def _presented(self, tensor: StoredTensor, in_features: int) -> StoredTensor:
        module, _, name = tensor.name.rpartition(".")
        presented = replace(tensor, name=f"{module}.{_NAMES.get(name, name)}")
        if name != TRITS:
            return presented
        shape = (tensor.shape[0], in_features // 2)
        return replace(presented, shape=shape, decode=DecodeTrits(in_features, tensor.name))

    def _ternary(self, layer: str, weight: Tensor) -> dict[str, Tensor]:
        """A plain ``weight``, of dummy values, rounded to trits by the mean magnitude of each group."""
        out_features, in_features = weight.shape
        if in_features % self._config.group_size:
            raise _unreadable(layer, f"its {in_features} inputs are no groups of {self._config.group_size}")
        groups = weight.float().view(out_features, -1, self._config.group_size)
        scale = groups.abs().mean(dim=-1)
        trits = (groups / scale.clamp(min=torch.finfo(torch.float32).tiny)[..., None]).round().clamp(-1, 1)
        numbers = (trits + CENTRE).to(torch.uint8).flatten(1)
        packed = numbers[:, 0::2] | numbers[:, 1::2] << 4
        return {"weight_packed": packed.contiguous(), "weight_scale": scale.to(torch.bfloat16)}


def _unreadable(name: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"{name} is not stored as T5 stores weights: {why}", hint="check that config.json belongs to these weights"
    )


def _listed(names: Collection[str]) -> str:
    shown = {each: name for name, each in _NAMES.items()}
    return ", ".join(sorted(shown.get(name, name) for name in names)) or "nothing"
