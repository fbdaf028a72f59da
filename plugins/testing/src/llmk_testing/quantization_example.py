"""What a quantization method is tried on: small checkpoints as the format stores them, and the numbers that stand
there."""

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
    """One layout of one model. ``QuantizationSpec.examples`` names a sequence of these.

    ``stored(weight)`` makes of a product's weight ``[out, in]``, float32, what files hold of it, by the last part of
    the tensors' names; ``restored(stored)`` the numbers ``[out, in]`` that this stands for. Of a method that quantizes
    while it loads, both say what it shall do.
    """

    name: str
    model_type: str
    """Of ``transformers``, which writes the plain checkpoint."""
    model_config: Mapping[str, Any] = field(default_factory=dict)
    stored: Callable[[Tensor], dict[str, Tensor]]
    restored: Callable[[dict[str, Tensor]], Tensor]
    quantization_config: Mapping[str, Any] = field(default_factory=dict)
    """What ``config.json`` says of the format; empty of a method that quantizes while it loads."""
    products: str = r"model\.layers\.\d+\.(self_attn|mlp)\..*_proj\.weight"
    """Regular expression, matched in full, of the weights that are quantized."""
    unused: tuple[str, ...] = ()
    """Those of ``stored`` that may as well be missing."""
    error: float = 0.1
    """Largest relative error of an output's weights that the format may make, root mean square."""
    logits_error: float = 0.3
    """The same of logits."""

    def write(self, folder: Path) -> None:
        """Writes three checkpoints below ``folder``: ``original``, plain; ``quantized``, as files hold it; and
        ``restored``, plain again, of the numbers that stand there."""
        original = write_checkpoint(folder / "written", self.model_type, **self.model_config)
        # Parts of packed layers of unlike sizes, so that they need scales of their own.
        copied(original, folder / "original", lambda tensors: self._each(tensors, self._unlike))
        copied(folder / "original", folder / "restored", lambda tensors: self._each(tensors, self._rounded))
        if self.quantization_config:
            config = {"quantization_config": dict(self.quantization_config)}
            copied(folder / "original", folder / "quantized", self.store, config)

    def store(self, tensors: dict[str, Tensor], but: str = "") -> None:
        """Puts what files hold in the place of products' weights, ``but`` of one."""
        for name in self.quantized(tensors):
            if name != but:
                module = name.removesuffix("weight")
                tensors |= {module + part: value for part, value in self.stored(tensors.pop(name)).items()}

    def quantized(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Names of products' weights."""
        return [name for name in tensors if re.fullmatch(self.products, name)]

    def plain(self, folder: Path) -> list[str]:
        """The same, of the original."""
        return self.quantized(tensors_of(folder / "original"))

    def _each(self, tensors: dict[str, Tensor], change: Callable[[str, Tensor], Tensor]) -> None:
        for name in self.quantized(tensors):
            tensors[name] = change(name, tensors[name])

    def _unlike(self, name: str, weight: Tensor) -> Tensor:
        return weight * (1 + len(name) % 3 + 2 * name.count("k_proj"))

    def _rounded(self, name: str, weight: Tensor) -> Tensor:
        return self.restored(self.stored(weight)).float()
