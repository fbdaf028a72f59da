"""Gemma 4, text alone: Gemma 3's layers with norms of values, larger heads in layers without a window, embeddings of
every layer's own, and in some models experts alongside the MLP, or layers that share keys and values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from llmk.api import MoEFacts
from llmk.tree import (
    Carried,
    CausalLM,
    Config,
    Experts,
    GatedMLP,
    Heads,
    Joint,
    Linear,
    Norm,
    Rope,
    SelfAttention,
    Spec,
    Stream,
)
from llmk.tree.config import MOST_EXPERTS
from llmk_models.layer_heads import stated_sizes
from llmk_models.parts import Family, Names, Parts, with_values
from llmk_models.per_layer import PerLayerGate, PerLayerInputs
from llmk_models.shared_kv import ignored, sources
from llmk_models.text_part import text_part
from llmk_models.vector import Vector
from llmk_models.windows import FULL, SLIDING, layer_kinds

FAMILY = Family(
    bias_flags=("attention_bias",),
    qk_norm=True,
    head_dim=256,
    num_kv_heads=4,
    tied=True,
    activation_key="hidden_activation",
    activations=("gelu_pytorch_tanh",),
)
"""These and the following numbers are the defaults of transformers' config class."""
_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
_NOT_TEXT = ("vision_tower", "audio_tower", "embed_vision", "embed_audio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Stream(Stream):
    """Hidden states, and what each layer gets besides, in models that have it."""

    implementation: ClassVar[str] = "llmk_models.gemma4_layer:Gemma4Stream"

    inputs: PerLayerInputs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedBranch(Spec):
    """Experts that compute alongside the MLP, of what the MLP's norm gets."""

    router_norm: Norm
    router_scale: Vector
    router: Linear
    norm: Norm
    experts: Experts
    posts: tuple[Norm, Norm]
    """After the MLP, and after the experts."""

    @classmethod
    def of(cls, parts: Parts, at: str, facts: MoEFacts) -> Self:
        """Of the layer ``at``."""

        def norm(name: str, role: str, **more: Any) -> Norm:
            return replace(parts.norm(f"{at}.{name}", role), **more)

        return cls(
            at=at,
            router_norm=norm("router.norm", "router_norm", weighted=False),
            router_scale=Vector(at=f"{at}.router.scale", size=facts.hidden_size),
            router=Linear.whole(
                *(f"{at}.router.proj", "moe.router", facts.hidden_size, facts.num_experts), quantizable=False
            ),
            norm=norm("pre_feedforward_layernorm_2", "rms_norm"),
            experts=Experts(
                at=f"{at}.experts",
                facts=facts,
                stacked=(f"{at}.experts.gate_up_proj", f"{at}.experts.down_proj"),
                output_scale=f"{at}.router.per_expert_scale",
            ),
            posts=(norm("post_feedforward_layernorm_1", "rms_norm"), norm("post_feedforward_layernorm_2", "rms_norm")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Layer(Spec):
    """A whole layer; its sum is multiplied by a number of its own."""

    implementation: ClassVar[str] = "llmk_models.gemma4_layer:Gemma4Layer"

    norm: Norm
    attention: SelfAttention
    middle: Joint
    mlp: GatedMLP
    routed: RoutedBranch | None
    end: Joint
    per_layer: PerLayerGate | None
    per_layer_end: Joint | None
    scale: Vector


def tree(config: Config) -> CausalLM:
    """The tree of a Gemma 4 checkpoint; of one that reads images or sound too, its text part."""
    whole = config.architecture == "Gemma4ForConditionalGeneration"
    config = text_part(config) if "text_config" in config.values else config
    config.choice("use_bidirectional_attention", None, "vision")
    config = with_values(config, rope_parameters=config.rope("rope_parameters") or _ROPES)
    parts = Parts(config, FAMILY, kind=SLIDING)
    parts.names = Names(model="model.language_model") if whole else parts.names
    kinds = layer_kinds(config, parts.num_layers, period=6)
    kinds = kinds if config.texts("layer_types") else (*kinds[:-1], FULL)
    found = sources(config, kinds, config.count("num_kv_shared_layers", 0))
    experts = _experts(config, parts) if config.flag("enable_moe_block", False) else None
    width = config.nullable(config.count, "hidden_size_per_layer_input", 256) or 0
    wide = 2 if config.flag("use_double_wide_mlp", False) else 1
    attentions: list[SelfAttention] = []
    by_kind = _by_kind(config, parts, kinds)

    def layer(index: int, at: str) -> tuple[Spec, ...]:
        source = found[index]
        own = {**by_kind[kinds[index]], "shares": None if source is None else attentions[source].attend}
        attentions.append(SelfAttention.of(f"{at}.self_attn", parts.hidden_size, **own))
        norm = {name: parts.norm(f"{at}.{name}_layernorm") for name in ("post_attention", "pre_feedforward")}
        inner = parts.inner_size * (wide if source is not None else 1)
        return (
            Gemma4Layer(
                at=at,
                norm=parts.norm(f"{at}.input_layernorm", "rms_norm"),
                attention=attentions[index],
                middle=Joint(post=norm["post_attention"], norm=norm["pre_feedforward"]),
                mlp=parts.mlp(f"{at}.mlp", inner, activation="gelu_tanh"),
                routed=None if experts is None else RoutedBranch.of(parts, at, experts),
                end=Joint(post=parts.norm(f"{at}.post_feedforward_layernorm"), norm=None),
                per_layer=PerLayerGate.of(at, parts.hidden_size, width, index) if width else None,
                per_layer_end=Joint(post=parts.norm(f"{at}.post_per_layer_input_norm"), norm=None) if width else None,
                scale=Vector(at=f"{at}.layer_scalar", size=1),
            ),
        )

    inputs = PerLayerInputs.of(parts, width) if width else None
    carried = (Carried(parts.hidden_size), *([Carried(inputs.table.size)] if inputs else ()))
    stream = Gemma4Stream(carried=carried, reads_tokens=bool(inputs), inputs=inputs)
    cap = config.positive("final_logit_softcapping", None)
    not_needed = ignored(f"{parts.names.model}.{parts.names.layers}", found)
    not_text = tuple(rf"(model\.)?{name}\..*" for name in _NOT_TEXT) if whole else ()
    return parts.decoder(
        layer, scale=parts.hidden_size**0.5, softcap=cap, stream=stream, ignored=(*not_needed, *not_text)
    )


def _by_kind(config: Config, parts: Parts, kinds: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Arguments of :meth:`SelfAttention.of` by the kind of a layer. Raises CheckpointError."""
    same = config.flag("attention_k_eq_v", False)
    kv = config.nullable(config.size, "num_global_key_value_heads", None) if same else None
    sizes = (kv or parts.heads.kv, config.size("global_head_dim", 512))
    sizes = stated_sizes(config, parts.heads, kinds) or sizes
    heads = Heads.checked(config, parts.heads.count, *sizes, parts.hidden_size)
    shared = {"bias": parts.qkv_bias, "qk_norm": parts.eps, "value_norm": parts.eps, "scale": 1.0}
    return {
        SLIDING: {**shared, "heads": parts.heads, "rope": parts.rope, "window": config.size("sliding_window", 512)},
        FULL: {**shared, "heads": heads, "rope": Rope.of(config, heads.dim, kind=FULL), "keys_as_values": same},
    }


def _experts(config: Config, parts: Parts) -> MoEFacts:
    return MoEFacts(
        site="moe",
        num_experts=config.size("num_experts", most=MOST_EXPERTS),
        top_k=config.size("top_k_experts"),
        hidden_size=parts.hidden_size,
        intermediate_size=config.size("moe_intermediate_size"),
        activation="gelu_tanh",
    )
