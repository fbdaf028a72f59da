"""Attention with keys and values in a paged cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from llmk.api import AttentionFacts, OpFacts
from llmk.tree.block import Block, Entry
from llmk.tree.config import Config
from llmk.tree.linear import Linear
from llmk.tree.rope import Rope
from llmk.tree.spec import Leaf, Spec, Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """Numbers of query heads and of key-value heads, and the size of a head."""

    count: int
    kv: int
    dim: int

    @classmethod
    def of(cls, config: Config, *, kv: int | None = None, dim: int | None = None) -> Self:
        """The heads of a config. ``kv`` and ``dim`` are the defaults; ``None``: see :meth:`checked`. Raises
        CheckpointError."""
        kv = config.nullable(config.size, "num_key_value_heads", kv)
        dim = config.nullable(config.size, "head_dim", dim)
        return cls.checked(config, config.size("num_attention_heads"), kv, dim, config.size("hidden_size"))

    @classmethod
    def checked(cls, config: Config, count: int, kv: int | None, dim: int | None, hidden_size: int) -> Self:
        """``count`` heads. ``kv``: ``None``: as many as query heads. ``dim``: ``None``: ``hidden_size / count``. Raises
        CheckpointError for heads that are not shared evenly, or have no elements."""
        kv, dim = kv or count, dim or hidden_size // count
        if count % kv:
            raise config.refuse(
                f"num_attention_heads = {count}, which are not shared evenly by num_key_value_heads = {kv}"
            )
        if not dim:
            raise config.refuse(f"{count} attention heads (num_attention_heads), but a hidden_size of {hidden_size}")
        return cls(count, kv, dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend(Leaf):
    """What is between the projections: norms of queries and keys, RoPE, the cache and attention, in one op.

    ``at`` is the attention module's name, under which the norms are stored.
    """

    role: str = "attention"
    """The name of its site."""
    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None
    """``None``: queries and keys are not rotated."""
    qk_norm: float | None = None
    """Epsilon of the norm of each head's query and key; ``None``: they are not normed."""
    norm_offset: float = 0.0
    """As :attr:`~llmk.tree.Norm.offset`."""
    window: int | None = None
    """The number of last tokens that a token attends to; ``None``: all."""
    softcap: float | None = None
    """Soft cap of the attention logits."""
    scale: float | None = None
    """Factor of the attention logits; ``None``: ``head_dim ** -0.5``."""
    sinks: bool = False
    """Whether each query head has a learned logit that takes part in the softmax (``{at}.sinks``)."""

    def tensors(self) -> tuple[Tensor, ...]:
        names = () if self.qk_norm is None else ("q_norm", "k_norm")
        norms = tuple(Tensor(f"{self.at}.{name}.weight", (self.head_dim,)) for name in names)
        return (*norms, Tensor(f"{self.at}.sinks", (self.heads,))) if self.sinks else norms

    def site(self, dtype: str) -> AttentionFacts:
        return AttentionFacts(
            site=self.role,
            num_layers=1,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            sliding_window=self.window,
            softcap=self.softcap,
            sinks=self.sinks,
            scale=self.scale,
        )

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        facts = {
            "num_heads": self.heads,
            "num_kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rotary_dim": self.rope.rotary_dim if self.rope else 0,
            "qk_norm": self.qk_norm is not None,
        }
        op = "qk_norm_plus_one_rope_attention" if self.norm_offset else "qk_norm_rope_attention"
        divided = ("num_heads", "num_kv_heads")
        return (OpFacts(site=f"{self.role}.whole", op=op, facts=facts, attention=name(self), divided=divided),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(Leaf):
    """A sigmoid gate. ``gate_size`` is ``size``, or 1 for one gate value per token."""

    role: str
    size: int
    gate_size: int
    by_heads: bool = False
    """Whether tensor-parallel ranks shard it."""

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        facts = {"size": self.size, "gate_size": self.gate_size}
        divided = tuple(facts) if self.by_heads else ()
        return (OpFacts(site=self.role, op="sigmoid_gate", facts=facts, divided=divided),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfAttention(Block):
    """Projection to queries, keys and values, attention, and output projection."""

    qkv: Linear
    attend: Attend
    out: Linear
    gate: Gate | None = None
    """Gates the attention's output per element (arXiv:2505.06708). The query projection then returns, for each head,
    the query followed by the gate."""

    @classmethod
    def of(
        cls,
        at: str,
        hidden_size: int,
        heads: Heads,
        rope: Rope | None,
        *,
        bias: bool = False,
        out_bias: bool | None = None,
        gated: bool = False,
        window: int | None = None,
        names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
        **attend: Any,
    ) -> Self:
        """Attention with the usual names.

        Args:
            bias, out_bias: whether the projections to queries, keys and values have biases, and whether the output
                projection has one; ``None``: as the others.
            gated: see ``gate``.
            names: the checkpoint's names of the four projections.
            attend: further fields of :class:`Attend`.
        """
        queries = heads.count * heads.dim
        rows = (queries * (2 if gated else 1), heads.kv * heads.dim, heads.kv * heads.dim)
        units = (heads.count, heads.kv, heads.kv)
        role = "attention" if window is None else "sliding_attention"
        sizes: dict[str, Any] = {"heads": heads.count, "kv_heads": heads.kv, "head_dim": heads.dim}
        own = {"role": role, "window": window, "rope": rope, **sizes, **attend}
        gate = Gate(role="attention_gate", size=queries, gate_size=queries, by_heads=True) if gated else None
        out_bias = bias if out_bias is None else out_bias
        return cls(
            at=at,
            qkv=Linear.packed(f"{at}.qkv_proj", "qkv", hidden_size, names[:3], rows, units, bias=bias),
            attend=Attend(at=at, **own),
            out=Linear.row(f"{at}.{names[3]}", "out", queries, hidden_size, bias=out_bias),
            gate=gate,
        )

    @property
    def entry(self) -> Entry | None:
        return Entry("add_rms_norm_linear", self.qkv)
