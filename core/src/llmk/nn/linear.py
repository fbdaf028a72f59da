"""Packed linear layers: one GEMM computes several of the checkpoint's projections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.api import CheckpointError, StoredTensor
from llmk.nn.layer import Layer, Parameter, stored_dtype
from llmk.nn.quantization import Quantization

if TYPE_CHECKING:
    from llmk.api.facts import Cut
    from llmk.nn.build import Build

SCALED = ("weight", "weight_packed", "weight_scale", "weight_scale_inv", "weight_zero_point")
"""Tensors of quantized formats that can be sharded: each row belongs to some output features, each column to some input
features or to all."""


class Linear(Layer):
    """Computes ``y = x @ weight.T + bias`` by the kernel of ``site``.

    Args:
        prefix: the layer's name in the checkpoint (``"model.layers.0.self_attn.qkv_proj"``).
        sizes: output features of each part.
        parts: names of the projections that are packed into this one (``("q_proj", "k_proj", "v_proj")``), one for each
            size; the checkpoint may also store the packed tensor. Empty: the checkpoint stores only the packed tensor.
        aliases: other names of the whole layer in the checkpoint.
        parallel: how tensor-parallel ranks shard it. ``"column"``: each rank computes some of every part's output
            features. ``"row"``: each rank takes some of the input features, and the results are all-reduced.
        units: how many units (heads) each part consists of; a unit is never split. Empty: one unit per output feature.
        partial: skip the all-reduce of a row-parallel layer. The caller does it, perhaps for a sum with other tensors.
        groups: as :attr:`llmk.tree.Linear.groups`.

    Attributes:
        site: the plan's site, which :meth:`Build.kernel` takes for ops over this layer.
        in_features: input features of the whole layer.
        weight: the weights that the kernel's ``prepare`` returned; any type.
        bias: this rank's share of ``[sum(sizes)]``, or ``None``.
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
        aliases: Sequence[str] = (),
        parallel: Cut = "",
        units: Sequence[int] = (),
        partial: bool = False,
        groups: int = 0,
    ) -> None:
        parent = prefix.rpartition(".")[0]
        self._prefixes = [f"{parent}.{part}" if parent else part for part in parts] or [prefix]
        kernel = build.linear(site, module=self._prefixes[0])
        self.site = kernel.site
        self._build = build
        self._is_reduced = parallel == "row" and not partial
        self._run = self.reduced(self._completed(kernel.run))
        self._prepare = kernel.prepare
        self._quantization = None if kernel.weight_format == "plain" else build.quantization(kernel.weight_format)
        self._prefix = prefix
        self._whole = (*([prefix] if parts else []), *aliases)
        self._parents = [alias.rpartition(".")[0] for alias in aliases] if parts else []
        self.in_features = in_features
        self._rows = list(sizes) if parts else [sum(sizes)]
        self._kept_rows, self._kept_columns, self._grouped = None, None, groups > 0
        if parallel == "column":
            shares, cut = build.parallel.shares, list(zip(sizes, units or sizes, strict=True))
            self._kept_rows = [shares([part]) for part in cut] if parts else [shares(cut)]
            if groups:
                self._kept_rows = [_in_groups(self._kept_rows[0], sizes, groups)]
        elif parallel == "row":
            self._kept_columns = build.parallel.share(in_features)
        self._named = {"weight": self._parameter("weight", (in_features,))}
        if bias:
            self._named["bias"] = self._parameter("bias", ())
        super().__init__(build, list(self._named.values()))

    def _completed(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """What computes this rank's result, by the kernel ``run``."""
        return run

    def reduced(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """``run``, which computes this rank's result in the layer's place, and the sum over ranks where there is
        one."""
        return self._build.parallel.all_reduced(run) if self._is_reduced else run

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """If the kernel's weight format is not plain, replaces the parameters by those that the checkpoint stores for
        this layer."""
        if self._quantization is None:
            return
        found = [prefix for prefix in self._prefixes if prefix in stored]
        prefixes = self._prefixes if found or self._prefix not in stored else [self._prefix]
        sizes = self._rows if len(prefixes) == len(self._rows) else [sum(self._rows)]
        by_name: dict[str, dict[str, StoredTensor]] = {}
        for prefix, size in zip(prefixes, sizes, strict=True):
            tensors = weight_tensors(self._build, self._quantization, prefix, stored.get(prefix, ()))
            check_shape(self._quantization, prefix, tensors, (size, self.in_features))
            for name, tensor in tensors.items():
                by_name.setdefault(name, {})[prefix] = tensor
        for name, tensors in by_name.items():
            shapes = {prefix: tensor.shape or (1,) for prefix, tensor in tensors.items()}
            some = next(iter(shapes.values()))
            rows, columns = [shapes.get(prefix, some)[0] for prefix in prefixes], some[1:]
            if name == "weight":
                rows, columns = sizes, (self.in_features,)
            names = [f"{prefix}.{name}" for prefix in prefixes]
            dtype = stored_dtype(next(iter(tensors.values())))
            kept = self._kept(names, rows, columns)
            self._named[name] = Parameter(self._build, names, rows, columns, dtype=dtype, **kept)
        if by_name and "weight" not in by_name:
            del self._named["weight"]
        self.parameters = tuple(self._named.values())

    def _parameter(self, name: str, columns: Sequence[int]) -> Parameter:
        every = tuple(range(len(self._prefixes)))
        aliases = {f"{whole}.{name}": every for whole in self._whole}
        for shard, part in enumerate(prefix.rpartition(".")[2] for prefix in self._prefixes):
            aliases |= {f"{parent}.{part}.{name}": (shard,) for parent in self._parents}
        return Parameter(
            self._build,
            [f"{prefix}.{name}" for prefix in self._prefixes],
            self._rows,
            columns,
            aliases=aliases,
            kept_rows=self._kept_rows,
            kept_columns=self._kept_columns if columns else None,
        )

    def _kept(self, names: Sequence[str], rows: Sequence[int], columns: Sequence[int]) -> dict[str, Any]:
        """The part that this rank keeps of stored tensors in which a row, or a column, belongs to one or several of the
        weight's.

        Raises:
            CheckpointError: it is not known how to shard the tensors, or a shard would split values that several
                features share.
        """
        apart = self._build.parallel.tensor_size > 1 or self._grouped
        if not apart or not (self._kept_rows or self._kept_columns):
            return {}
        name, quantization = names[0].rpartition(".")[2], self._quantization
        if all(count == 1 for count in rows) and not any(count > 1 for count in columns):
            return {}  # one scale per tensor
        if quantization is not None and name in quantization.unsharded:
            return {}
        if name not in SCALED or len(rows) != len(self._rows):
            raise sharding_error(names[0], self._build.parallel.tensor_size)
        try:
            if self._kept_rows:
                return {"kept_rows": [stored_share(*of) for of in zip(self._kept_rows, self._rows, rows, strict=True)]}
            if self._kept_columns and columns:
                return {"kept_columns": stored_share([self._kept_columns], self.in_features, columns[0])[0]}
        except ValueError:
            raise sharding_error(names[0], self._build.parallel.tensor_size) from None
        return {}

    def finish(self) -> None:
        rows = self._named[main_tensor(self._named)].rows
        tensors = {name: parameter.take() for name, parameter in self._named.items()}
        self.bias = tensors.pop("bias", None)
        if self.bias is not None and self._kept_columns and self._build.parallel.tensor_rank:
            self.bias.zero_()  # the all-reduce adds it once, from the first rank
        if self._quantization is not None:
            tensors = self._quantization.convert(self._prefix, tensors, rows)
        self.weight = self._prepare(tensors)

    def __call__(self, x: Tensor) -> Tensor:
        """Maps ``[tokens, in_features]`` to ``[tokens, sum(sizes)]``."""
        return self._run(x, self.weight, self.bias)


def weight_tensors(
    build: Build, quantization: Quantization, module: str, stored: Sequence[StoredTensor]
) -> dict[str, StoredTensor]:
    """The tensors that the files store for a projection's weight, by the last part of their names, checked by the
    quantization method."""
    cache_scales = {name.rpartition(".")[2] for names in build.cache_scales for name in names}
    by_name = {tensor.name.rpartition(".")[2]: tensor for tensor in stored}
    tensors = {name: tensor for name, tensor in by_name.items() if name not in {"bias", *cache_scales}}
    if tensors:
        quantization.check(module, tensors)
    return tensors


def main_tensor(names: Collection[str]) -> str:
    """Of the tensors of a weight, the one that has a row for each output feature: ``weight``, or what a format has
    instead."""
    return next((name for name in SCALED if name in names), next(iter(names)))


def check_shape(
    quantization: Quantization, module: str, tensors: Mapping[str, StoredTensor], wanted: tuple[int, ...]
) -> None:
    """Checks the shape of a weight that is not stored as a tensor of its shape, which the loader checks.

    Raises:
        CheckpointError: it is not ``wanted``.
    """
    if tensors and "weight" not in tensors and (found := quantization.shape(tensors)) and found != wanted:
        raise CheckpointError(
            f"{module} stores a weight of shape {list(found)}, not {list(wanted)} as config.json says",
            hint="check that config.json belongs to these weights",
        )


def stored_share(kept: Sequence[slice], size: int, stored: int) -> list[slice]:
    """The part ``kept`` of ``size`` rows or columns, in a tensor with ``stored`` of them, each of which is shared by a
    power of two of ``size``, or by all. Raises ValueError if the part starts or ends within a shared one."""
    if stored == 1:
        return [slice(0, 1)]
    shared, rest = divmod(size, stored)
    if rest or shared & (shared - 1) or any(run.start % shared or run.stop % shared for run in kept):
        raise ValueError
    return [slice(run.start // shared, run.stop // shared) for run in kept]


def _in_groups(kept: Sequence[slice], sizes: Sequence[int], groups: int) -> list[slice]:
    """The runs ``kept`` of the rows of parts of ``sizes``, as runs of a tensor that stores the parts in ``groups``."""
    shares = [size // groups for size in sizes]
    starts, offsets = list(accumulate(sizes, initial=0)), list(accumulate(shares, initial=0))
    runs = []
    for run in kept:
        row = run.start
        while row < run.stop:
            part = next(i for i, start in enumerate(starts[1:]) if row < start)
            group, inner = divmod(row - starts[part], shares[part])
            count = min(shares[part] - inner, run.stop - row, starts[part + 1] - row)
            start = group * offsets[-1] + offsets[part] + inner
            runs.append(slice(start, start + count))
            row += count
    return runs


def sharding_error(name: str, tensor_size: int) -> CheckpointError:
    if tensor_size == 1:
        return CheckpointError(
            f"{name} is stored in groups of heads, in a format whose rows can't be put in order",
            hint="use an unquantized checkpoint; --model.quantization quantizes it at the start",
        )
    return CheckpointError(
        f"{name} is stored in a format that can't be sharded over {tensor_size} processes",
        hint="lower parallel.tensor, or use an unquantized checkpoint",
    )
