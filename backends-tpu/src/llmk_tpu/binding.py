"""Which of the plan's kernels computes which spec of a tree."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from llmk.api import Plan
from llmk.tree import CausalLM, Experts, Sites, Spec
from llmk_tpu.kernels import KERNELS

_IMPLEMENTATIONS = {kernel.id: kernel.implementation for kernel in KERNELS}


class Binding:
    """The kernels that a plan chose for a model. Each is imported when it is first needed."""

    def __init__(self, model: CausalLM, plan: Plan) -> None:
        leaves = [leaf for layer in model.layers for part in layer for leaf in part.leaves()]
        self._sites, self._plan = Sites(leaves, plan.dtype), plan

    def of(self, spec: Spec, num_tokens: int) -> Callable[..., Any]:
        """What computes an attention or expert spec of the model in steps of so many tokens."""
        kind = "moe" if isinstance(spec, Experts) else "attention"
        return _load(self._plan.choice(kind, self._sites.name(spec)).piece(num_tokens).id)


def _load(id: str) -> Callable[..., Any]:
    module, _, name = _IMPLEMENTATIONS[id].partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
