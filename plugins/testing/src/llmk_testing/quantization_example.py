"""Examples of a quantization method: small checkpoints in the format, and the weights that they represent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.files import copied, tensors_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationExample:
    """One layout of one model. ``QuantizationSpec.examples`` names a sequence of these and of :class:`ConfigExample`.

    ``stored(weight)`` converts a linear layer's weight ``[out, in]``, float32, to the stored tensors, by the last part
    of their names; ``restored(stored)`` converts these to the weight ``[out, in]`` that they represent. For a method
    that quantizes while it loads, both define its expected result. ``stored`` raises for a weight whose size the format
    or the method has no place for; what it stores is read.
    """

    name: str
    model_type: str
    """A type of ``transformers``, which writes the plain checkpoint."""
    model_config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of its config that are not as in the tiny default."""
    stored: Callable[[Tensor], dict[str, Tensor]]
    restored: Callable[[dict[str, Tensor]], Tensor]
    quantization_config: Mapping[str, Any] = field(default_factory=dict)
    """The ``quantization_config`` in ``config.json``; empty for a method that quantizes while it loads."""
    quantized_weights: str = r"model\.layers\.\d+\.(self_attn|mlp)\..*_proj\.weight"
    """Regular expression, matched in full, of the weights that are quantized."""
    unused: tuple[str, ...] = ()
    """Those of ``stored`` that mean nothing, and may be missing."""
    optional: tuple[str, ...] = ()
    """Those of ``stored`` without which a module is whole, too, but means something else."""
    cache_scales: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Names of the K scales and of the V scales of a cache that tools store with the format, as
    ``llmk.nn.Quantization`` has them."""
    empty: tuple[str, ...] = ()
    """Tensors, by the last part of their names, that mean nothing where they are zeros and the model has no place for
    them."""
    presented: bool = False
    """Whether ``stored`` are tensors as the reader of a checkpoint format presents them, with dtypes of its choice."""
    error: float = 0.1
    """Largest allowed relative error (root mean square) of an output channel's weights, by how coarse the format is."""
    logits_error: float = 0.3
    """Largest allowed relative error of logits."""

    def write(self, folder: Path) -> None:
        """Writes three checkpoints below ``folder``: ``original``, plain; ``quantized``, in the format; and
        ``restored``, plain, with the weights that the quantized one represents."""
        original = write_checkpoint(folder / "written", self.model_type, **self.model_config)
        # Parts of packed layers have different magnitudes, so that they need separate scales.
        copied(original, folder / "original", lambda tensors: self._each(tensors, self._unlike))
        copied(folder / "original", folder / "restored", lambda tensors: self._each(tensors, self._rounded))
        if self.quantization_config:
            config = {"quantization_config": dict(self.quantization_config)}
            copied(folder / "original", folder / "quantized", self.store, config)

    def store(self, tensors: dict[str, Tensor], but: str = "") -> None:
        """Replaces the weights of linear layers, except ``but``, by the stored tensors."""
        for name in self.quantized(tensors):
            if name != but:
                module = name.removesuffix("weight")
                tensors |= {module + part: value for part, value in self.stored(tensors.pop(name)).items()}

    def quantized(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Names of the weights that are quantized."""
        return [name for name in tensors if re.fullmatch(self.quantized_weights, name)]

    def plain(self, folder: Path) -> list[str]:
        """The same, in the original checkpoint."""
        return self.quantized(tensors_of(folder / "original"))

    def _each(self, tensors: dict[str, Tensor], change: Callable[[str, Tensor], Tensor]) -> None:
        for name in self.quantized(tensors):
            tensors[name] = change(name, tensors[name])

    def _unlike(self, name: str, weight: Tensor) -> Tensor:
        return weight * (1 + len(name) % 3 + 2 * name.count("k_proj"))

    def _rounded(self, name: str, weight: Tensor) -> Tensor:
        return self.restored(self.stored(weight)).float()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigExample:
    """A ``quantization_config``, and what the method says of it.

    ``claimed`` is whether the method claims the checkpoint, or the code of a reason why not. ``modules`` are names of
    modules: ``True``: the method reads it, ``False``: it is plain, or the code of a reason why it can't be read. Where
    the config can't be followed, all must raise a CheckpointError with ``error`` in it. ``unmatched`` are the entries
    of the config's lists that name none of ``modules``.
    """

    config: Mapping[str, Any]
    claimed: bool | str = True
    modules: Mapping[str, bool | str] = field(default_factory=dict)
    error: str = ""
    unmatched: tuple[str, ...] | None = None
