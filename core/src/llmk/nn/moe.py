"""The mixture of experts: a router, and gated blocks of which every token takes the few that the router prefers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.nn.facts import normed_router_op, router_site
from llmk.nn.layer import Layer, Parameter, stored_dtype
from llmk.nn.linear import Linear, stored_share, uncuttable, weight_tensors
from llmk.nn.tensor_file import StoredTensor

if TYPE_CHECKING:
    from llmk.api import MoEFacts
    from llmk.nn.build import Build
    from llmk.nn.norm import AddRMSNorm


class Experts(Layer):
    """All experts of a block, which one kernel computes: ``gate_up`` ``[E, 2 * I, H]`` and ``down`` ``[E, H, I]``.
    The processes of a stage cut every expert's ``I`` features between them; what they make is for the caller to add up.

    Checkpoints store the experts one by one (``{prefix}.{expert}.{name}.weight``), or all of them in these two tensors
    (``{prefix}.gate_up_proj``, ``{prefix}.down_proj``; transformers 5 in its own format).

    Quantized ones are stored one by one. Further parameters of their weight format are ``gate_up_scale`` and so on.

    Args:
        names: what the checkpoint calls an expert's gate, up and down projections.
        also_named: further prefixes of the two stacked tensors.

    Attributes:
        weights: what the kernel's ``prepare`` made of the parameters; any type.
    """

    weights: Any

    def __init__(
        self, build: Build, prefix: str, facts: MoEFacts, names: tuple[str, str, str], also_named: Sequence[str] = ()
    ) -> None:
        kernel = build.moe(facts.site)
        self._build = build
        self._run = kernel.run
        self._prepare = kernel.prepare
        self._quantization = None if kernel.weight_format == "plain" else build.quantization
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
        prefixes, hidden, inner = (prefix, *also_named), facts.hidden_size, facts.intermediate_size
        for key, parts, rows, columns in (("gate_up", names[:2], inner, hidden), ("down", names[2:], hidden, inner)):
            stems = [f"{prefix}.{expert}.{part}" for expert in range(facts.num_experts) for part in parts]
            for name, kind in (("weight", ""), ("bias", "_bias")):
                others = {f"{p}.{key}_proj{kind}": tuple(range(len(stems))) for p in prefixes}
                if name == "weight":
                    self._weights[key] = {name: self._parameter(key, stems, name, rows, [columns], others=others)}
                elif facts.bias:
                    self._biases[key + kind] = self._parameter(key, stems, name, rows, [], others=others)
        super().__init__(build, self._all())

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """Where the kernel's weight format is not plain, takes what the checkpoint stores for each expert."""
        if self._quantization is None:
            return
        for key, parameters in self._weights.items():
            weight = parameters["weight"]
            stems = [name.removesuffix(".weight") for name in weight.names]
            found = [weight_tensors(self._quantization, stem, stored.get(stem, ())) for stem in stems]
            for name, tensor in next(filter(None, found), {}).items():
                rows, *columns = weight.shape((0,)) if name == "weight" else tensor.shape or (1,)
                dtype = stored_dtype(tensor)
                others = {n: of for n, of in weight.targets.items() if len(of) > 1} if name == "weight" else {}
                parameters[name] = self._parameter(key, stems, name, rows, columns, dtype=dtype, others=others)
        self.parameters = tuple(self._all())

    def _parameter(
        self, key: str, stems: Sequence[str], name: str, rows: int, columns: Sequence[int], **options: Any
    ) -> Parameter:
        """One tensor of each of ``stems``, of which the process keeps its share of the experts' features: rows of
        ``gate_up``, columns of ``down``.

        Raises:
            CheckpointError: where the cut would go through what several features share.
        """
        names = [f"{stem}.{name}" for stem in stems]
        parallel = self._build.parallel
        kept = [parallel.share(self._inner)]
        try:
            if parallel.tensor_size > 1 and key == "gate_up":
                options["kept_rows"] = [stored_share(kept, self._inner, rows)] * len(stems)
            elif parallel.tensor_size > 1 and columns:
                options["kept_columns"] = stored_share(kept, self._inner, columns[0])[0]
        except ValueError:
            raise uncuttable(names[0], parallel.tensor_size) from None
        return Parameter(self._build, names, [rows] * len(stems), columns, stacks=self._num_experts, **options)

    def _all(self) -> list[Parameter]:
        return [*(p for parameters in self._weights.values() for p in parameters.values()), *self._biases.values()]

    def finish(self) -> None:
        weights = {name: parameter.take() for name, parameter in self._biases.items()}
        if self._tensor_rank and "down_bias" in weights:
            weights["down_bias"].zero_()  # added up over the processes, of which the first has it
        for key, parameters in self._weights.items():
            rows = parameters["weight"].rows
            tensors = {name: parameter.take() for name, parameter in parameters.items()}
            if self._quantization is not None:
                tensors = self._converted(tensors, rows[: len(rows) // self._num_experts])
            weights |= {key + name.removeprefix("weight"): tensor for name, tensor in tensors.items()}
        self.weights = self._prepare(weights)

    def _converted(self, tensors: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
        """What the method makes of each expert's tensors, stacked again."""
        assert self._quantization is not None
        converted = [
            self._quantization.convert(f"{self._prefix}.{expert}", dict(zip(tensors, each, strict=True)), rows)
            for expert, each in enumerate(zip(*tensors.values(), strict=True))
        ]
        return {name: torch.stack([each[name] for each in converted]) for name in converted[0]}

    def __call__(self, x: Tensor, router_logits: Tensor) -> Tensor:
        """``[tokens, hidden]`` and ``[tokens, experts]`` to ``[tokens, hidden]``."""
        return self._run(x, router_logits, self.weights, **self._options)


class MoE:
    """Router and experts by two kernels, and what ``shared`` experts make of the same hidden states, added; then all of
    it is added up over the processes of a stage.

    Args:
        prefix: the block's name in the checkpoint (``"model.layers.0.mlp"``).
        facts: those of the block's site, as the model described it.
        names: as of :class:`Experts`.
        shared: what every token passes through besides, ``[tokens, hidden]`` to the same; of several processes, each
            gives a part of the sum.
        also_named: the checkpoint's other names for the block.
    """

    def __init__(
        self,
        build: Build,
        prefix: str,
        facts: MoEFacts,
        *,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
        shared: Callable[[Tensor], Tensor] | None = None,
        also_named: Sequence[str] = (),
    ) -> None:
        self.router = Linear(
            build,
            f"{prefix}.gate",
            facts.hidden_size,
            (facts.num_experts,),
            site=router_site(facts.site),
            also_named=[f"{name}.gate" for name in also_named],
        )
        others = [f"{name}.experts" for name in also_named]
        self.experts = Experts(build, f"{prefix}.experts", facts, names, others)
        self._shared = shared
        self._all_reduce = build.parallel.all_reduce

    def __call__(self, x: Tensor) -> Tensor:
        """``[tokens, hidden]`` to the same."""
        return self.mix(x, self.router(x))

    def mix(self, x: Tensor, router_logits: Tensor) -> Tensor:
        """``[tokens, hidden]``, and what the router makes of them, to ``[tokens, hidden]``."""
        out = self.experts(x, router_logits)
        return self._all_reduce(out if self._shared is None else out + self._shared(x))


class NormedMoE:
    """A norm, one op with the router's product, and the experts: a half of a layer. Both own their parameters."""

    def __init__(self, build: Build, norm: AddRMSNorm, block: MoE, facts: MoEFacts) -> None:
        site, linear = normed_router_op(facts).site, router_site(facts.site)
        self._op: Callable[..., tuple[Tensor, Tensor, Tensor]] = build.kernel("op", site, linear=linear)
        self._norm = norm
        self.block = block

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the block before made and the residual, both ``[tokens, hidden]``, to the same."""
        norm, router = self._norm, self.block.router
        logits, normed, total = self._op(x, residual, norm.weight, norm.eps, router.weight, router.bias)
        return self.block.mix(normed, logits), total
