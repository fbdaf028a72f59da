"""Linear layers, packed: one product serves several of the checkpoint's projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.nn.layer import STORED_DTYPES, Layer, Parameter
from llmk.nn.tensor_file import StoredTensor

if TYPE_CHECKING:
    from llmk.nn.build import Build


class Linear(Layer):
    """``y = x @ weight.T + bias`` by the kernel of ``site``.

    Args:
        prefix: the layer's name in the checkpoint (``"model.layers.0.self_attn.qkv_proj"``).
        sizes: output features of each part.
        parts: names of the projections that are packed into this one (``("q_proj", "k_proj", "v_proj")``), empty where
            nothing is packed. The checkpoint may store the packed one itself instead.
        also_named: the checkpoint's other names for the whole layer.

    Attributes:
        weight: what the kernel's ``prepare`` made of the parameters; any type.
        bias: ``[sum(sizes)]`` or ``None``.
    """

    weight: Any
    bias: Tensor | None

    def __init__(
        self,
        build: Build,
        prefix: str,
        in_features: int,
        sizes: Sequence[int],
        *,
        site: str,
        parts: Sequence[str] = (),
        bias: bool = False,
        also_named: Sequence[str] = (),
    ) -> None:
        kernel = build.linear(site)
        self._build = build
        self._run = kernel.run
        self._prepare = kernel.prepare
        self._plain = kernel.weight_format == "plain"
        self._prefix = prefix
        parent = prefix.rpartition(".")[0]
        self._prefixes = [f"{parent}.{part}" if parent else part for part in parts] or [prefix]
        self._whole = (*([prefix] if parts else []), *also_named)
        self._named = {"weight": self._parameter("weight", sizes, (in_features,))}
        if bias:
            self._named["bias"] = self._parameter("bias", sizes, ())
        super().__init__(build, list(self._named.values()))

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """Where the kernel's weight format is not plain, takes what the checkpoint stores for this layer."""
        if self._plain:
            return
        found = [prefix for prefix in self._prefixes if prefix in stored]
        prefixes = self._prefixes if found or self._prefix not in stored else [self._prefix]
        by_name: dict[str, dict[str, StoredTensor]] = {}
        for prefix in prefixes:
            for tensor in stored.get(prefix, ()):
                by_name.setdefault(tensor.name.rpartition(".")[2], {})[prefix] = tensor
        by_name.pop("bias", None)
        for name, tensors in by_name.items():
            shapes = {prefix: tensor.shape or (1,) for prefix, tensor in tensors.items()}
            some = next(iter(shapes.values()))
            self._named[name] = Parameter(
                self._build,
                [f"{prefix}.{name}" for prefix in prefixes],
                [shapes.get(prefix, some)[0] for prefix in prefixes],
                some[1:],
                dtype=STORED_DTYPES[next(iter(tensors.values())).dtype],
            )
        if by_name and "weight" not in by_name:
            del self._named["weight"]
        self.parameters = tuple(self._named.values())

    def _parameter(self, name: str, rows: Sequence[int], columns: Sequence[int]) -> Parameter:
        others = {f"{whole}.{name}": tuple(range(len(self._prefixes))) for whole in self._whole}
        return Parameter(self._build, [f"{prefix}.{name}" for prefix in self._prefixes], rows, columns, others=others)

    def finish(self) -> None:
        tensors = {name: parameter.take() for name, parameter in self._named.items()}
        self.bias = tensors.pop("bias", None)
        self.weight = self._prepare(tensors)

    def __call__(self, x: Tensor) -> Tensor:
        """``[tokens, in_features]`` to ``[tokens, sum(sizes)]``."""
        return self._run(x, self.weight, self.bias)
