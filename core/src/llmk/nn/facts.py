"""The facts that go with this package's layers, so that a model's ``describe`` names the sites which its layers bind.

Needs no torch. Sizes are in elements.
"""

from __future__ import annotations

from llmk.api import AttentionFacts, LinearFacts, MoEFacts, OpFacts


def write_site(attention_site: str) -> str:
    """The op site of :class:`~llmk.nn.Attention` at an attention site."""
    return f"{attention_site}.qk_norm_rope_write_kv"


def router_site(moe_site: str) -> str:
    """The linear site of the router of :class:`~llmk.nn.MoE`."""
    return f"{moe_site}.router"


def attention_op(facts: AttentionFacts, *, qk_norm: bool, rotary_dim: int) -> OpFacts:
    """The op that :class:`~llmk.nn.Attention` binds beside the backend of ``facts``."""
    sizes = {
        "num_heads": facts.num_heads,
        "num_kv_heads": facts.num_kv_heads,
        "head_dim": facts.head_dim,
        "rotary_dim": rotary_dim,
        "qk_norm": qk_norm,
    }
    return OpFacts(
        site=write_site(facts.site),
        op="qk_norm_rope_write_kv",
        facts=sizes,
        attention=facts.site,
        divided=("num_heads", "num_kv_heads"),
    )


def sandwich_norm_ops(size: int) -> tuple[OpFacts, OpFacts]:
    """The ops of :class:`~llmk.nn.SandwichNorm`."""
    return (
        OpFacts(site="rms_norm_plus_one", op="rms_norm_plus_one", facts={"size": size}),
        OpFacts(site="sandwich_norm_plus_one", op="sandwich_norm_plus_one", facts={"size": size}),
    )


def norm_ops(size: int) -> tuple[OpFacts, OpFacts]:
    """The ops of :class:`~llmk.nn.RMSNorm` and :class:`~llmk.nn.AddRMSNorm`."""
    return (
        OpFacts(site="rms_norm", op="rms_norm", facts={"size": size}),
        OpFacts(site="add_rms_norm", op="add_rms_norm", facts={"size": size}),
    )


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


def mlp_op(intermediate_size: int, activation: str = "silu") -> OpFacts:
    """The op of :class:`~llmk.nn.GatedMLP`."""
    facts, name = {"intermediate_size": intermediate_size}, f"gate_up_{activation}"
    return OpFacts(site=name, op=name, facts=facts, linear="gate_up", divided=("intermediate_size",))


def mlp_linears(hidden_size: int, intermediate_size: int, *, bias: bool, count: int) -> tuple[LinearFacts, LinearFacts]:
    """The linear sites of :class:`~llmk.nn.GatedMLP`."""
    return (
        LinearFacts(
            site="gate_up",
            in_features=hidden_size,
            out_features=2 * intermediate_size,
            bias=bias,
            count=count,
            parallel="column",
            units=((intermediate_size, 1), (intermediate_size, 1)),
        ),
        LinearFacts(
            site="down",
            in_features=intermediate_size,
            out_features=hidden_size,
            bias=bias,
            count=count,
            parallel="row",
        ),
    )


def router_linear(facts: MoEFacts) -> LinearFacts:
    """The linear site of :class:`~llmk.nn.MoE` beside the MoE site of ``facts``. Checkpoints leave routers plain."""
    return LinearFacts(
        site=router_site(facts.site),
        in_features=facts.hidden_size,
        out_features=facts.num_experts,
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
