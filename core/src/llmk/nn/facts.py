"""The facts of this package's layers, so that a model's ``describe`` names the sites that its layers bind.

Needs no torch. Sizes are in elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from llmk.api import AttentionFacts, LinearFacts, MoEFacts, OpFacts, RecurrentFacts, StateTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceSizes:
    """Sizes and options of :class:`~llmk.nn.StateSpaceMixer`. ``site`` is the site of its state and of its op;
    ``divided`` names the sizes that tensor-parallel ranks shard."""

    site: ClassVar[str] = "state_space_mixer"
    divided: ClassVar[tuple[str, ...]] = ("num_heads", "num_groups")

    num_heads: int
    head_dim: int
    num_groups: int
    """Groups of heads. The heads of a group share the vectors B and C, which write to and read from the state."""
    state_size: int
    conv_kernel: int
    conv_bias: bool = True
    dt_limits: tuple[float, float | None] = (0.0, None)
    """Least and greatest step size (``dt``); ``None``: unbounded."""

    @property
    def inner_size(self) -> int:
        """Channels of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def units(self) -> int:
        """How many units tensor-parallel ranks shard; a unit is never split. One unit is a group, because its heads are
        normed together."""
        return self.num_groups

    @property
    def conv_parts(self) -> tuple[int, int, int]:
        """Channels of the convolution: the heads' inputs (x), and two vectors of ``state_size`` per group (B and C)."""
        vectors = self.num_groups * self.state_size
        return self.inner_size, vectors, vectors

    @property
    def projected_parts(self) -> tuple[int, ...]:
        """Widths of the layer's input: the gate, the channels of the convolution, and a step size per head."""
        return self.inner_size, *self.conv_parts, self.num_heads

    def state(self, dtype: str) -> tuple[StateTensor, StateTensor]:
        """The state tensors of one layer; ``dtype`` is the engine's."""
        return _conv_and_heads(
            self.conv_kernel, sum(self.conv_parts), dtype, (self.num_heads, self.head_dim, self.state_size)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetSizes:
    """Sizes of :class:`~llmk.nn.GatedDeltaNet`; ``site`` and ``divided`` as in :class:`StateSpaceSizes`."""

    site: ClassVar[str] = "gated_delta_net"
    divided: ClassVar[tuple[str, ...]] = ("num_heads", "num_key_heads")

    num_heads: int
    num_key_heads: int
    """Each is shared by ``num_heads / num_key_heads`` consecutive heads."""
    key_dim: int
    value_dim: int
    conv_kernel: int

    @property
    def units(self) -> int:
        """How many units tensor-parallel ranks shard; a unit is never split. One unit is a key head with the heads that
        share it."""
        return self.num_key_heads

    @property
    def conv_parts(self) -> tuple[int, int, int]:
        """Channels of the convolution: queries, keys and values."""
        keys = self.num_key_heads * self.key_dim
        return keys, keys, self.num_heads * self.value_dim

    def state(self, dtype: str) -> tuple[StateTensor, StateTensor]:
        """The state tensors of one layer; ``dtype`` is the engine's."""
        return _conv_and_heads(
            self.conv_kernel, sum(self.conv_parts), dtype, (self.num_heads, self.value_dim, self.key_dim)
        )


RecurrentSizes = StateSpaceSizes | DeltaNetSizes
"""Sizes of a recurrent layer."""


def _conv_and_heads(kernel: int, channels: int, dtype: str, heads: tuple[int, ...]) -> tuple[StateTensor, StateTensor]:
    """The convolution's last inputs, and one float32 state per head, because small changes accumulate over many
    tokens."""
    return StateTensor("conv", (kernel - 1, channels), dtype), StateTensor("heads", heads, "float32")


def recurrent_site(sizes: RecurrentSizes, num_layers: int, dtype: str) -> tuple[RecurrentFacts, OpFacts]:
    """The facts of a recurrent layer's state, for an engine of ``dtype``, and of its op."""
    channels_and_heads = (1, 0)
    return (
        RecurrentFacts(
            site=sizes.site,
            num_layers=num_layers,
            tensors=sizes.state(dtype),
            units=sizes.units,
            divided=channels_and_heads,
        ),
        OpFacts(site=sizes.site, op=sizes.site, facts=asdict(sizes), divided=sizes.divided),
    )


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


def attention_op_site(attention_site: str) -> str:
    """The site of the op that :class:`~llmk.nn.Attention` binds over an attention site."""
    return f"{attention_site}.whole"


def router_site(moe_site: str) -> str:
    """The linear site of the router of :class:`~llmk.nn.MoE`."""
    return f"{moe_site}.router"


def attention_op(facts: AttentionFacts, *, qk_norm: bool, rotary_dim: int, plus_one: bool = False) -> OpFacts:
    """The op that :class:`~llmk.nn.Attention` binds over the backend of ``facts``. With ``plus_one``, the norms
    multiply by ``1 + weight``."""
    sizes = {
        "num_heads": facts.num_heads,
        "num_kv_heads": facts.num_kv_heads,
        "head_dim": facts.head_dim,
        "rotary_dim": rotary_dim,
        "qk_norm": qk_norm,
    }
    sizes |= attention_variants(facts, rotary_dim=rotary_dim)
    op = f"qk_norm_{'plus_one_' if plus_one else ''}rope_attention"
    divided = ("num_heads", "num_kv_heads")
    return OpFacts(site=attention_op_site(facts.site), op=op, facts=sizes, attention=facts.site, divided=divided)


def attention_variants(facts: AttentionFacts, *, rotary_dim: int) -> dict[str, Any]:
    """The facts of an attention op that were added after the first release, where they are not neutral."""
    variants: dict[str, Any] = {"attention_sinks": True} if facts.sinks else {}
    if facts.value_dim is not None:
        variants["value_dim"] = facts.value_dim
    return variants if rotary_dim else {**variants, "no_rope": True}


def latent_attention_facts(shape: LatentShape, *, count: int) -> AttentionFacts:
    """The attention site of :class:`~llmk.nn.LatentAttention`, which is multi-query attention: all heads share one key
    head."""
    return AttentionFacts(
        site="latent_attention",
        num_layers=count,
        num_heads=shape.num_heads,
        num_kv_heads=1,
        head_dim=shape.row_size,
        latent_dim=shape.kv_lora_rank,
        scale=shape.scale,
    )


def latent_ops(shape: LatentShape) -> tuple[OpFacts, ...]:
    """The ops of :class:`~llmk.nn.LatentAttention`."""
    names = ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    sizes = {name: getattr(shape, name) for name in names}
    attention = OpFacts(
        site="latent_attention.whole",
        op="latent_attention",
        facts=sizes,
        attention="latent_attention",
        divided=("num_heads",),
    )
    if shape.q_lora_rank is None:
        return (attention,)
    return (OpFacts(site="latent_q_norm", op="rms_norm", facts={"size": shape.q_lora_rank}), attention)


def latent_linears(shape: LatentShape, *, count: int) -> tuple[LinearFacts, ...]:
    """The linear sites of :class:`~llmk.nn.LatentAttention`."""
    hidden, heads, rank = shape.hidden_size, shape.num_heads, shape.q_lora_rank
    down, out = (rank or 0) + shape.row_size, heads * shape.v_head_dim

    def by_heads(site: str, in_features: int, size: int) -> LinearFacts:
        return LinearFacts(
            site=site,
            in_features=in_features,
            out_features=heads * size,
            count=count,
            parallel="column",
            units=((heads, size),),
        )

    return (
        LinearFacts(site="latent_down", in_features=hidden, out_features=down, bias=shape.bias, count=count),
        by_heads("latent_q", rank or hidden, shape.qk_head_dim),
        by_heads("latent_up", shape.kv_lora_rank, shape.qk_nope_head_dim + shape.v_head_dim),
        LinearFacts(site="out", in_features=out, out_features=hidden, bias=shape.bias, count=count, parallel="row"),
    )


def sandwich_norm_ops(size: int) -> tuple[OpFacts, OpFacts]:
    """The ops of :class:`~llmk.nn.SandwichNorm`."""
    return (
        OpFacts(site="rms_norm_plus_one", op="rms_norm_plus_one", facts={"size": size}),
        OpFacts(site="sandwich_norm_plus_one", op="sandwich_norm_plus_one", facts={"size": size}),
    )


def norm_ops(size: int, norm: str = "rms_norm", add_norm: str = "add_rms_norm") -> tuple[OpFacts, OpFacts]:
    """The ops of :class:`~llmk.nn.RMSNorm` and :class:`~llmk.nn.AddRMSNorm`, each at a site of its name."""
    return (
        OpFacts(site=norm, op=norm, facts={"size": size}),
        OpFacts(site=add_norm, op=add_norm, facts={"size": size}),
    )


def normed_linear_op(linear: str, hidden_size: int) -> OpFacts:
    """The op of :class:`~llmk.nn.NormedLinear`: a norm, then the linear layer at site ``linear``."""
    return OpFacts(site=f"norm_{linear}", op="add_rms_norm_linear", facts={"size": hidden_size}, linear=linear)


def normed_router_op(facts: MoEFacts) -> OpFacts:
    """The op of :class:`~llmk.nn.NormedMoE`: a norm, then the router of the MoE site of ``facts``."""
    router = router_site(facts.site)
    return OpFacts(site=f"norm_{router}", op="add_rms_norm_router", facts={"size": facts.hidden_size}, linear=router)


def normed_mlp_op(hidden_size: int, intermediate_size: int) -> OpFacts:
    """The op of :class:`~llmk.nn.NormedMLP`."""
    facts = {"size": hidden_size, "intermediate_size": intermediate_size}
    site, op, divided = "norm_gate_up_silu", "add_rms_norm_gate_up_silu", ("intermediate_size",)
    return OpFacts(site=site, op=op, facts=facts, linear="gate_up", divided=divided)


def embedding_op(vocab_size: int, hidden_size: int) -> OpFacts:
    """The op of :class:`~llmk.nn.Embedding`."""
    facts = {"vocab_size": vocab_size, "hidden_size": hidden_size}
    return OpFacts(site="embedding", op="embedding", facts=facts, divided=("vocab_size",))


def scaled_embedding_op(vocab_size: int, hidden_size: int) -> OpFacts:
    """The op of an :class:`~llmk.nn.Embedding` with a scale."""
    facts = {"vocab_size": vocab_size, "hidden_size": hidden_size}
    return OpFacts(site="scaled_embedding", op="scaled_embedding", facts=facts, divided=("vocab_size",))


def softcap_op(vocab_size: int) -> OpFacts:
    """The op of an :class:`~llmk.nn.LMHead` with a soft cap."""
    return OpFacts(site="softcap", op="softcap", facts={"size": vocab_size}, divided=("size",))


def sigmoid_gate_op(site: str, size: int, gate_size: int, *, by_heads: bool = False) -> OpFacts:
    """The op of a sigmoid gate: ``gate_size`` is ``size``, or 1 for one gate value per token. ``by_heads``:
    tensor-parallel ranks shard it by heads, as in :class:`~llmk.nn.GatedAttention`."""
    facts = {"size": size, "gate_size": gate_size}
    return OpFacts(site=site, op="sigmoid_gate", facts=facts, divided=tuple(facts) if by_heads else ())


def mlp_op(
    intermediate_size: int,
    activation: str = "silu",
    *,
    prefix: str = "",
    activation_options: Mapping[str, Any] | None = None,
) -> OpFacts:
    """The op of :class:`~llmk.nn.GatedMLP`; ``prefix`` is prepended to the names of its sites."""
    facts, name = {"intermediate_size": intermediate_size, **(activation_options or {})}, f"gate_up_{activation}"
    site, gate_up, divided = f"{prefix}{name}", f"{prefix}gate_up", ("intermediate_size",)
    return OpFacts(site=site, op=name, facts=facts, linear=gate_up, divided=divided)


def mlp_linears(
    hidden_size: int, intermediate_size: int, *, bias: bool, count: int, prefix: str = ""
) -> tuple[LinearFacts, LinearFacts]:
    """The linear sites of :class:`~llmk.nn.GatedMLP`; ``prefix`` is prepended to their names."""
    gate_up, down = f"{prefix}gate_up", f"{prefix}down"
    return (
        LinearFacts(
            site=gate_up,
            in_features=hidden_size,
            out_features=2 * intermediate_size,
            bias=bias,
            count=count,
            parallel="column",
            units=((intermediate_size, 1), (intermediate_size, 1)),
        ),
        LinearFacts(
            site=down,
            in_features=intermediate_size,
            out_features=hidden_size,
            bias=bias,
            count=count,
            parallel="row",
        ),
    )


def router_linear(facts: MoEFacts) -> LinearFacts:
    """The router's linear site, for the MoE site of ``facts``. Checkpoints don't quantize routers."""
    return LinearFacts(
        site=router_site(facts.site),
        in_features=facts.hidden_size,
        out_features=facts.num_experts,
        bias=facts.router_bias,
        count=facts.count,
        quantizable=False,
    )


def head_linear(hidden_size: int, vocab_size: int, *, bias: bool = False) -> LinearFacts:
    """The linear site of :class:`~llmk.nn.LMHead`."""
    return LinearFacts(
        site="lm_head",
        in_features=hidden_size,
        out_features=vocab_size,
        bias=bias,
        quantizable=False,
        parallel="vocab",
    )
