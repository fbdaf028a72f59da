"""Embeddings that every layer has of its own, for each token (Gemma 3n's per-layer embeddings). Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from llmk.api import OpFacts
from llmk.tree import Embedding, Leaf, Linear, Norm, Spec
from llmk_models.parts import Parts

VOCAB = 262_144
"""The default of transformers' config classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputs(Spec):
    """What all layers get besides hidden states, ``[tokens, layers * width]``: rows of a table by token, plus a
    projection of the token embeddings."""

    table: Embedding
    projection: Linear
    norm: Norm
    width: int

    @classmethod
    def of(cls, parts: Parts, width: int) -> Self:
        """With Gemma's names; ``width`` is that of one layer's inputs."""
        at, size = f"{parts.root}{parts.names.model}", parts.num_layers * width
        vocab = parts.config.size("vocab_size_per_layer_input", VOCAB)
        role, hidden = "per_layer_inputs", parts.hidden_size
        return cls(
            at=at,
            table=Embedding(at=f"{at}.embed_tokens_per_layer", vocab_size=vocab, size=size, scale=width**0.5),
            projection=Linear.whole(f"{at}.per_layer_model_projection", role, hidden, size),
            norm=Norm(at=f"{at}.per_layer_projection_norm", size=width, eps=parts.eps, role="per_layer_norm"),
            width=width,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation(Leaf):
    """An activation without a gate, by the op at the site ``role``."""

    role: str
    size: int
    name: str

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        facts = {"intermediate_size": self.size, "activation": self.name}
        return (OpFacts(site=self.role, op="activate", facts=facts),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerGate(Spec):
    """``projection(activation(gate(x)) * inputs)`` of the layer with this ``index``."""

    gate: Linear
    activation: Activation
    projection: Linear
    index: int

    @classmethod
    def of(cls, at: str, hidden: int, width: int, index: int) -> Self:
        """Of the layer ``at``, with Gemma's names."""
        return cls(
            at=at,
            gate=Linear.whole(f"{at}.per_layer_input_gate", "per_layer_gate", hidden, width),
            activation=Activation(role="per_layer_activate", size=width, name="gelu_tanh"),
            projection=Linear.whole(f"{at}.per_layer_projection", "per_layer_projection", width, hidden),
            index=index,
        )
