"""Experts: MLPs of which each token uses the few with the highest router logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.api import CheckpointError, StoredTensor
from llmk.api.query import moe_options
from llmk.nn.layer import Layer, Parameter, stored_dtype
from llmk.nn.linear import check_shape, main_tensor, sharding_error, stored_share, weight_tensors

if TYPE_CHECKING:
    from llmk.api import MoEFacts
    from llmk.nn.build import Build


class Experts(Layer):
    """All experts of a block, computed by one kernel: ``gate_up`` ``[E, 2 * I, H]``, without gates ``[E, I, H]``, and
    ``down`` ``[E, H, I]``.
    Tensor-parallel ranks shard the ``I`` features of every expert; the caller all-reduces the result.

    Checkpoints store the experts one by one (``{prefix}.{expert}.{name}.weight``), or all of them in these two tensors
    (``{prefix}.gate_up_proj``, without gates ``{prefix}.up_proj``, and ``{prefix}.down_proj``; the format of
    transformers 5).

    Quantized experts are stored one by one. Further parameters of their weight format are ``gate_up_scale`` and so on.

    Args:
        names: the checkpoint's names of an expert's gate, up and down projections; without gates, of the latter two.
        aliases: further prefixes of the two stacked tensors.
        stacked: further names of the two.
        selection_bias: the checkpoint's names of the bias per expert that affects only which experts are chosen; if
            ``facts.selection_bias``.
        output_scale: the checkpoint's name of a factor of each expert's output; empty: there is none.

    Attributes:
        weights: the weights that the kernel's ``prepare`` returned; any type.
        num_experts, hidden_size: of the block.
    """

    weights: Any

    def __init__(
        self,
        build: Build,
        prefix: str,
        facts: MoEFacts,
        names: tuple[str, ...],
        aliases: Sequence[str] = (),
        selection_bias: Sequence[str] = (),
        stacked: Sequence[str] = (),
        output_scale: str = "",
    ) -> None:
        kernel = build.moe(facts.site, module=f"{prefix}.0.{names[0]}")
        self._build = build
        self._run = kernel.run
        self._prepare = kernel.prepare
        self._quantization = None if kernel.weight_format == "plain" else build.quantization(kernel.weight_format)
        self._prefix = prefix
        self._stacked = dict(zip(("gate_up", "down"), stacked, strict=False))
        self._tensor_rank = build.parallel.tensor_rank
        self._options = moe_options(facts)
        self._weights: dict[str, dict[str, Parameter]] = {}
        self._biases: dict[str, Parameter] = {}
        self.num_experts, self.hidden_size, self._inner = facts.num_experts, facts.hidden_size, facts.intermediate_size
        self._selection_bias: list[Parameter] = []
        if facts.selection_bias:
            name, *others = selection_bias
            also = dict.fromkeys(others, (0,))
            self._selection_bias = [Parameter(build, [name], [facts.num_experts], aliases=also, dtype=torch.float32)]
        scales = [output_scale] if output_scale else []
        self._output_scale = [Parameter(build, [name], [facts.num_experts], dtype=torch.float32) for name in scales]
        self._declare((prefix, *aliases), names, bias=facts.bias)
        super().__init__(build, self._all())

    def _declare(self, prefixes: tuple[str, ...], names: tuple[str, ...], *, bias: bool) -> None:
        """Creates the parameters for the experts' weights and biases, ``prefixes`` being the checkpoint's names of the
        experts, of which the first is theirs one by one."""
        hidden, inner = self.hidden_size, self._inner
        for key, parts, rows, columns in (("gate_up", names[:-1], inner, hidden), ("down", names[-1:], hidden, inner)):
            packed = f"{key}_proj" if len(names) > 2 else f"{key.removeprefix('gate_')}_proj"
            stems = [f"{prefixes[0]}.{expert}.{part}" for expert in range(self.num_experts) for part in parts]
            for name, kind in (("weight", ""), ("bias", "_bias")):
                others = {f"{p}.{packed}{kind}": tuple(range(len(stems))) for p in prefixes}
                if name == "weight":
                    others |= {self._stacked[key]: tuple(range(len(stems)))} if key in self._stacked else {}
                    self._weights[key] = {name: self._parameter(key, stems, name, rows, [columns], aliases=others)}
                elif bias:
                    self._biases[key + kind] = self._parameter(key, stems, name, rows, [], aliases=others)

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """If the kernel's weight format is not plain, replaces the parameters by those that the checkpoint stores for
        each expert."""
        if self._quantization is None:
            return
        for key, parameters in self._weights.items():
            weight = parameters["weight"]
            stems = [name.removesuffix(".weight") for name in weight.names]
            found = [weight_tensors(self._build, self._quantization, stem, stored.get(stem, ())) for stem in stems]
            for stem, tensors in zip(stems, found, strict=True):
                check_shape(self._quantization, stem, tensors, weight.shape((0,)))
            for name, tensor in (some := next(filter(None, found), {})).items():
                rows, *columns = weight.shape((0,)) if name == "weight" else tensor.shape or (1,)
                dtype = stored_dtype(tensor)
                others = {n: of for n, of in weight.targets.items() if len(of) > 1} if name == "weight" else {}
                parameters[name] = self._parameter(key, stems, name, rows, columns, dtype=dtype, aliases=others)
            if some and "weight" not in some:
                del parameters["weight"]
        self.parameters = tuple(self._all())

    def _parameter(
        self, key: str, stems: Sequence[str], name: str, rows: int, columns: Sequence[int], **options: Any
    ) -> Parameter:
        """The parameter for one tensor of each of ``stems``, of which this rank keeps its share of the experts'
        features: rows of ``gate_up``, columns of ``down``.

        Raises:
            CheckpointError: a shard would split values that several features share.
        """
        names = [f"{stem}.{name}" for stem in stems]
        parallel = self._build.parallel
        kept = [parallel.share(self._inner)]
        if self._quantization is not None and name in self._quantization.unsharded:
            return Parameter(self._build, names, [rows] * len(stems), columns, stacks=self.num_experts, **options)
        try:
            if parallel.tensor_size > 1 and key == "gate_up":
                options["kept_rows"] = [stored_share(kept, self._inner, rows)] * len(stems)
            elif parallel.tensor_size > 1 and columns:
                options["kept_columns"] = stored_share(kept, self._inner, columns[0])[0]
        except ValueError:
            raise sharding_error(names[0], parallel.tensor_size) from None
        return Parameter(self._build, names, [rows] * len(stems), columns, stacks=self.num_experts, **options)

    def _all(self) -> list[Parameter]:
        weights = [parameter for parameters in self._weights.values() for parameter in parameters.values()]
        return [*weights, *self._biases.values(), *self._selection_bias, *self._output_scale]

    def _arrange(self, name: str, tensor: Tensor) -> Tensor:
        """A loaded weight or bias in the form that kernels take; ``name`` is the kernels' name."""
        return tensor

    def finish(self) -> None:
        for parameter in self._selection_bias:
            self._options["selection_bias"] = parameter.take()
        weights = {name: self._arrange(name, parameter.take()) for name, parameter in self._biases.items()}
        if self._tensor_rank and "down_bias" in weights:
            weights["down_bias"].zero_()  # the all-reduce adds it once, from the first rank
        for key, parameters in self._weights.items():
            rows = parameters[main_tensor(parameters)].rows
            tensors = {name: self._arrange(key, parameter.take()) for name, parameter in parameters.items()}
            if self._quantization is not None:
                tensors = self._converted(tensors, rows[: len(rows) // self.num_experts])
            weights |= {key + name.removeprefix("weight"): tensor for name, tensor in tensors.items()}
        weights = self._joined(weights)
        for parameter in self._output_scale:
            scale = parameter.take()
            # What an expert returns is linear in its last weight, of which quantized ones have scales.
            for name in ("down_scale" if "down_scale" in weights else "down", "down_bias"):
                if name in weights:
                    each = scale.view(-1, *[1] * (weights[name].dim() - 1))
                    weights[name] = (weights[name].float() * each).to(weights[name].dtype)
        self.weights = self._prepare(weights)

    def _joined(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """All weights by the kernels' names, of those by the names of the parameters."""
        return weights

    def _converted(self, tensors: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """Converts each expert's tensors by the quantization method, and stacks the results."""
        assert self._quantization is not None
        converted = [
            self._quantization.convert(f"{self._prefix}.{expert}", dict(zip(tensors, each, strict=True)), rows)
            for expert, each in enumerate(zip(*tensors.values(), strict=True))
        ]
        return {name: torch.stack([each[name] for each in converted]) for name in converted[0]}

    def __call__(self, x: Tensor, router_logits: Tensor) -> Tensor:
        """Maps hidden states ``[tokens, hidden]`` and router logits ``[tokens, experts]`` to ``[tokens, hidden]``."""
        return self._run(x, router_logits, self.weights, **self._options)


class InterleavedExperts(Experts):
    """Experts that the checkpoint stores transposed, all of them in two tensors: ``{prefix}.gate_up_proj`` ``[E, H, 2 *
    I]``, in which gate and up features alternate, and ``{prefix}.down_proj`` ``[E, I, H]``; biases, if any, in
    ``{prefix}.gate_up_proj_bias`` and ``{prefix}.down_proj_bias`` (GPT-OSS). Only unquantized."""

    def _declare(self, prefixes: tuple[str, ...], names: tuple[str, ...], *, bias: bool) -> None:
        if self._quantization is not None:
            raise CheckpointError(
                f"{prefixes[0]} can't be quantized, because gate and up features alternate in the checkpoint",
                hint="serve an unquantized checkpoint of the model, without model.quantization",
            )
        experts, hidden, inner = self.num_experts, self.hidden_size, self._inner
        kept = self._build.parallel.share(inner)
        pairs = {"kept_columns": slice(2 * kept.start, 2 * kept.stop)}
        runs = [slice(expert * inner + kept.start, expert * inner + kept.stop) for expert in range(experts)]

        def stored(name: str, rows: int, columns: int, **options: Any) -> Parameter:
            first, *others = (f"{prefix}.{name}" for prefix in prefixes)
            also = dict.fromkeys(others, (0,))
            return Parameter(self._build, [first], [rows], [columns], aliases=also, **options)

        whole = {"stacks": experts}
        self._weights["gate_up"] = {"weight": stored("gate_up_proj", experts * hidden, 2 * inner, **whole, **pairs)}
        self._weights["down"] = {"weight": stored("down_proj", experts * inner, hidden, **whole, kept_rows=[runs])}
        if bias:
            self._biases["gate_up_bias"] = stored("gate_up_proj_bias", experts, 2 * inner, **pairs)
            self._biases["down_bias"] = stored("down_proj_bias", experts, hidden)

    def _arrange(self, name: str, tensor: Tensor) -> Tensor:
        if name in ("gate_up", "down"):
            tensor = tensor.transpose(1, 2)
        if name.startswith("gate_up"):
            tensor = torch.cat((tensor[:, ::2], tensor[:, 1::2]), dim=1)
        return tensor.contiguous()


class TransposedExperts(Experts):
    """Experts that the checkpoint stores transposed, all of them in two tensors: ``{prefix}.gate_up_proj`` ``[E, H, 2 *
    I]``, gate features before up features, and ``{prefix}.down_proj`` ``[E, I, H]`` (Llama 4). Quantized ones are
    stored one by one, as those of :class:`Experts`."""

    def _declare(self, prefixes: tuple[str, ...], names: tuple[str, ...], *, bias: bool) -> None:
        if self._quantization is not None:
            super()._declare(prefixes, names, bias=bias)
            return
        experts, hidden, inner = self.num_experts, self.hidden_size, self._inner
        kept = self._build.parallel.share(inner)
        for key, first in (("gate", 0), ("up", inner)):
            columns = slice(first + kept.start, first + kept.stop)
            self._weights[key] = self._whole(prefixes, "gate_up_proj", hidden, 2 * inner, kept_columns=columns)
        runs = [slice(expert * inner + kept.start, expert * inner + kept.stop) for expert in range(experts)]
        self._weights["down"] = self._whole(prefixes, "down_proj", inner, hidden, kept_rows=[runs])

    def _whole(
        self, prefixes: tuple[str, ...], name: str, rows: int, columns: int, **kept: Any
    ) -> dict[str, Parameter]:
        """The parameter for a tensor that holds a matrix of every expert."""
        first, *others = (f"{prefix}.{name}" for prefix in prefixes)
        also, stacks = dict.fromkeys(others, (0,)), self.num_experts
        return {
            "weight": Parameter(self._build, [first], [stacks * rows], [columns], aliases=also, stacks=stacks, **kept)
        }

    def _arrange(self, name: str, tensor: Tensor) -> Tensor:
        return tensor if self._quantization is not None else tensor.transpose(1, 2)

    def _joined(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._quantization is not None:
            return weights
        joined = torch.cat((weights.pop("gate"), weights.pop("up")), dim=1)
        return {"gate_up": joined, **{name: tensor.contiguous() for name, tensor in weights.items()}}
