"""Qwen3-Next: gated delta rule in most layers, gated attention in the others, routed experts and a shared one
(arXiv:2412.06464, arXiv:2505.06708)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from llmk.api import CacheSpec, Checkpoint
from llmk.nn import AddRMSNorm, Build, GatedAttention, GatedDeltaNet, GatedMLP, Linear, MoE, StepContext
from llmk.nn.attention import cache_spec
from llmk_models.decoder import Decoder, Normed, SelfAttention
from llmk_models.qwen3_next_facts import SHARED, Qwen3NextShape, shape_of


def make_norm(build: Build, name: str, shape: Qwen3NextShape) -> AddRMSNorm:
    """A norm with ``weight + 1``."""
    decoder, sites = shape.moe.decoder, {"site": "add_rms_norm_plus_one", "first_site": "rms_norm_plus_one"}
    return AddRMSNorm(build, name, decoder.hidden_size, decoder.norm_eps, **sites)


class GatedSelfAttention(SelfAttention):
    """Gated attention with its projections. ``keeps`` is its cache's site and spec."""

    kind = GatedAttention

    def __init__(self, build: Build, shape: Qwen3NextShape, index: int, cos_sin: Tensor) -> None:
        super().__init__(build, shape.moe.decoder, index, cos_sin, shape.qkv_sizes)
        site = self.attention.site
        self.keeps: tuple[str, CacheSpec] = (site, cache_spec(build, site))


class DeltaAttention:
    """The gated delta rule with its projections. The projections are interleaved by key head; the rule takes queries,
    keys and values separately. ``keeps`` is its cache's site and spec."""

    def __init__(self, build: Build, shape: Qwen3NextShape, index: int) -> None:
        prefix, decoder, sizes = f"model.layers.{index}.linear_attn", shape.moe.decoder, shape.delta_net
        hidden, values = decoder.hidden_size, sizes.num_heads * sizes.value_dim
        mixed, scalars = shape.in_sizes
        cut: dict[str, Any] = {"parallel": "column", "units": (sizes.units,)}
        self.into = Linear(build, f"{prefix}.in_proj_qkvz", hidden, (mixed,), site="delta_in", **cut)
        self.scalars = Linear(build, f"{prefix}.in_proj_ba", hidden, (scalars,), site="delta_scalars", **cut)
        place = build.parallel.local_index(index, decoder.num_layers)
        self.net = GatedDeltaNet(build, prefix, sizes, index=place, eps=decoder.norm_eps)
        self.out = Linear(build, f"{prefix}.out_proj", values, (hidden,), site="delta_out", parallel="row")
        self.keeps: tuple[str, CacheSpec] = (sizes.site, self.net.cache_spec)
        self._heads = (build.parallel.count(sizes.num_heads), sizes.value_dim)
        self._key_heads = build.parallel.count(sizes.num_key_heads)
        shared_by = sizes.num_heads // sizes.num_key_heads
        self._kinds = (*[sizes.key_dim] * 2, *[shared_by * sizes.value_dim] * 2)

    def __call__(self, x: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        q, k, v, gate = self.into(x).unflatten(1, (self._key_heads, -1)).split_with_sizes(self._kinds, 2)
        b, a = self.scalars(x).unflatten(1, (self._key_heads, 2, -1)).unbind(2)
        mixed = torch.cat((q.flatten(1), k.flatten(1), v.flatten(1)), 1)
        gate = gate.reshape(-1, *self._heads)
        return self.out(self.net(mixed, gate, a.flatten(1), b.flatten(1), step))


class SharedExpert:
    """The shared expert, scaled by a gate with one value per token. With tensor parallelism, each rank returns its
    addend of the sum."""

    def __init__(self, build: Build, shape: Qwen3NextShape, prefix: str) -> None:
        hidden = shape.moe.decoder.hidden_size
        self.mlp = GatedMLP(
            build,
            f"{prefix}.shared_expert",
            hidden,
            shape.shared_size,
            site=f"{SHARED}gate_up_silu",
            gate_up_site=f"{SHARED}gate_up",
            down_site=f"{SHARED}down",
            partial=True,
        )
        self.gate = Linear(build, f"{prefix}.shared_expert_gate", hidden, (1,), site=f"{SHARED}gate")
        self._scale = build.kernel("op", f"{SHARED}sigmoid_gate")

    def __call__(self, x: Tensor) -> Tensor:
        """Maps ``[tokens, hidden]`` to ``[tokens, hidden]``."""
        out: Tensor = self._scale(self.mlp(x), self.gate(x))
        return out


class Qwen3NextLayer:
    """Norm, attention or delta rule, norm, feed-forward."""

    def __init__(
        self,
        build: Build,
        shape: Qwen3NextShape,
        index: int,
        cos_sin: Tensor,
        make_mlp: Callable[[int, AddRMSNorm], Normed],
    ) -> None:
        prefix = f"model.layers.{index}"
        norm = make_norm(build, f"{prefix}.input_layernorm", shape)
        mixer: GatedSelfAttention | DeltaAttention = (
            GatedSelfAttention(build, shape, index, cos_sin)
            if shape.attends[index]
            else DeltaAttention(build, shape, index)
        )
        self.keeps = mixer.keeps
        self.mixer = Normed(norm, mixer)
        self.mlp = make_mlp(index, make_norm(build, f"{prefix}.post_attention_layernorm", shape))

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor]:
        """As :class:`~llmk_models.stack.Block`."""
        return self.mlp(*self.mixer(x, residual, step))


class Qwen3NextModel(Decoder):
    """Follows ``llmk.nn.Model``. The heads that predict several tokens at once (``mtp``) are not used."""

    ignored_weights = (*Decoder.ignored_weights, r"mtp\..*")

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        self._whole = shape_of(checkpoint)
        self._specs: list[tuple[int, str, CacheSpec]] = []
        super().__init__(build, self._whole.moe.decoder)

    def make_layer(self, index: int, cos_sin: Tensor) -> Qwen3NextLayer:
        """A layer with attention or with the delta rule."""
        layer = Qwen3NextLayer(self.build, self._whole, index, cos_sin, self.make_mlp)
        if self.build.here:
            self._specs.append((index, *layer.keeps))
        return layer

    def make_mlp(self, index: int, norm: AddRMSNorm) -> Normed:
        """Routed and shared experts, or the dense block in layers without experts."""
        prefix, decoder = f"model.layers.{index}.mlp", self.shape
        if not self._whole.moe.sparse[index]:
            inner = decoder.intermediate_size
            return Normed(norm, GatedMLP(self.build, prefix, decoder.hidden_size, inner, bias=decoder.mlp_bias))
        shared = SharedExpert(self.build, self._whole, prefix)
        return Normed(norm, MoE(self.build, prefix, self._whole.moe.experts, shared=shared))

    def make_norm(self) -> AddRMSNorm:
        """The final norm, also with ``weight + 1``."""
        return make_norm(self.build, "model.norm", self._whole)

    def cache_specs(self) -> list[tuple[int, str, CacheSpec]]:
        return self._specs
