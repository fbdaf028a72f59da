"""Attention with keys and values in a paged cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

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


class QueryScale(NamedTuple):
    """A factor of queries that grows with their position: ``1 + beta * log(1 + floor((position + offset) / period))``
    (arXiv:2501.19399), so that attention over long texts stays sharp."""

    beta: float
    period: int
    offset: int = 0


def alibi_slopes(heads: int, most: float = 8.0, factor: float = 1.0) -> tuple[float, ...]:
    """The slopes of ALiBi's authors (arXiv:2108.12409), times a ``factor``: of a power of two of heads, head ``i``
    (from 1 on) has ``2 ** (-most * i / heads)``; of other numbers, those of the power of two below, then every second
    one of the power above."""
    below = 1 << (heads.bit_length() - 1)
    own = [2.0 ** (-most * (index + 1) / below) for index in range(below)]
    between = [2.0 ** (-most * (index + 0.5) / below) for index in range(heads - below)]
    return tuple(slope * factor for slope in (*own, *between))


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
    """Epsilon of the norms of queries and keys; ``None``: they are not normed."""
    whole_qk_norm: bool = False
    """Whether the norms are over all heads together, not over each by itself (OLMo 2); they are then ops of their
    own."""
    own_qk_norms: bool = False
    """Whether each head has norms with a weight of its own, which subtract the mean (StableLM 2, Command R+); they are
    ops of their own, too."""
    norm_after_rope: bool = False
    """Whether queries and keys are normed after their rotation (Hunyuan); not with ``whole_qk_norm`` or
    ``own_qk_norms``."""
    norm_names: tuple[str, str] = ("q_norm", "k_norm")
    """The checkpoint's names of the norms. With ``own_qk_norms``, ``{}`` in a name stands for the head's number, where
    each head's weight is a tensor."""
    norm_offset: float = 0.0
    """As :attr:`~llmk.tree.Norm.offset`."""
    norm_weighted: bool = True
    """Whether the norms of queries and keys have weights."""
    value_norm: float | None = None
    """Epsilon of a norm of each head's value, without weight, an op of its own; ``None``: values are not normed."""
    shares: Attend | None = None
    """The layer whose keys and values it reads, so that it has none of its own (Gemma 3n); ``None``: its own. Apart
    from norms, the two are equal."""
    window: int | None = None
    """The number of last tokens that a token attends to; ``None``: all."""
    chunked: bool = False
    """Whether it attends, instead, to the earlier tokens of its chunk, of which each has ``window`` tokens."""
    softcap: float | None = None
    """Soft cap of the attention logits."""
    scale: float | None = None
    """Factor of the attention logits; ``None``: ``head_dim ** -0.5``."""
    value_dim: int | None = None
    """Elements of a head's value; ``None``: ``head_dim``."""
    sinks: bool = False
    """Whether each query head has a learned logit that takes part in the softmax."""
    sinks_name: str = "sinks"
    """The checkpoint's name of these logits."""
    query_scale: QueryScale | None = None
    """A factor by position; not with ``qk_norm``."""
    slopes: tuple[float, ...] = ()
    """Each head's slope (:func:`alibi_slopes`); empty: logits don't depend on the distance of a key."""

    def tensors(self) -> tuple[Tensor, ...]:
        stored = self.norm_names if self.qk_norm is not None and self.norm_weighted else ()
        names = stored if self.shares is None else stored[:1]
        if self.own_qk_norms:
            norms = tuple(self._own_norm(*each) for each in zip(names, (self.heads, self.kv_heads), strict=False))
        else:
            sizes = zip(names, self._norm_sizes, strict=False)
            norms = tuple(Tensor(f"{self.at}.{name}.weight", (size,)) for name, size in sizes)
        return (*norms, Tensor(f"{self.at}.{self.sinks_name}", (self.heads,))) if self.sinks else norms

    def _own_norm(self, name: str, heads: int) -> Tensor:
        each = "{}" in name
        return Tensor(f"{self.at}.{name}.weight", (self.head_dim,) if each else (heads, self.head_dim), each * heads)

    @property
    def norms_apart(self) -> bool:
        """Whether the norms of queries and keys are ops of their own."""
        return self.whole_qk_norm or self.own_qk_norms

    @property
    def _norm_sizes(self) -> tuple[int, int]:
        queries, keys = (self.heads, self.kv_heads) if self.whole_qk_norm else (1, 1)
        return queries * self.head_dim, keys * self.head_dim

    def site(self, dtype: str) -> AttentionFacts | None:
        if self.shares is not None:
            return None
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
            value_dim=self.value_dim,
            chunked=self.chunked,
            alibi=bool(self.slopes),
        )

    def ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        """The whole of it, and the norms that are ops of their own, if there are any."""
        facts: dict[str, Any] = {
            "num_heads": self.heads,
            "num_kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rotary_dim": self.rope.rotary_dim if self.rope else 0,
            "qk_norm": self.qk_norm is not None and not self.norms_apart,
        }
        # Facts that were added after the first release are left out where they are neutral.
        facts |= {"no_rope": True} if self.rope is None else {}
        facts |= {"attention_sinks": True} if self.sinks else {}
        facts |= {"alibi": True} if self.slopes else {}
        facts |= {"value_dim": self.value_dim} if self.value_dim is not None else {}
        facts |= {"rotary_sections": self.rope.sections} if self.rope and self.rope.sections else {}
        facts |= {"rotary_neighbours": True} if self.rope and self.rope.neighbours else {}
        facts |= {"norm_after_rope": True} if facts["qk_norm"] and self.norm_after_rope and self.rope else {}
        facts |= {"shared_kv": True} if self.shares is not None else {}
        offset = {"norm_offset": self.norm_offset} if self.norm_offset else {}
        facts |= offset if facts["qk_norm"] else {}
        op, divided = "qk_norm_rope_attention", ("num_heads", "num_kv_heads")
        site = name(self.shares or self)
        whole = OpFacts(site=f"{self.role}.whole", op=op, facts=facts, attention=site, divided=divided)
        return (whole, *self._norm_ops(offset))

    def _norm_ops(self, offset: dict[str, float]) -> Iterator[OpFacts]:
        """The norms that are ops of their own, that of values last."""
        if self.qk_norm is not None and self.norms_apart:
            norm, more = ("layer_norm", {}) if self.own_qk_norms else ("rms_norm", offset)
            for site, size in zip(("q_norm", "k_norm"), self._norm_sizes, strict=True):
                yield OpFacts(site=site, op=norm, facts={"size": size, **more})
        if self.value_norm is not None:
            yield OpFacts(site="v_norm", op="rms_norm", facts={"size": self.value_dim or self.head_dim})


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
    """Gates the attention's output (arXiv:2505.06708): by ``gate_proj``, or, if there is none, by a query projection
    that returns, for each head, the query followed by the gate."""
    clip: float | None = None
    """Queries, keys and values are clamped between minus and plus this limit; ``None``: they are not."""
    out_scale: float = 1.0
    """Factor of the attention's output, before its projection."""
    keys_as_values: bool = False
    """Whether values are the projected keys, before their norm and rotation, so that they have no projection."""
    gate_proj: Linear | None = None
    """From the attention's input to the gates: one for each element, or one for each head (``gate.gate_size`` 1)."""

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
        packed: str = "qkv_proj",
        groups: int = 0,
        clip: float | None = None,
        out_scale: float = 1.0,
        keys_as_values: bool = False,
        **attend: Any,
    ) -> Self:
        """Attention with the usual names.

        Args:
            bias, out_bias: whether the projections to queries, keys and values have biases, and whether the output
                projection has one; ``None``: as the others.
            gated: see ``gate``.
            names: the checkpoint's names of the four projections; the first three are empty if only the ``packed``
                tensor is stored.
            packed: the checkpoint's name of the first three together.
            groups: see :class:`~llmk.tree.Linear`, for the packed tensor.
            clip, out_scale, keys_as_values: see there.
            attend: further fields of :class:`Attend`. One that ``shares`` keys and values has no projections to them.
        """
        queries = heads.count * heads.dim
        value_dim = attend.get("value_dim") or heads.dim
        rows = (queries * (2 if gated else 1), heads.kv * heads.dim, heads.kv * value_dim)
        units = (heads.count, heads.kv, heads.kv)
        parts = 1 if attend.get("shares") else 2 if keys_as_values else 3
        qkv = names[:parts], rows[:parts], units[:parts]
        role = "attention" if window is None else "sliding_attention"
        sizes: dict[str, Any] = {"heads": heads.count, "kv_heads": heads.kv, "head_dim": heads.dim}
        own = {"role": role, "window": window, "rope": rope, **sizes, **attend}
        gate = Gate(role="attention_gate", size=queries, gate_size=queries, by_heads=True) if gated else None
        out_bias = bias if out_bias is None else out_bias
        return cls(
            at=at,
            qkv=Linear.packed(f"{at}.{packed}", "qkv", hidden_size, *qkv, bias=bias, groups=groups),
            attend=Attend(at=at, **own),
            out=Linear.row(f"{at}.{names[3]}", "out", heads.count * value_dim, hidden_size, bias=out_bias),
            gate=gate,
            clip=clip,
            out_scale=out_scale,
            keys_as_values=keys_as_values,
        )

    def gated_by(self, at: str, hidden_size: int, *, per_head: bool = False) -> Self:
        """The same with an output gate, a projection ``at`` of the attention's input: one value for each element of a
        head, or one ``per_head``."""
        heads, width = self.attend.heads, self.attend.value_dim or self.attend.head_dim
        size, rows = (width, heads) if per_head else (heads * width, heads * width)
        gate = Gate(role="attention_gate", size=size, gate_size=1 if per_head else size, by_heads=not per_head)
        return replace(self, gate=gate, gate_proj=Linear.column(at, "output_gate", hidden_size, rows, heads))

    @property
    def entry(self) -> Entry | None:
        if self.gate_proj is not None or self.qkv.adapters is not None:
            return None
        return Entry("add_rms_norm_linear", self.qkv)

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, out=partial(self.out))
