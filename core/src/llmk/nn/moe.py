"""The mixture of experts: a router, and gated blocks of which every token takes the few that the router prefers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.nn.facts import router_site
from llmk.nn.layer import Layer, Parameter
from llmk.nn.linear import Linear

if TYPE_CHECKING:
    from llmk.api import MoEFacts
    from llmk.nn.build import Build


class Experts(Layer):
    """All experts of a block, which one kernel computes: ``gate_up`` ``[E, 2 * I, H]`` and ``down`` ``[E, H, I]``.
    The processes of a stage cut every expert's ``I`` features between them; what they make is for the caller to add up.

    Checkpoints store the experts one by one (``{prefix}.{expert}.{name}.weight``), or all of them in these two tensors
    (``{prefix}.gate_up_proj``, ``{prefix}.down_proj``; transformers 5 in its own format).

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
        self._run = kernel.run
        self._prepare = kernel.prepare
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
        self._named: dict[str, Parameter] = {}
        prefixes, hidden, inner = (prefix, *also_named), facts.hidden_size, facts.intermediate_size
        kept = build.parallel.share(inner)
        for key, parts, rows, columns in (("gate_up", names[:2], inner, hidden), ("down", names[2:], hidden, inner)):
            stems = [f"{prefix}.{expert}.{part}" for expert in range(facts.num_experts) for part in parts]
            kinds = [(key, "weight", f"{key}_proj", [columns])]
            if facts.bias:
                kinds.append((f"{key}_bias", "bias", f"{key}_proj_bias", []))
            for name, each, whole, rest in kinds:
                self._named[name] = Parameter(
                    build,
                    [f"{stem}.{each}" for stem in stems],
                    [rows] * len(stems),
                    rest,
                    others={f"{p}.{whole}": tuple(range(len(stems))) for p in prefixes},
                    stacks=facts.num_experts,
                    kept_rows=[[kept]] * len(stems) if key == "gate_up" else None,
                    kept_columns=kept if name == "down" else None,
                )
        super().__init__(build, list(self._named.values()))

    def finish(self) -> None:
        weights = {name: parameter.take() for name, parameter in self._named.items()}
        if self._tensor_rank and "down_bias" in weights:
            weights["down_bias"].zero_()  # added up over the processes, of which the first has it
        self.weights = self._prepare(weights)

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
        out = self.experts(x, self.router(x))
        return self._all_reduce(out if self._shared is None else out + self._shared(x))
