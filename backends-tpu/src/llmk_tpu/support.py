"""What the JAX runtime understands of a tree. Needs no JAX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from llmk import tree
from llmk.api import MoEFacts, SelectionError

ACTIVATIONS = ("silu", "gelu_tanh")
"""Activations of gated MLPs and of experts."""
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Those of :data:`llmk_tpu.rope.FREQUENCIES`, which imports NumPy."""

_ROUTING = ("num_experts", "top_k", "hidden_size", "intermediate_size", "activation", "renormalize")

READ: Mapping[type, tuple[str, ...]] = {
    tree.CausalLM: ("embed", "layers", "norm", "head", "max_model_len", "default_model_len", "default_why", "ignored"),
    tree.Embedding: ("vocab_size", "size", "scale", "scale_given", "aliases"),
    tree.Head: ("vocab_size", "size", "tied", "softcap"),
    tree.Norm: ("size", "eps", "offset"),
    tree.Residual: ("norm", "block", "post"),
    tree.Linear: ("role", "size", "outputs", "bias", "cut", "quantizable", "partial", "aliases"),
    tree.SelfAttention: ("qkv", "attend", "out"),
    tree.Attend: (
        *("role", "heads", "kv_heads", "head_dim", "rope"),
        *("qk_norm", "norm_offset", "window", "softcap", "scale"),
    ),
    tree.GatedMLP: ("gate_up", "down", "activation"),
    tree.MoE: ("router", "experts"),
    tree.Experts: ("facts", "names", "aliases"),
    MoEFacts: ("site", *_ROUTING),
}
"""By the type of a spec: the fields that the runtime reads, and those that don't change what a model computes. Any
other field must have its default, so that an option of a later version is refused rather than ignored."""


def check(model: tree.CausalLM) -> None:
    """Checks that the runtime understands all of a tree, before any weight is read.

    Raises:
        SelectionError: it does not; the message names the spec and the field.
    """
    for spec, where in _specs(model):
        if type(spec) not in READ:
            raise _refusal(where)
        for field in fields(spec):
            value = getattr(spec, field.name)
            neutral = field.default if field.default_factory is MISSING else field.default_factory()
            if field.name not in ("at", *READ[type(spec)]) and (neutral is MISSING or value != neutral):
                raise _refusal(where, f"{field.name} = {_shown(value)}")
            if field.name == "activation" and value not in ACTIVATIONS:
                raise _refusal(where, f"activation = {value!r}", f"activations are {', '.join(ACTIVATIONS)}")
            if isinstance(value, tree.Rope) and (kind := value.parameters["rope_type"]) not in ROPE_TYPES:
                raise _refusal(where, f"rope_type = {kind!r}", f"types of RoPE are {', '.join(ROPE_TYPES)}")
            if isinstance(value, tree.Rope) and value.sections:
                raise _refusal(where, f"rope.sections = {value.sections}")
            if isinstance(value, tree.Rope) and value.neighbours:
                raise _refusal(where, "rope.neighbours = True")
            if isinstance(spec, tree.Attend) and field.name == "rope" and value is None:
                raise _refusal(where, "rope = None")


def _specs(model: tree.CausalLM) -> Iterator[tuple[Any, str]]:
    """Everything that a tree is made of, and what an error calls it."""
    layers = (leaf for layer in model.layers for part in layer for leaf in part.leaves())
    for spec in (*layers, *model.leaves()):
        where = f"{type(spec).__name__} at {spec.at!r}" if spec.at else type(spec).__name__
        yield spec, where
        if isinstance(spec, tree.Experts):
            yield spec.facts, where


def _refusal(where: str, what: str = "", known: str = "") -> SelectionError:
    blocks = (kind.__name__ for kind in READ if issubclass(kind, tree.Block))
    known = known or f"it builds layers of {', '.join(blocks)}, with one residual stream"
    return SelectionError(
        f"the JAX runtime can't build {where}{' with ' if what else ''}{what}; {known}",
        hint="serve the model with torch (--platform.use), where all specs of the core can be built",
    )


def _shown(value: Any) -> str:
    return type(value).__name__ if isinstance(value, tree.Spec) else repr(value)
