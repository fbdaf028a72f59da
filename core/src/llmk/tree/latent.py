"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): the cache stores one compressed vector per token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from llmk.api import AttentionFacts, OpFacts, PluginError
from llmk.tree.attention import Gate
from llmk.tree.block import Block
from llmk.tree.linear import Linear, Part
from llmk.tree.norm import Norm
from llmk.tree.rope import Rope
from llmk.tree.spec import Leaf, Spec, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """Sizes of latent attention, by the names that checkpoints give them (DeepSeek-V2, arXiv:2405.04434)."""

    hidden_size: int
    num_heads: int
    q_lora_rank: int | None
    """Rank of the compressed query; ``None``: queries are projected from the hidden state directly."""
    kv_lora_rank: int
    """Rank of the compressed K/V vector."""
    qk_nope_head_dim: int
    """Elements of a head's query and key without RoPE."""
    qk_rope_head_dim: int
    """Elements of a head's query and key with RoPE. All heads share this part of the key."""
    v_head_dim: int
    scale: float
    """Softmax scale."""
    bias: bool = False
    """Whether the projections from and to hidden states have a bias."""

    @property
    def qk_head_dim(self) -> int:
        """Elements of a head's query."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def row_size(self) -> int:
        """Elements that the cache stores per token."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttend(Leaf):
    """Norm of the latent vector, RoPE, the cache and attention, in one op. ``at`` is the attention module's name."""

    role: str = "latent_attention"
    """The name of its site."""
    shape: LatentShape
    rope: Rope | None
    """``None``: queries and keys are not rotated (NoPE)."""
    eps: float
    """Epsilon of the norm."""
    latent_scale: float = 1.0
    """Factor of the normed latent vector."""

    def tensors(self) -> tuple[Tensor, ...]:
        return (Tensor(f"{self.at}.kv_a_layernorm.weight", (self.shape.kv_lora_rank,)),)

    def site(self, dtype: str) -> AttentionFacts:
        """It is multi-query attention: all heads share one key head."""
        return AttentionFacts(
            site=self.role,
            num_layers=1,
            num_heads=self.shape.num_heads,
            num_kv_heads=1,
            head_dim=self.shape.row_size,
            latent_dim=self.shape.kv_lora_rank,
            scale=self.shape.scale,
        )

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        if self.rope is not None and self.rope.sections:
            raise PluginError(
                f"attention over latent vectors at {self.at!r} can't be rotated by positions of several axes",
                hint="leave out Rope.sections; no op has both",
            )
        keys = ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        facts, site = {key: getattr(self.shape, key) for key in keys}, f"{self.role}.whole"
        return (OpFacts(site=site, op="latent_attention", facts=facts, attention=name(self), divided=("num_heads",)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Block):
    """Compression of hidden states, attention over the latent vectors, and output projection."""

    down: Linear
    """To the compressed query, if ``q_norm`` is given, and the latent vector with the shared key."""
    q_norm: Norm | None
    """Of the compressed query; ``None``: queries are projected from the hidden state."""
    q: Linear
    attend: LatentAttend
    up: Linear
    """From the latent vector to the heads' keys and values. It is absorbed into queries and results, never run."""
    out: Linear
    gate: Gate | None = None
    """Gates each head's output, by ``gate_proj`` of the hidden state (Ling 3)."""
    gate_proj: Linear | None = None

    @classmethod
    def of(cls, at: str, shape: LatentShape, rope: Rope | None, eps: float, *, out: str = "o_proj") -> Self:
        """With the names of DeepSeek-V2. ``eps`` is the epsilon of the norms of compressed vectors, ``out`` the
        checkpoint's name of the output projection."""
        hidden, heads, rank, bias = shape.hidden_size, shape.num_heads, shape.q_lora_rank, shape.bias

        def by_heads(name: str, role: str, size: int, head_size: int, *, absorbed: bool = False) -> Linear:
            return Linear.column(f"{at}.{name}", role, size, heads * head_size, heads, absorbed=absorbed)

        kv = "kv_a_proj_with_mqa"
        down: dict[str, Any] = {"role": "latent_down", "size": hidden, "bias": bias}
        if rank is None:
            down |= {"at": f"{at}.{kv}", "outputs": (Part(shape.row_size, 1),)}
        else:
            down |= {"at": f"{at}.qkv_a_proj", "outputs": (Part(rank, 1, "q_a_proj"), Part(shape.row_size, 1, kv))}
        return cls(
            at=at,
            down=Linear(**down),
            q_norm=Norm(at=f"{at}.q_a_layernorm", size=rank, eps=eps, role="latent_q_norm") if rank else None,
            q=by_heads("q_b_proj" if rank else "q_proj", "latent_q", rank or hidden, shape.qk_head_dim),
            attend=LatentAttend(at=at, shape=shape, rope=rope, eps=eps),
            up=by_heads(
                *("kv_b_proj", "latent_up", shape.kv_lora_rank, shape.qk_nope_head_dim + shape.v_head_dim),
                absorbed=True,
            ),
            out=Linear.row(f"{at}.{out}", "out", heads * shape.v_head_dim, hidden, bias=bias),
        )

    def gated_by(self, at: str) -> Self:
        """The same with a gate for each head, by a projection ``at`` of the hidden state."""
        shape = self.attend.shape
        gate = Gate(role="attention_gate", size=shape.v_head_dim, gate_size=1)
        proj = Linear.column(at, "output_gate", shape.hidden_size, shape.num_heads)
        return replace(self, gate=gate, gate_proj=proj)

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, out=partial(self.out))
