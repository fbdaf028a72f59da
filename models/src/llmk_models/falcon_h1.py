"""Falcon-H1: Mamba-2 and attention side by side in every layer, with factors as in μP (arXiv:2507.22448)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from llmk.tree import Block, CausalLM, Config, Linear, Residual, ScanMixer, SelfAttention, StateSpaceSizes
from llmk_models.parts import Family, Names, Parts
from llmk_models.state_space import ScanKeys, scan_sizes

FAMILY = Family(bias_flags=("attention_bias", "mlp_bias"), num_kv_heads=8, norm_eps=1e-5)
"""These and the following numbers are the defaults of transformers' config class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelMixers(Block):
    """The sum of two mixers of the same input, each times its factor."""

    implementation: ClassVar[str] = "llmk_models.parallel_mixers:ParallelMixers"

    scan: ScanMixer
    attention: SelfAttention
    scan_factor: float
    attention_factor: float

    def addend(self, partial: Callable[[Linear], Linear]) -> Self:
        return replace(self, scan=self.scan.addend(partial), attention=self.attention.addend(partial))


def tree(config: Config) -> CausalLM:
    """The tree of a Falcon-H1 checkpoint. Factors of the input of a layer without biases are those of its output, and
    that of keys is one of attention's logits."""
    parts = Parts(config, FAMILY)
    parts.names = Names(norm="final_layernorm", before=("input_layernorm", "pre_ff_layernorm"))
    hidden, head_dim = parts.hidden_size, parts.heads.dim
    of_embeddings, of_logits = (config.positive(f"{name}_multiplier", 1.0) for name in ("embedding", "lm_head"))
    into, out = (config.number(f"attention_{way}_multiplier", 1.0) for way in ("in", "out"))
    ssm_in, ssm_out = (config.number(f"ssm_{way}_multiplier", 1.0) for way in ("in", "out"))
    gate, down = _factors(config, "mlp_multipliers", 2)
    scale = head_dim**-0.5 * config.number("key_multiplier", 1.0) * into * into
    sizes, biased = _sizes(config, hidden), config.flag("mamba_proj_bias", False)
    for flag, is_set, key, factor in (
        ("attention_bias", parts.qkv_bias, "attention_in_multiplier", into),
        ("mamba_proj_bias", biased, "ssm_in_multiplier", ssm_in),
        ("mlp_bias", parts.mlp_bias, "mlp_multipliers", gate),
    ):
        if is_set and factor != 1.0:
            raise config.unsupported(f"{flag} and {key} = {factor}: only layers without biases can have the factor")
    ways = {"bias": biased, "out_bias": config.flag("projectors_bias", False)}
    factors = tuple(ssm_in * each for each in _factors(config, "ssm_multipliers", 5))

    def layer(index: int, at: str) -> tuple[Residual, ...]:
        mixer = ParallelMixers(
            at=at,
            scan=ScanMixer.of(f"{at}.mamba", hidden, sizes, parts.eps, factors=factors, **ways),
            attention=parts.attention(f"{at}.self_attn", scale=scale),
            scan_factor=ssm_out,
            attention_factor=into * out,
        )
        mlp = parts.mlp(f"{at}.feed_forward", activation_alpha=gate)
        first, second = parts.pre_normed(at, mixer, mlp)
        return first, replace(second, scale=gate * down)

    return parts.decoder(layer, scale=of_embeddings, logits_scale=of_logits)


def _sizes(config: Config, hidden: int) -> StateSpaceSizes:
    inner = config.nullable(config.size, "mamba_d_ssm", 1024) or int(config.positive("mamba_expand", 2) * hidden)
    first = "norm_first" if config.flag("mamba_norm_before_gate", True) else "gate_first"
    gating = first if config.flag("mamba_rms_norm", False) else "gate_only"
    return scan_sizes(config, inner, ScanKeys(inner="mamba_d_ssm"), gating=gating)


def _factors(config: Config, key: str, count: int) -> tuple[float, ...]:
    """A list of so many factors; each is 1 if the key is not set. Raises CheckpointError."""
    found = config.numbers(key) or (1.0,) * count
    if len(found) != count:
        raise config.refuse(f"{key} of {len(found)} numbers, not {count}")
    return found
