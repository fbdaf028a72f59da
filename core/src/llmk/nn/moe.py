"""Experts: gated MLPs of which each token uses the few with the highest router logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.nn.layer import Layer, Parameter, stored_dtype
from llmk.nn.linear import check_shape, main_tensor, sharding_error, stored_share, weight_tensors
from llmk.nn.tensor_file import StoredTensor

if TYPE_CHECKING:
    from llmk.api import MoEFacts
    from llmk.nn.build import Build


class Experts(Layer):
    """All experts of a block, computed by one kernel: ``gate_up`` ``[E, 2 * I, H]`` and ``down`` ``[E, H, I]``.
    Tensor-parallel ranks shard the ``I`` features of every expert; the caller all-reduces the result.

    Checkpoints store the experts one by one (``{prefix}.{expert}.{name}.weight``), or all of them in these two tensors
    (``{prefix}.gate_up_proj``, ``{prefix}.down_proj``; the format of transformers 5).

    Quantized experts are stored one by one. Further parameters of their weight format are ``gate_up_scale`` and so on.

    Args:
        names: the checkpoint's names of an expert's gate, up and down projections.
        aliases: further prefixes of the two stacked tensors.

    Attributes:
        weights: the weights that the kernel's ``prepare`` returned; any type.
    """

    weights: Any

    def __init__(
        self, build: Build, prefix: str, facts: MoEFacts, names: tuple[str, str, str], aliases: Sequence[str] = ()
    ) -> None:
        kernel = build.moe(facts.site, module=f"{prefix}.0.{names[0]}")
        self._build = build
        self._run = kernel.run
        self._prepare = kernel.prepare
        self._quantization = None if kernel.weight_format == "plain" else build.quantization(kernel.weight_format)
        self._prefix = prefix
        self._tensor_rank = build.parallel.tensor_rank
        self._options = {
            "top_k": facts.top_k,
            "renormalize": facts.renormalize,
            "activation": facts.activation,
            "scoring": facts.scoring,
            "scaling": facts.scaling,
            "num_groups": facts.num_groups,
            "top_groups": facts.top_groups,
            "group_scoring": facts.group_scoring,
        }
        self._weights: dict[str, dict[str, Parameter]] = {}
        self._biases: dict[str, Parameter] = {}
        self._num_experts, self._inner = facts.num_experts, facts.intermediate_size
        prefixes, hidden, inner = (prefix, *aliases), facts.hidden_size, facts.intermediate_size
        for key, parts, rows, columns in (("gate_up", names[:2], inner, hidden), ("down", names[2:], hidden, inner)):
            stems = [f"{prefix}.{expert}.{part}" for expert in range(facts.num_experts) for part in parts]
            for name, kind in (("weight", ""), ("bias", "_bias")):
                others = {f"{p}.{key}_proj{kind}": tuple(range(len(stems))) for p in prefixes}
                if name == "weight":
                    self._weights[key] = {name: self._parameter(key, stems, name, rows, [columns], aliases=others)}
                elif facts.bias:
                    self._biases[key + kind] = self._parameter(key, stems, name, rows, [], aliases=others)
        super().__init__(build, self._all())

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
            return Parameter(self._build, names, [rows] * len(stems), columns, stacks=self._num_experts, **options)
        try:
            if parallel.tensor_size > 1 and key == "gate_up":
                options["kept_rows"] = [stored_share(kept, self._inner, rows)] * len(stems)
            elif parallel.tensor_size > 1 and columns:
                options["kept_columns"] = stored_share(kept, self._inner, columns[0])[0]
        except ValueError:
            raise sharding_error(names[0], parallel.tensor_size) from None
        return Parameter(self._build, names, [rows] * len(stems), columns, stacks=self._num_experts, **options)

    def _all(self) -> list[Parameter]:
        return [*(p for parameters in self._weights.values() for p in parameters.values()), *self._biases.values()]

    def finish(self) -> None:
        weights = {name: parameter.take() for name, parameter in self._biases.items()}
        if self._tensor_rank and "down_bias" in weights:
            weights["down_bias"].zero_()  # the all-reduce adds it once, from the first rank
        for key, parameters in self._weights.items():
            rows = parameters[main_tensor(parameters)].rows
            tensors = {name: parameter.take() for name, parameter in parameters.items()}
            if self._quantization is not None:
                tensors = self._converted(tensors, rows[: len(rows) // self._num_experts])
            weights |= {key + name.removeprefix("weight"): tensor for name, tensor in tensors.items()}
        self.weights = self._prepare(weights)

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
