"""GPTQ's and AWQ's checkpoints: integers of 2, 3, 4 or 8 bits with a scale and a zero point per group of inputs.

Files have a row per input: ``qweight``, ``qzeros`` and ``scales``, and GPTQ's also ``g_idx``, the group of each input
(``TorchQuantLinear`` of gptqmodel, ``WQLinear_GEMM`` of AutoAWQ). They are presented with a row per output.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from llmk.api import Checkpoint, StoredTensor
from llmk.nn.layer import STORED_DTYPES
from llmk.nn.quantization import Quantization
from llmk.reference.quantize import quantize_int4_group, quantize_int8_group
from llmk_quantization import schemes
from llmk_quantization.bits import from_nibbles, in_nibbles
from llmk_quantization.dummy import group_size_of
from llmk_quantization.fp8 import CACHE_SCALES, bad, of_other_dtype
from llmk_quantization.modules import unmatched
from llmk_quantization.ordered import GROUP_INDEX, order_of, presented
from llmk_quantization.schemes import NARROW, WIDE, Finder, Scheme
from llmk_quantization.transposed import WORD, Inputs, Outputs, PackedOutputs, Scales, by_name, decoded

_WIDE_DTYPES = ("F32", "BF16", "F16")
_STORED = {"qweight": ("I32",), "qzeros": ("I32",), "scales": _WIDE_DTYPES}
"""What files store for a weight, with the dtypes that it may have."""
_INDEX = "g_idx"
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where a word of AWQ has the numbers of consecutive outputs."""


class ByInputs(Quantization):
    """Base of methods that read such files."""

    cache_scales = CACHE_SCALES
    unsharded = (GROUP_INDEX,)
    bits: tuple[int, ...] = NARROW
    """Bits of the modules that the method reads."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(checkpoint)
        self._config = checkpoint.quantization if checkpoint else {}
        self._scheme_of = self._finder() if checkpoint else lambda module: None

    @abstractmethod
    def _finder(self) -> Finder:
        """The scheme of each module."""

    @abstractmethod
    def _weight(self, module: str, stored: StoredTensor, outputs: int, scheme: Scheme) -> StoredTensor:
        """``qweight`` with a row per output: ``weight_packed`` uint8 ``[out, in / 2]``, or ``weight`` int8
        ``[out, in]``."""

    @abstractmethod
    def _zeros(self, groups: int, bits: int) -> Outputs:
        """What decodes ``qzeros``."""

    def present(self, module: str, stored: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
        """As the base class says: the parameters of the weight format, with zero points as in the file."""
        named, scheme = by_name(stored), self._scheme_of(module)
        if scheme is None or scheme.bits not in self.bits or not {*named} & {*_STORED}:
            return stored
        if missing := [name for name in _STORED if name not in named]:
            raise bad(module, f"lacks {', '.join(missing)}")
        weight, zeros, scales = (named[name] for name in _STORED)
        for (name, dtypes), tensor in zip(_STORED.items(), (weight, zeros, scales), strict=True):
            if tensor.dtype not in dtypes or len(tensor.shape) != 2:
                wanted = f"{' or '.join(dtypes)} in two dimensions"
                raise bad(module, f"has {name} of {tensor.dtype} {list(tensor.shape)}, not of {wanted}")
        groups, outputs = scales.shape
        made = self._weight(module, weight, outputs, scheme)
        inputs = self.shape({made.name.rpartition(".")[2]: made})[1]
        if groups * scheme.size(inputs) != inputs or zeros.shape != (groups, outputs * scheme.bits // WORD):
            found = f"scales of {list(scales.shape)} and qzeros of {list(zeros.shape)}"
            raise bad(module, f"has {found} for {inputs} inputs in groups of {scheme.group_size} (group_size)")
        shape = (outputs, groups)
        others = [tensor for name, tensor in named.items() if name not in (*_STORED, _INDEX)]
        return [
            made,
            decoded(scales, "weight_scale", scales.dtype, shape, Scales(groups, STORED_DTYPES[scales.dtype])),
            decoded(zeros, "weight_zero_point", "U8", shape, self._zeros(groups, scheme.bits)),
            *self._index(module, named.get(_INDEX), inputs, scheme),
            *others,
        ]

    def _index(self, module: str, index: StoredTensor | None, inputs: int, scheme: Scheme) -> list[StoredTensor]:
        """The presented ``g_idx``, where inputs may be ordered."""
        if not scheme.ordered:
            return []
        if index is None:
            raise bad(module, f"lacks {_INDEX}, which desc_act says that it has")
        if index.dtype != "I32" or index.shape != (inputs,):
            raise bad(module, f"has {_INDEX} of {index.dtype} {list(index.shape)}, not of I32 [{inputs}]")
        return [presented(index)]

    def is_empty(self, tensor: StoredTensor) -> bool:
        """A bias of zeros, which AutoGPTQ stores for layers that have none."""
        if not tensor.name.endswith(".bias"):
            return False
        with tensor.file.open() as file:
            file.seek(tensor.start)
            return not any(file.read(tensor.num_bytes))

    def check(self, module: str, stored: Mapping[str, StoredTensor]) -> None:
        """Refuses plain modules, and tensors that the format doesn't have."""
        if "weight" in stored and stored["weight"].dtype in _WIDE_DTYPES:
            raise of_other_dtype(module, stored["weight"].dtype, "integers")
        if unknown := sorted(
            set(stored) - {"weight", "weight_packed", "weight_scale", "weight_zero_point", GROUP_INDEX}
        ):
            raise bad(module, f"stores {', '.join(unknown)}, which weights of this format don't have")

    def shape(self, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """As the base class says."""
        if "weight" in stored:
            return stored["weight"].shape
        outputs, pairs = stored["weight_packed"].shape
        return outputs, pairs * 2

    def convert(self, layer: str, parameters: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """The parameters of the weight format."""
        if "weight_scale" not in parameters:  # dummy values
            return self._dummy(parameters["weight"])
        index, scale = parameters.pop(GROUP_INDEX, None), parameters["weight_scale"]
        found = {**parameters, "weight_scale": scale.float()}
        if "weight" in found:
            found["weight_zero_point"] = found["weight_zero_point"].float() - 128
        inputs = found["weight"].shape[1] if "weight" in found else found["weight_packed"].shape[1] * 2
        order = None if index is None else order_of(layer, index, inputs, scale.shape[1])
        if order is None:
            return found
        if "weight" in found:
            found["weight"] = found["weight"][:, order]
        else:
            found["weight_packed"] = in_nibbles(from_nibbles(found["weight_packed"])[:, order])
        return found | {"weight_order": order}

    def _dummy(self, weight: Tensor) -> dict[str, Tensor]:
        quantize = quantize_int4_group if self.bits == NARROW else quantize_int8_group
        return quantize(weight, group_size_of(weight))


class Gptq(ByInputs):
    """2, 3 or 4 bits."""

    def _finder(self) -> Finder:
        return schemes.gptq_schemes(self._config)

    def unmatched(self, modules: Collection[str]) -> list[str]:
        """As the base class says."""
        return schemes.unmatched(self._config, modules)

    def _weight(self, module: str, stored: StoredTensor, outputs: int, scheme: Scheme) -> StoredTensor:
        words, columns = stored.shape
        inputs, left = divmod(words * WORD, scheme.bits)
        if columns != outputs or left:
            raise bad(module, f"has qweight of {list(stored.shape)} for {outputs} outputs and {scheme.bits} bits")
        wide = scheme.bits == 8
        name, dtype, shape = ("weight", "I8", inputs) if wide else ("weight_packed", "U8", inputs // 2)
        return decoded(stored, name, dtype, (outputs, shape), Inputs(words, scheme.bits))

    def _zeros(self, groups: int, bits: int) -> Outputs:
        return Outputs(groups, bits, added=int(schemes.is_v1(self._config)))


class Gptq8(Gptq):
    """8 bits."""

    bits = WIDE


class Awq(ByInputs):
    """4 bits, packed along outputs, which alternate within a word."""

    def _finder(self) -> Finder:
        return schemes.awq_schemes(self._config)

    def unmatched(self, modules: Collection[str]) -> list[str]:
        """As the base class says."""
        return unmatched(self._config, modules)

    def _weight(self, module: str, stored: StoredTensor, outputs: int, scheme: Scheme) -> StoredTensor:
        inputs, words = stored.shape
        if words * WORD != outputs * scheme.bits or inputs % 2:
            raise bad(module, f"has qweight of {list(stored.shape)} for {outputs} outputs and {scheme.bits} bits")
        decode = PackedOutputs(inputs, scheme.bits, _AWQ_PLACES)
        return decoded(stored, "weight_packed", "U8", (outputs, inputs // 2), decode)

    def _zeros(self, groups: int, bits: int) -> Outputs:
        return Outputs(groups, bits, _AWQ_PLACES)
