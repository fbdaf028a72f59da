"""Attention to the last tokens, and to entries that each stand for a group of earlier ones (DeepSeek-V4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from llmk.api import OpFacts, RowsFacts, StateTensor
from llmk.tree.block import Block
from llmk.tree.linear import Linear, Part
from llmk.tree.norm import Norm
from llmk.tree.rope import Rope
from llmk.tree.spec import Leaf, Spec, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedShape:
    """Sizes of attention whose heads share one key, which is their value too."""

    hidden_size: int
    num_heads: int
    head_dim: int
    q_rank: int
    """Of compressed queries."""
    out_groups: int
    """Groups of heads, each of which is projected to ``out_rank`` elements."""
    out_rank: int
    window: int
    """Each token sees so many last ones, itself included."""
    eps: float
    """Of all norms."""
    index_heads: int
    index_dim: int
    index_top_k: int
    """How many entries each token sees, where an indexer picks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor(Spec):
    """What makes an entry of ``size`` elements of each ``rate`` tokens. With ``overlaps``, the tokens of the group
    before take part."""

    rows: Linear
    """To the rows of tokens, and their gates."""
    norm: Norm
    """Of entries."""
    rate: int
    size: int
    overlaps: bool

    @classmethod
    def of(cls, at: str, role: str, shape: CompressedShape, *, rate: int, size: int, overlaps: bool) -> Self:
        """With the names of DeepSeek-V4. ``role`` is that of its linear layer."""
        width = 2 * size if overlaps else size
        outputs = Part(width, 1, "wkv"), Part(width, 1, "wgate")
        return cls(
            at=at,
            rows=Linear(at=f"{at}.wkv_gate", role=role, size=shape.hidden_size, outputs=outputs),
            norm=Norm(at=f"{at}.norm", size=size, eps=shape.eps, role=f"{role}_norm"),
            rate=rate,
            size=size,
            overlaps=overlaps,
        )

    @property
    def width(self) -> int:
        """Elements of a token's row, and of its gates."""
        return 2 * self.size if self.overlaps else self.size

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor(f"{self.at}.ape", (self.rate, self.width)),)

    def kept(self, prefix: str, dtype: str) -> tuple[StateTensor, ...]:
        """The rows that the cache has for each token."""
        sizes = {f"{prefix}_rows": 2 * self.width, f"{prefix}_entries": self.size}
        return tuple(StateTensor(name, (size,), dtype) for name, size in sizes.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryIndexer(Spec):
    """What picks entries, by entries of its own."""

    q: Linear
    """From compressed queries."""
    weights: Linear
    """Of its heads."""
    compressor: Compressor

    @classmethod
    def of(cls, at: str, shape: CompressedShape, rate: int) -> Self:
        """With the names of DeepSeek-V4."""
        heads, size = shape.index_heads, shape.index_dim
        own = f"{at}.compressor", "index_rows"
        return cls(
            at=at,
            q=Linear.whole(f"{at}.wq_b", "index_q", shape.q_rank, heads * size),
            weights=Linear.whole(f"{at}.weights_proj", "index_weights", shape.hidden_size, heads, quantizable=False),
            compressor=Compressor.of(*own, shape, rate=rate, size=size, overlaps=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttend(Leaf):
    """The cache and attention, in one op; the op that picks entries, if there is an indexer; and those that rotate. Its
    cache has rows of each token: its key, what entries are made of, and the entry of the group that ends with it."""

    role: str = "compressed_attention"
    """The name of its site."""
    shape: CompressedShape
    rope: Rope
    """Of a part of each head: its last elements."""
    compressor: Compressor | None
    indexer: EntryIndexer | None

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor(f"{self.at}.attn_sink", (self.shape.num_heads,)),)

    def site(self, dtype: str) -> RowsFacts:
        rows: tuple[StateTensor, ...] = (StateTensor("keys", (self.shape.head_dim,), dtype),)
        rows += self.compressor.kept("main", dtype) if self.compressor else ()
        rows += self.indexer.compressor.kept("index", dtype) if self.indexer else ()
        return RowsFacts(site=self.role, num_layers=1, tensors=rows)

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        shape, rotary = self.shape, self.rope.rotary_dim
        rate, picks = self.compressor.rate if self.compressor else 0, self.indexer is not None
        facts = {"num_heads": shape.num_heads, "head_dim": shape.head_dim, "rotary_dim": rotary, "rate": rate}
        facts |= {"window": shape.window, "top_k": shape.index_top_k if picks else 0}
        turn = {"num_kv_heads": 1, "head_dim": rotary, "rotary_dim": rotary}
        each = {"num_heads": shape.out_groups, "kv_lora_rank": shape.out_rank}
        each["qk_nope_head_dim"] = shape.num_heads // shape.out_groups * shape.head_dim
        own = (
            OpFacts(site=name(self), op="compressed_attention", facts=facts),
            OpFacts(site=f"{self.role}.rope", op="rope_interleaved", facts={"num_heads": shape.num_heads, **turn}),
            OpFacts(site=f"{self.role}.out", op="per_head_matmul", facts=each),
        )
        if not picks:
            return own
        index = {"num_heads": shape.index_heads, "head_dim": shape.index_dim, "top_k": shape.index_top_k}
        index |= {"rotary_dim": rotary, "rate": rate}
        return (
            *own,
            OpFacts(site=f"{self.role}.pick", op="select_entries", facts=index),
            OpFacts(
                site=f"{self.role}.index_rope", op="rope_interleaved", facts={"num_heads": shape.index_heads} | turn
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention(Block):
    """Attention with its projections. Every tensor-parallel rank computes all of it: its heads share one key."""

    down: Linear
    """To the compressed query, and the key."""
    q_norm: Norm
    """Of the compressed query."""
    q: Linear
    head_norm: Norm
    """Of each head of queries; it has no weight."""
    key_norm: Norm
    compressor: Compressor | None
    """``None``: tokens see the window alone."""
    indexer: EntryIndexer | None
    """``None``: they see all entries."""
    attend: CompressedAttend
    out_groups: Linear
    """Of each group of heads by itself."""
    out: Linear

    @classmethod
    def of(cls, at: str, shape: CompressedShape, rope: Rope, *, rate: int = 0, picks: bool = False) -> Self:
        """With the names of DeepSeek-V4. Groups have ``rate`` tokens; 0: there are none. Where an indexer ``picks``
        entries, groups overlap."""
        hidden, heads, size, eps = shape.hidden_size, shape.num_heads, shape.head_dim, shape.eps
        own: dict[str, Any] = {"rate": rate, "size": size, "overlaps": picks}
        compressor = Compressor.of(f"{at}.compressor", "compressor_rows", shape, **own) if rate else None
        indexer = EntryIndexer.of(f"{at}.indexer", shape, rate) if picks else None
        outputs = Part(shape.q_rank, 1, "wq_a"), Part(size, 1, "wkv")
        group, rows = heads * size // shape.out_groups, shape.out_groups * shape.out_rank
        return cls(
            at=at,
            down=Linear(at=f"{at}.wqkv_a", role="compressed_down", size=hidden, outputs=outputs),
            q_norm=Norm(at=f"{at}.q_norm", size=shape.q_rank, eps=eps, role="compressed_q_norm"),
            q=Linear.whole(f"{at}.wq_b", "compressed_q", shape.q_rank, heads * size),
            head_norm=Norm(at=at, size=size, eps=eps, weighted=False, role="head_norm"),
            key_norm=Norm(at=f"{at}.norm", size=size, eps=eps, role="key_norm"),
            compressor=compressor,
            indexer=indexer,
            attend=CompressedAttend(at=at, shape=shape, rope=rope, compressor=compressor, indexer=indexer),
            out_groups=Linear.whole(f"{at}.wo_a", "out_groups", group, rows, absorbed=True),
            out=Linear.whole(f"{at}.wo_b", "out", rows, hidden),
        )
