"""Latent attention to the tokens that an indexer picks (DeepSeek sparse attention, DSA, arXiv:2512.02556)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from llmk.api import OpFacts, RowsFacts, StateTensor
from llmk.tree.block import Block
from llmk.tree.latent import LatentAttention, LatentShape
from llmk.tree.linear import Linear
from llmk.tree.norm import Norm
from llmk.tree.rope import Rope
from llmk.tree.spec import Leaf, Spec, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexShape:
    """Sizes of an indexer, by the names that checkpoints give them."""

    index_n_heads: int
    index_head_dim: int
    index_topk: int
    """How many tokens each token attends to."""
    neighbours: bool = False
    """Whether neighbouring elements of its queries and keys are rotated as a pair, as those of attention are, not one
    of the first half and one of the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedAttend(Leaf):
    """Norm of the latent vector, RoPE, the cache and attention to selected tokens, in one op; and the op that selects
    them, if it ``picks``. Its cache has a row for each token, the latent vector with the shared key, and another with
    the indexer's key. ``at`` is the attention module's name."""

    role: str = "selected_attention"
    """The name of its site."""
    shape: LatentShape
    index: IndexShape
    rope: Rope
    eps: float
    """Epsilon of the norm."""
    picks: bool = True
    """Whether it has an indexer; without one, it takes the tokens of the last layer that has."""

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor(f"{self.at}.kv_a_layernorm.weight", (self.shape.kv_lora_rank,)),)

    def site(self, dtype: str) -> RowsFacts:
        kept = {"latent": self.shape.row_size}
        kept |= {"index": self.index.index_head_dim} if self.picks else {}
        rows = tuple(StateTensor(name, (size,), dtype) for name, size in kept.items())
        return RowsFacts(site=self.role, num_layers=1, tensors=rows)

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        index, keys = self.index, ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        latent = {"num_heads": self.shape.num_heads, **{key: getattr(self.shape, key) for key in keys}}
        picked = {"num_heads": index.index_n_heads, "head_dim": index.index_head_dim, "top_k": index.index_topk}
        rotary = {"num_heads": index.index_n_heads, "num_kv_heads": 1, "head_dim": index.index_head_dim}
        rotary["rotary_dim"] = self.shape.qk_rope_head_dim
        rotary |= {"rotary_neighbours": True} if index.neighbours else {}
        facts = {**latent, "top_k": index.index_topk}
        whole = OpFacts(site=name(self), op="selected_latent_attention", facts=facts, divided=("num_heads",))
        if not self.picks:
            return (whole,)
        return (
            whole,
            OpFacts(site=f"{self.role}.pick", op="select_tokens", facts=picked),
            OpFacts(site=f"{self.role}.rope", op="rope", facts=rotary),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer(Spec):
    """What picks tokens. Its queries are projected from the compressed query, its keys and the weights of its heads
    from the hidden state; every tensor-parallel rank has all of it."""

    q: Linear
    k: Linear
    k_norm: Norm
    weights: Linear

    @classmethod
    def of(cls, at: str, shape: LatentShape, index: IndexShape) -> Self:
        """With the names of DeepSeek-V3.2."""
        heads, size = index.index_n_heads, index.index_head_dim
        weights = f"{at}.weights_proj", "index_weights", shape.hidden_size, heads
        assert shape.q_lora_rank is not None
        return cls(
            at=at,
            q=Linear.whole(f"{at}.wq_b", "index_q", shape.q_lora_rank, heads * size),
            k=Linear.whole(f"{at}.wk", "index_k", shape.hidden_size, size),
            k_norm=Norm(at=f"{at}.k_norm", size=size, eps=1e-6, centered=True, bias=True, role="index_norm"),
            weights=Linear.whole(*weights, quantizable=False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedAttention(Block):
    """Latent attention of which each token sees those that an indexer picks."""

    down: Linear
    """To the compressed query, and the latent vector with the shared key."""
    q_norm: Norm
    """Of the compressed query."""
    q: Linear
    indexer: Indexer | None
    """``None``: it takes the tokens of the last layer that has one (GLM-5)."""
    attend: SelectedAttend
    up: Linear
    """As in :class:`~llmk.tree.LatentAttention`."""
    out: Linear

    @classmethod
    def of(cls, at: str, shape: LatentShape, index: IndexShape, rope: Rope, eps: float, *, picks: bool = True) -> Self:
        """With the names of DeepSeek-V3.2. ``eps`` is the epsilon of the norms of compressed vectors, ``picks`` whether
        it has an indexer."""
        latent = LatentAttention.of(at, shape, rope, eps)
        assert latent.q_norm is not None
        return cls(
            at=at,
            down=latent.down,
            q_norm=latent.q_norm,
            q=latent.q,
            indexer=Indexer.of(f"{at}.indexer", shape, index) if picks else None,
            attend=SelectedAttend(at=at, shape=shape, index=index, rope=rope, eps=eps, picks=picks),
            up=latent.up,
            out=latent.out,
        )

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, out=partial(self.out))
