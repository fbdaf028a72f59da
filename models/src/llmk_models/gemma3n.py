"""Gemma 3n, text alone: several streams of hidden states of which each layer computes one and predicts the others
(AltUp, arXiv:2301.13310), low-rank residuals (LAuReL, arXiv:2411.07501), embeddings of every layer's own, sparse MLPs,
and layers that share keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, ClassVar, Self

from llmk.api import OpFacts
from llmk.tree import Block, Carried, CausalLM, Config, GatedMLP, Joint, Linear, Norm, SelfAttention, Spec, Stream
from llmk_models.parts import Family, Names, Parts, with_values
from llmk_models.per_layer import PerLayerGate, PerLayerInputs
from llmk_models.shared_kv import ignored, sources
from llmk_models.text_part import text_part
from llmk_models.vector import Vector
from llmk_models.windows import FULL, SLIDING, layer_kinds, sliding_rope

FAMILY = Family(
    bias_flags=("attention_bias",),
    qk_norm=True,
    head_dim=256,
    num_kv_heads=2,
    rope_theta=1_000_000.0,
    tied=True,
    activation_key="hidden_activation",
    activations=("gelu_pytorch_tanh",),
)
"""These and the following numbers are the defaults of transformers' config class."""
_SPARSE_LAYERS, _SPARSITY = 10, 0.95
_NOT_TEXT = ("vision_tower", "audio_tower", "embed_vision", "embed_audio")


@dataclass(frozen=True, slots=True, kw_only=True)
class AltUpStream(Stream):
    """As many streams as there are ``spread`` layers and one, side by side, and what each layer gets besides."""

    implementation: ClassVar[str] = "llmk_models.gemma3n_layer:AltUpStream"

    inputs: PerLayerInputs
    spread: tuple[Linear, ...]
    """From the first stream to each of the others, at the start."""
    gather: tuple[Linear, ...]
    """From each of the others, at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AltUp(Spec):
    """What predicts all streams before a layer, and corrects them by what it computed of the one that is active."""

    norm: Norm
    router: Linear
    predict: Linear
    correct: Linear
    scale: Vector | None
    """Of the active stream, as the layer's own embedding sees it."""
    active: int

    @classmethod
    def of(cls, parts: Parts, at: str, streams: int) -> Self:
        """Of the layer ``at``."""
        hidden, config, exact = parts.hidden_size, parts.config, {"quantizable": False}
        scaled = config.flag("altup_correct_scale", True)
        return cls(
            at=at,
            norm=parts.norm(f"{at}.router_norm", "rms_norm"),
            router=Linear.whole(f"{at}.modality_router", "altup_router", hidden, streams, **exact),
            predict=Linear.whole(f"{at}.prediction_coefs", "altup_predict", streams, streams**2, **exact),
            correct=Linear.whole(f"{at}.correction_coefs", "altup_correct", streams, streams, **exact),
            scale=Vector(at=f"{at}.correct_output_scale", size=hidden) if scaled else None,
            active=config.count("altup_active_idx", 0, most=streams - 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseMLP(Block):
    """An MLP whose gates are reduced by their mean and ``cutoff`` standard deviations, and are 0 below that."""

    implementation: ClassVar[str] = "llmk_models.gemma3n_layer:SparseMLP"

    gate_up: Linear
    down: Linear
    cutoff: float

    def own_ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        facts, op = {"intermediate_size": self.down.size}, "gelu_tanh_and_mul"
        return (OpFacts(site=f"sparse_{op}", op=op, facts=facts, divided=tuple(facts)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3nLayer(Spec):
    """A whole layer."""

    implementation: ClassVar[str] = "llmk_models.gemma3n_layer:Gemma3nLayer"

    altup: AltUp
    norm: Norm
    laurel: tuple[Linear, Linear]
    laurel_norm: Joint
    attention: SelfAttention
    middle: Joint
    mlp_norm: Norm
    mlp: GatedMLP | SparseMLP
    end: Joint
    per_layer: PerLayerGate
    per_layer_norm: Norm

    @classmethod
    def of(cls, parts: Parts, at: str, *, rank: int, streams: int, **blocks: Any) -> Self:
        """With Gemma's names; ``rank`` is that of the low-rank residual."""
        low, high, hidden = "laurel_down", "laurel_up", parts.hidden_size
        return cls(
            at=at,
            altup=AltUp.of(parts, f"{at}.altup", streams),
            norm=parts.norm(f"{at}.input_layernorm", "rms_norm"),
            laurel=(
                Linear.whole(f"{at}.laurel.linear_left", low, hidden, rank),
                Linear.whole(f"{at}.laurel.linear_right", high, rank, hidden),
            ),
            laurel_norm=Joint(post=parts.norm(f"{at}.laurel.post_laurel_norm"), norm=None),
            middle=Joint(post=parts.norm(f"{at}.post_attention_layernorm"), norm=None),
            mlp_norm=parts.norm(f"{at}.pre_feedforward_layernorm", "rms_norm"),
            end=Joint(post=parts.norm(f"{at}.post_feedforward_layernorm"), norm=None),
            per_layer_norm=parts.norm(f"{at}.post_per_layer_input_norm", "rms_norm"),
            **blocks,
        )


def tree(config: Config) -> CausalLM:
    """The tree of a Gemma 3n checkpoint; of one that reads images and sound too, its text part."""
    whole = config.architecture == "Gemma3nForConditionalGeneration"
    config = text_part(config) if "text_config" in config.values else config
    inner = config.values.get("intermediate_size", 16384)
    sizes = config.counts("intermediate_size") if isinstance(inner, list) else ()
    parts = Parts(with_values(config, intermediate_size=max(sizes)) if sizes else config, FAMILY, kind=FULL)
    parts.names = Names(model="model.language_model") if whole else parts.names
    count, hidden = parts.num_layers, parts.hidden_size
    sizes, sparsity = sizes or (parts.inner_size,) * count, _sparsity(config, count)
    if (len(sizes), len(sparsity)) != (count, count):
        raise config.refuse(f"{count} layers, but {len(sizes)} sizes and {len(sparsity)} sparsities of their MLPs")
    kinds = layer_kinds(config, count, period=5)
    found = sources(config, kinds, config.count("num_kv_shared_layers", 15))
    streams, width = config.size("altup_num_inputs", 4), config.size("hidden_size_per_layer_input", 256)
    local = sliding_rope(config, parts.rope, config.positive("rope_local_base_freq", 10_000.0))
    by_kind = {SLIDING: (config.size("sliding_window", 512), local), FULL: (None, parts.rope)}
    attentions: list[SelfAttention] = []

    def layer(index: int, at: str) -> tuple[Spec, ...]:
        shares = None if found[index] is None else attentions[found[index] or 0].attend
        own: dict[str, Any] = {"shares": shares, "scale": 1.0, "value_norm": parts.eps}
        attentions.append(parts.attention(f"{at}.self_attn", *by_kind[kinds[index]], **own))
        blocks = {
            "attention": attentions[index],
            "mlp": _mlp(parts, f"{at}.mlp", sizes[index], sparsity[index]),
            "per_layer": PerLayerGate.of(at, hidden, width, index),
        }
        return (Gemma3nLayer.of(parts, at, rank=config.size("laurel_rank", 64), streams=streams, **blocks),)

    inputs = PerLayerInputs.of(parts, width)
    model = parts.names.model
    stream = AltUpStream(
        carried=(Carried(streams * hidden), Carried(inputs.table.size)),
        reads_tokens=True,
        inputs=inputs,
        spread=_projections(f"{model}.altup_projections", "altup_spread", hidden, streams),
        gather=_projections(f"{model}.altup_unembed_projections", "altup_gather", hidden, streams),
    )
    not_text = tuple(rf"(model\.)?{name}\..*" for name in _NOT_TEXT) if whole else ()
    unscaled = () if config.flag("altup_correct_scale", True) else (r".*\.altup\.correct_output_scale",)
    not_needed = (*ignored(f"{model}.{parts.names.layers}", found), *not_text, *unscaled)
    cap = config.nullable(config.positive, "final_logit_softcapping", 30.0)
    return parts.decoder(layer, scale=hidden**0.5, softcap=cap, stream=stream, ignored=not_needed)


def _mlp(parts: Parts, at: str, inner: int, sparsity: float) -> GatedMLP | SparseMLP:
    mlp = parts.mlp(at, inner, activation="gelu_tanh")
    if not sparsity:
        return mlp
    roles = (replace(each, role=f"sparse_{each.role}") for each in (mlp.gate_up, mlp.down))
    return SparseMLP(at=at, **dict(zip(("gate_up", "down"), roles, strict=True)), cutoff=NormalDist().inv_cdf(sparsity))


def _sparsity(config: Config, count: int) -> tuple[float, ...]:
    """The share of gates that are 0 in each layer's MLP; 0: all may be other."""
    if config.values.get("activation_sparsity_pattern") is not None:
        return config.numbers("activation_sparsity_pattern")
    sparse = _SPARSE_LAYERS if count > _SPARSE_LAYERS else 0
    return (_SPARSITY,) * sparse + (0.0,) * (count - sparse)


def _projections(at: str, role: str, hidden: int, streams: int) -> tuple[Linear, ...]:
    return tuple(Linear.whole(f"{at}.{index}", role, hidden, hidden) for index in range(streams - 1))
