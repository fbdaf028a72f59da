"""LongCat-Flash: layers of two latent attentions and two MLPs, with experts alongside of which some return their
input (arXiv:2509.01322)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from llmk.api import MoEFacts
from llmk.tree import (
    Carried,
    CausalLM,
    Config,
    Experts,
    GatedMLP,
    Joint,
    LatentAttention,
    Linear,
    Norm,
    Rope,
    Spec,
    Stream,
)
from llmk.tree.config import MOST_EXPERTS
from llmk_models.deepseek_v2 import LATENT_NORM_EPS, latent_shape
from llmk_models.parts import Family, Parts, with_values
from llmk_models.vector import Vector

FAMILY = Family(norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStream(Stream):
    """Hidden states alone."""

    implementation: ClassVar[str] = "llmk_models.longcat_layer:HiddenStream"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroExperts(Spec):
    """Experts of which those beyond ``experts.facts.num_experts`` return their input. ``top_k`` of all are chosen; as
    many of the others, at most, does their kernel compute."""

    router: Linear
    bias: Vector
    """Of each expert, in the choice."""
    experts: Experts
    top_k: int
    scaling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LongcatLayer(Spec):
    """A whole layer. The experts get what the first MLP gets, and are added at the end."""

    implementation: ClassVar[str] = "llmk_models.longcat_layer:LongcatLayer"

    norm: Norm
    joints: tuple[Joint, Joint, Joint]
    """After the first attention, the first MLP, and the second attention."""
    attentions: tuple[LatentAttention, LatentAttention]
    mlps: tuple[GatedMLP, GatedMLP]
    experts: ZeroExperts


def tree(config: Config) -> CausalLM:
    """The tree of a LongCat-Flash checkpoint. The layers that predict further tokens (MTP) are not used."""
    usual = {"num_hidden_layers": config.size("num_layers", 28), "intermediate_size": config.size("ffn_hidden_size")}
    config = with_values(config, **usual)
    parts = Parts(config, FAMILY)
    shape, hidden = latent_shape(config), parts.hidden_size
    rope = parts.rope = Rope.of(config, shape.qk_rope_head_dim, theta=10_000_000.0)
    # Queries are linear in the factor of their compressed form.
    shape = replace(shape, scale=shape.scale * (hidden / (shape.q_lora_rank or hidden)) ** 0.5)
    latent_scale = (hidden / shape.kv_lora_rank) ** 0.5

    def attention(at: str) -> LatentAttention:
        made = LatentAttention.of(at, shape, rope, LATENT_NORM_EPS)
        return replace(made, attend=replace(made.attend, latent_scale=latent_scale))

    def layer(index: int, at: str) -> tuple[Spec, ...]:
        before, after = (
            [parts.norm(f"{at}.{name}_layernorm.{number}") for number in range(2)]
            for name in ("input", "post_attention")
        )
        return (
            LongcatLayer(
                at=at,
                norm=replace(before[0], role="rms_norm"),
                joints=(Joint(norm=after[0]), Joint(norm=before[1]), Joint(norm=after[1])),
                attentions=(attention(f"{at}.self_attn.0"), attention(f"{at}.self_attn.1")),
                mlps=(parts.mlp(f"{at}.mlps.0"), parts.mlp(f"{at}.mlps.1")),
                experts=_experts(config, parts, f"{at}.mlp"),
            ),
        )

    stream = HiddenStream(carried=(Carried(hidden),))
    first = config.size("n_routed_experts", 512)
    zero = "|".join(str(first + index) for index in range(config.nullable(config.count, "zero_expert_num", 256) or 0))
    # transformers keeps first projections for experts that return their input.
    not_needed = (rf"model\.layers\.\d+\.mlp\.experts\.({zero})\..*",) if zero else ()
    return parts.decoder(layer, stream=stream, ignored=(r"model\.mtp\..*", *not_needed))


def _experts(config: Config, parts: Parts, at: str) -> ZeroExperts:
    count, top_k = config.size("n_routed_experts", 512, most=MOST_EXPERTS), config.size("moe_topk", 12)
    facts = MoEFacts(
        site="moe",
        num_experts=count,
        top_k=min(top_k, count),
        hidden_size=parts.hidden_size,
        intermediate_size=config.size("expert_ffn_hidden_size", 2048),
        renormalize=False,
        scoring="sigmoid",  # of logits that are made of the chosen experts' shares
        scaling=config.number("routed_scaling_factor", 6.0),
    )
    total = count + (config.nullable(config.count, "zero_expert_num", 256) or 0)
    if top_k > total:
        raise config.refuse(f"moe_topk = {top_k}, but {total} experts (n_routed_experts, zero_expert_num)")
    router = (f"{at}.router.classifier", "moe.router", parts.hidden_size, total)
    return ZeroExperts(
        at=at,
        router=Linear.whole(*router, bias=config.flag("router_bias", False), quantizable=False),
        bias=Vector(at=f"{at}.router.e_score_correction_bias", size=total),
        experts=Experts(at=f"{at}.experts", facts=facts),
        top_k=top_k,
        scaling=facts.scaling,
    )
