"""Reads the shape and facts of DeepSeek-V2 from ``config.json``. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log
from typing import Any

from llmk.api import AttentionFacts, Checkpoint, CheckpointError, LinearFacts, ModelFacts, MoEFacts, OpFacts
from llmk.nn.facts import LatentShape, latent_attention_facts, latent_linears, latent_ops, norm_ops
from llmk_models.config import checked, required, rope_parameters
from llmk_models.decoder_facts import DecoderShape, Family
from llmk_models.modules import Modules
from llmk_models.moe_facts import MoEShape, moe_facts

FAMILY = Family(bias_flags=("attention_bias", "mlp_bias"))
"""These and the following numbers are the defaults of transformers' config class."""

_SERVED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "scoring_func": ("softmax",),
    "topk_method": ("greedy", "group_limited_greedy"),
    "norm_topk_prob": (False, None),
}
"""Values of the config's options that this implementation supports, the default first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentDecoderShape(DecoderShape):
    """A decoder with latent attention; ``head_dim`` is the size of the heads' part with RoPE."""

    latent: LatentShape

    def site(self, layer: int) -> str:
        """The attention site of a layer."""
        return "latent_attention"

    @property
    def attention_parameters(self) -> int:
        """Elements of one layer's attention, and of the norm before it."""
        projections = sum(
            linear.out_features * (linear.in_features + linear.bias) for linear in self.attention_linears()
        )
        return projections + (self.latent.q_lora_rank or 0) + self.latent.kv_lora_rank + self.hidden_size

    def attention_facts(self) -> tuple[AttentionFacts, ...]:
        """One site for all layers."""
        return (latent_attention_facts(self.latent, count=self.num_layers),)

    def attention_linears(self) -> tuple[LinearFacts, ...]:
        """The linear sites of attention."""
        return latent_linears(self.latent, count=self.num_layers)

    @property
    def attention_modules(self) -> Modules:
        """The modules of the linear sites of attention."""
        direct = self.latent.q_lora_rank is None
        down = "self_attn.kv_a_proj_with_mqa"
        return {
            "latent_down": (down,) if direct else ("self_attn.q_a_proj", down),
            "latent_q": ("self_attn.q_proj" if direct else "self_attn.q_b_proj",),
            "latent_up": ("self_attn.kv_b_proj",),
            "out": ("self_attn.o_proj",),
        }

    def norm_ops(self) -> tuple[OpFacts, ...]:
        """The norms."""
        return norm_ops(self.hidden_size)

    def attention_ops(self) -> tuple[OpFacts, ...]:
        """The ops of attention."""
        return latent_ops(self.latent)


@dataclass(frozen=True, slots=True)
class DeepseekV2Shape(MoEShape):
    """Sizes and options of one checkpoint."""

    decoder: LatentDecoderShape


@checked
def shape_of(checkpoint: Checkpoint) -> DeepseekV2Shape:
    """Sizes and options of a DeepSeek-V2 checkpoint. Raises CheckpointError.

    Every ``moe_layer_freq``-th layer has experts, except the first ``first_k_dense_replace`` layers.
    """
    _refuse_unknown(checkpoint)
    config, latent = checkpoint.config, _latent(checkpoint)
    decoder = replace(LatentDecoderShape.of(checkpoint, FAMILY, latent=latent), head_dim=latent.qk_rope_head_dim)
    num_experts, size = config.get("n_routed_experts", 64) or 0, config.get("moe_intermediate_size", 1407)
    first, step = config.get("first_k_dense_replace", 0), config.get("moe_layer_freq", 1)
    sparse = tuple(num_experts > 0 and layer >= first and layer % step == 0 for layer in range(decoder.num_layers))
    grouped = config.get("topk_method") == "group_limited_greedy"
    experts = MoEFacts(
        site="moe",
        num_experts=num_experts,
        top_k=required(checkpoint, "num_experts_per_tok"),
        hidden_size=decoder.hidden_size,
        intermediate_size=size,
        count=sum(sparse),
        renormalize=False,
        scaling=config.get("routed_scaling_factor", 1.0),
        num_groups=required(checkpoint, "n_group") if grouped else 1,
        top_groups=required(checkpoint, "topk_group") if grouped else 1,
    )
    return DeepseekV2Shape(decoder, experts, sparse, size * (config.get("n_shared_experts", 2) or 0))


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """The facts of a DeepSeek-V2 checkpoint."""
    return moe_facts(checkpoint, shape_of(checkpoint))


def _refuse_unknown(checkpoint: Checkpoint) -> None:
    for key, served in _SERVED.items():
        value = checkpoint.config.get(key, served[0])
        if value not in served:
            raise CheckpointError(
                f"{checkpoint.architecture} with {key} = {value!r}: the native implementation supports"
                f" {' and '.join(str(known) for known in served if known is not None)} only",
                hint="compare config.json with what the model's authors publish; if it is right, install a wheel that"
                " implements it (`llmk plugins` lists what is installed)",
            )


def _latent(checkpoint: Checkpoint) -> LatentShape:
    config, rope = checkpoint.config, rope_parameters(checkpoint.config)
    plain, rotated = config.get("qk_nope_head_dim", 128), config.get("qk_rope_head_dim", 64)
    return LatentShape(
        hidden_size=required(checkpoint, "hidden_size"),
        num_heads=required(checkpoint, "num_attention_heads"),
        q_lora_rank=config.get("q_lora_rank", 1536),
        kv_lora_rank=config.get("kv_lora_rank", 512),
        qk_nope_head_dim=plain,
        qk_rope_head_dim=rotated,
        v_head_dim=config.get("v_head_dim", 128),
        scale=(plain + rotated) ** -0.5 * _attention_scaling(rope) ** 2,
        bias=bool(config.get("attention_bias", False)),
    )


def _attention_scaling(rope: Mapping[str, Any]) -> float:
    """YaRN's (arXiv:2309.00071) attention scaling of queries and keys for an extended context, with the weight
    ``mscale_all_dim``."""
    weight, factor = rope.get("mscale_all_dim"), rope.get("factor", 1.0)
    if rope["rope_type"] == "default" or not weight or factor <= 1:
        return 1.0
    return float(0.1 * weight * log(factor) + 1.0)
