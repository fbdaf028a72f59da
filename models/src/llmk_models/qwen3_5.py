"""Qwen3.5, text alone: as Qwen3-Next, with projections that are stored separately, dense or with experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from llmk.tree import Block, CausalLM, Config, DeltaNetSizes, Linear, MoE, Part, Recurrent, Residual
from llmk_models.parts import Family, Names, Parts
from llmk_models.qwen_delta import delta_attends, delta_sizes
from llmk_models.qwen_experts import qwen_experts

FAMILY = Family(bias_flags=("attention_bias",), qk_norm=True, head_dim=256, num_kv_heads=2, norm_offset=1.0)
"""These and the following numbers are the defaults of transformers' config classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDeltaMixer(Block):
    """The gated delta rule, with projections that return first all queries, then all keys, then all values."""

    implementation: ClassVar[str] = "llmk_models.split_delta_mixer:SplitDeltaMixer"

    into: Linear
    gate: Linear
    scalars: Linear
    """To two values per head."""
    net: Recurrent
    out: Linear

    @classmethod
    def of(cls, at: str, hidden_size: int, sizes: DeltaNetSizes, eps: float) -> Self:
        """With the names of Qwen3.5."""
        values, units, heads = sizes.num_heads * sizes.value_dim, sizes.units, (sizes.num_heads,) * 2
        parts, names = tuple(Part(rows, units) for rows in sizes.conv_parts), ("in_proj_b", "in_proj_a")
        scalars = (f"{at}.in_proj_ba", "delta_scalars", hidden_size, names, heads, (units, units))
        return cls(
            at=at,
            into=Linear(at=f"{at}.in_proj_qkv", role="delta_in", size=hidden_size, outputs=parts, cut="column"),
            gate=Linear.column(f"{at}.in_proj_z", "delta_gate", hidden_size, values, units),
            scalars=Linear.packed(*scalars, quantizable=False),
            net=Recurrent(at=at, sizes=sizes, eps=eps),
            out=Linear.row(f"{at}.out_proj", "delta_out", values, hidden_size),
        )

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, out=partial(self.out))


def tree(config: Config) -> CausalLM:
    """The tree of a Qwen3.5 checkpoint; of one that reads images too, its text part. The heads that predict several
    tokens at once (``mtp``) are not used."""
    has_images = config.architecture.endswith("ForConditionalGeneration")
    config = _of_text(config)
    sparse = config.architecture.startswith("Qwen3_5Moe")
    parts = Parts(config, FAMILY, partial_rotary_factor=0.25)
    parts.names = Names(model="model.language_model" if has_images else "model")
    sizes, attends = delta_sizes(config), delta_attends(config, parts.num_layers)
    experts, _ = qwen_experts(parts, num_experts=256, top_k=8, inner_size=512, renormalize=True)
    shared_size = config.count("shared_expert_intermediate_size", 512)

    def mixer(index: int, at: str) -> Block:
        if attends[index]:
            return parts.attention(f"{at}.self_attn", gated=True)
        return SplitDeltaMixer.of(f"{at}.linear_attn", parts.hidden_size, sizes, parts.eps)

    def feed_forward(at: str) -> Block:
        if not sparse:
            return parts.mlp(at)
        shared = parts.mlp(f"{at}.shared_expert", shared_size, prefix="shared_expert.", partial=True)
        return MoE.of(at, experts, shared=shared, shared_gate="shared_expert_gate")

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        return parts.pre_normed(at, mixer(index, at), feed_forward(f"{at}.mlp"))

    return parts.decoder(layer, ignored=(r"mtp\..*", r"model\.visual\..*"))


def _of_text(config: Config) -> Config:
    """The config of the text part. Models with experts state no width of other MLPs."""
    text = config.values.get("text_config", config.values)
    if not isinstance(text, Mapping):
        raise config.refuse("a text_config that is no object")
    tied = {key: config.values[key] for key in ("tie_word_embeddings",) if key in config.values}
    sparse = config.architecture.startswith("Qwen3_5Moe")
    defaults = {"intermediate_size": 512} if sparse else {"intermediate_size": 12288, "num_key_value_heads": 4}
    values = {**defaults, **text, **tied, "architectures": [config.architecture]}
    return Config(replace(config.checkpoint, config=values))
