"""Builds the layers of a lowered model, each from its spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from llmk import tree
from llmk.api import CacheSpec, OpQuery, PluginError, RowsCache
from llmk.nn.adapted_linear import AdaptedLinear
from llmk.nn.attention import Attention, cache_spec
from llmk.nn.blocks.compressed_attention import CompressedAttention
from llmk.nn.blocks.mlp import MLP, GatedMLP
from llmk.nn.blocks.moe import MoE
from llmk.nn.blocks.parallel import Parallel
from llmk.nn.blocks.scan_mixer import ScanMixer
from llmk.nn.blocks.selected_attention import Indexer, SelectedAttention
from llmk.nn.blocks.selective_mixer import ConvMixer, SelectiveMixer
from llmk.nn.blocks.self_attention import LatentAttention, SelfAttention
from llmk.nn.blocks.sublayer import Fused, Join, Normed, NormWeight, make_joint
from llmk.nn.latent import LatentAttention as LatentLayer
from llmk.nn.linear import Linear
from llmk.nn.moe import Experts, InterleavedExperts, TransposedExperts
from llmk.nn.norm import LayerNorm, RMSNorm
from llmk.nn.recurrent.lightning import LightningAttention
from llmk.nn.recurrent.mixers import GatedDeltaNet, StateSpaceMixer
from llmk.nn.recurrent.selective_scan import SelectiveScan, ShortConv
from llmk.reference.rope.rotation import axes_of_pairs, cos_sin_cache

if TYPE_CHECKING:
    from llmk.nn.build import Build

A = TypeVar("A", bound=Attention)
R = TypeVar("R", StateSpaceMixer, GatedDeltaNet)

BLOCKS: dict[type[tree.Spec], Callable[..., Any]] = {
    tree.SelfAttention: SelfAttention,
    tree.LatentAttention: LatentAttention,
    tree.SelectedAttention: SelectedAttention,
    tree.CompressedAttention: CompressedAttention,
    tree.GatedMLP: GatedMLP,
    tree.MLP: MLP,
    tree.MoE: MoE,
    tree.Parallel: Parallel,
    tree.ScanMixer: ScanMixer,
    tree.ConvMixer: ConvMixer,
    tree.SelectiveMixer: SelectiveMixer,
}
"""What builds the blocks of :mod:`llmk.tree`. Other specs name theirs (:attr:`llmk.tree.Spec.implementation`)."""


class Builder:
    """Builds layers by their specs. What builds a spec of a family's own gets this, and builds the parts with it.

    Args:
        sites: those of the whole model.

    Attributes:
        caches: layer index, site and cache spec of everything that this stage's layers keep between steps, in the order
            in which they are built.
        layer: index of the layer that is being built.
        indexer: the last one that was built, whose tokens later layers may take.
    """

    indexer: Indexer | None = None

    def __init__(self, build: Build, sites: tree.Sites) -> None:
        self.build = build
        self.caches: list[tuple[int, str, CacheSpec]] = []
        self.layer = 0
        self._sites = sites
        self._linears: dict[tuple[int, bool], Linear] = {}
        self._cache_of: dict[int, int] = {}
        self.cos_sin: Callable[..., Tensor] = cache(self._cos_sin)
        """The table of a :class:`~llmk.tree.Rope`, and with ``back`` the one that turns against the angles, which a
        layer must not copy: their rows are made as requests get longer."""
        self._scales: Callable[[tree.QueryScale], Tensor] = cache(self._query_scales)

    def site(self, spec: tree.Spec) -> str:
        """The name of the attention, linear, expert or state site of a spec."""
        return self._sites.name(spec)

    def ops(self, spec: tree.Spec) -> list[str]:
        """The names of the op sites of a spec."""
        return self._sites.ops(spec)

    def op(self, spec: tree.Spec) -> str:
        """The name of the only op site of a spec."""
        (site,) = self._sites.ops(spec)
        return site

    def kernel(self, spec: tree.Spec, linear: Linear | None = None) -> Callable[..., Any]:
        """The kernel of the only op site of a spec; ``linear``: the layer whose GEMM is part of it, if any.

        Raises:
            PluginError: that layer has adapters, which such an op would leave out.
        """
        if isinstance(linear, AdaptedLinear):
            raise PluginError(
                f"the op of {type(spec).__name__} at {spec.at!r} computes a linear layer that has adapters",
                hint="where Linear.adapters is set, bind an op without the layer, and call the layer by itself",
            )
        return self.build.kernel("op", self.op(spec), linear=linear.site if linear else "")

    def spanning(self, spec: tree.Block, linear: Linear) -> Callable[..., Tensor] | None:
        """The op that spans the last own op of a block and the linear layer after it, where the plan has one. It is
        called with the arguments of the first, and the layer's weight and bias."""
        site = f"{self.ops(spec)[-1]}+{linear.site}"
        if spec.follower is None or not self.build.plan.has("op", site):
            return None
        return linear.reduced(self.build.kernel("op", site, linear=linear.site))

    def keep(self, site: str, spec: CacheSpec) -> int:
        """Registers what a layer keeps between steps; returns its position in ``StepContext.caches``."""
        if self.build.here:
            self.caches.append((self.layer, site, spec))
        return len(self.caches) - 1

    def linear(self, spec: tree.Linear) -> Linear:
        """A linear layer; one that several blocks of a stage use is built once."""
        key = id(spec), self.build.here
        if key not in self._linears:
            room = spec.adapters
            kind = Linear if room is None else partial(AdaptedLinear, room=room, adapters_site=self.op(spec))
            self._linears[key] = kind(
                self.build,
                spec.at,
                spec.size,
                tuple(part.rows for part in spec.outputs),
                site=self.site(spec),
                parts=tuple(part.name for part in spec.outputs if part.name),
                bias=spec.bias,
                aliases=spec.aliases,
                parallel=spec.cut,
                units=tuple(part.units for part in spec.outputs),
                partial=spec.partial,
                groups=spec.groups,
            )
        return self._linears[key]

    def attention(self, spec: tree.Attend, kind: type[A], **options: Any) -> A:
        """Attention of a class, with further ``options`` of that class."""
        op_site, *norm_sites = self.ops(spec)
        if spec.value_norm is not None:
            size = spec.value_dim or spec.head_dim
            options["value_norm"] = RMSNorm(
                self.build, "", size, spec.value_norm, site=norm_sites.pop(), weighted=False
            )
        if norm_sites:
            options["norm_sites"] = tuple(norm_sites)
        given: dict[str, Any] = {"neighbours": True} if spec.rope is not None and spec.rope.neighbours else {}
        if spec.norm_after_rope and spec.rope is not None and spec.qk_norm is not None:
            given["norm_after_rope"] = True
        if spec.slopes:
            own = spec.slopes[self.build.parallel.share(spec.heads)]
            given["slopes"] = torch.tensor(own, dtype=torch.float32, device=self.build.device)
        if spec.rope is not None and spec.rope.sections:
            axes = axes_of_pairs(spec.rope.sections, interleaved=spec.rope.interleaved)
            options["axes"] = axes.to(self.build.device)
        return kind(
            self.build,
            spec.at,
            index=self.attention_cache(spec),
            num_heads=spec.heads,
            num_kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            cos_sin=None if spec.rope is None else self.cos_sin(spec.rope),
            qk_norm_eps=spec.qk_norm,
            whole_qk_norm=spec.whole_qk_norm,
            own_qk_norms=spec.own_qk_norms,
            norm_offset=spec.norm_offset,
            norm_names=spec.norm_names,
            given=given,
            value_dim=spec.value_dim,
            sinks=spec.sinks,
            sinks_name=spec.sinks_name,
            query_scale=None if spec.query_scale is None else self.query_scales(spec),
            norm_weighted=spec.norm_weighted,
            shared_kv="" if spec.shares is None else spec.shares.at,
            site=self.site(spec.shares or spec),
            op_site=op_site,
            **options,
        )

    def query_scales(self, spec: tree.Attend) -> Tensor:
        """The factor of queries at each position, float32.

        Raises:
            PluginError: the op norms queries, after which they would be scaled.
        """
        scale = spec.query_scale
        assert scale is not None
        if spec.qk_norm is not None and not spec.norms_apart:
            raise PluginError(
                f"Attend at {spec.at!r} has norms of queries and a factor of them",
                hint="leave out one of them; no op has both",
            )
        return self._scales(scale)

    def _query_scales(self, scale: tree.QueryScale) -> Tensor:
        positions = torch.arange(self.build.max_model_len, device=self.build.device)
        return 1 + scale.beta * torch.log1p((positions + scale.offset).div(scale.period, rounding_mode="floor"))

    def latent_attention(self, spec: tree.LatentAttend) -> LatentLayer:
        """Attention over latent vectors."""
        site, index = self.site(spec), self.attention_cache(spec)
        own: dict[str, Any] = {"index": index, "site": site, "op_site": self.op(spec), "norm_eps": spec.eps}
        own["norm_scale"] = spec.latent_scale
        cos_sin = None if spec.rope is None else self.cos_sin(spec.rope)
        return LatentLayer(self.build, spec.at, spec.shape, cos_sin=cos_sin, **own)

    def rows_cache(self, spec: tree.SelectedAttend | tree.CompressedAttend) -> int:
        """The position in ``StepContext.caches`` of a layer that keeps rows of each token."""
        rows = spec.site(self.build.plan.dtype)
        query = self.build.plan.choice("op", self.ops(spec)[0]).query
        assert isinstance(query, OpQuery)
        return self.keep(self.site(spec), RowsCache.of(query.facts["block_size"], rows.tensors))

    def norm(self, spec: tree.Norm) -> RMSNorm | LayerNorm:
        """A norm that is not part of a residual stream."""
        if spec.centered:
            return self.layer_norm(spec, self.op(spec))
        own: dict[str, Any] = {"site": self.op(spec), "offset": spec.offset, "weighted": spec.weighted}
        return RMSNorm(self.build, spec.at, spec.size, spec.eps, **own)

    def layer_norm(self, spec: tree.Norm, site: str) -> LayerNorm:
        """A norm that subtracts the mean, by the op at ``site``."""
        own: dict[str, Any] = {"offset": spec.offset, "weighted": spec.weighted, "bias": spec.bias}
        return LayerNorm(self.build, spec.at, spec.size, spec.eps, site=site, **own)

    def attention_cache(self, spec: tree.Attend | tree.LatentAttend) -> int:
        """The position of an attention layer's cache in ``StepContext.caches``; that of the layer whose keys and values
        it shares, if it does."""
        owner = getattr(spec, "shares", None) or spec
        if id(owner) not in self._cache_of:
            site = self.site(owner)
            self._cache_of[id(owner)] = self.keep(site, cache_spec(self.build, site))
        return self._cache_of[id(owner)]

    def experts(self, spec: tree.Experts) -> Experts:
        """The experts of a block."""
        kind = InterleavedExperts if spec.interleaved else TransposedExperts if spec.transposed else Experts
        facts = replace(spec.facts, site=self.site(spec))
        further = (spec.aliases, spec.selection_bias, spec.stacked, spec.output_scale)
        return kind(self.build, spec.at, facts, spec.names, *further)

    def state_space(self, spec: tree.Recurrent) -> StateSpaceMixer:
        """The selective scan."""
        assert isinstance(spec.sizes, tree.StateSpaceSizes)
        return self._recurrent(StateSpaceMixer, spec, spec.sizes)

    def delta_net(self, spec: tree.Recurrent) -> GatedDeltaNet:
        """The gated delta rule."""
        assert isinstance(spec.sizes, tree.DeltaNetSizes)
        return self._recurrent(GatedDeltaNet, spec, spec.sizes)

    def lightning(self, spec: tree.Recurrent, decays: Sequence[float]) -> LightningAttention:
        """Linear attention with constant log ``decays``, one for each head."""
        assert isinstance(spec.sizes, tree.LightningSizes)
        own: dict[str, Any] = {"index": len(self.caches), "op_site": self.op(spec)}
        layer = LightningAttention(self.build, spec.sizes, decays, **own)
        self.keep(self.site(spec), layer.cache_spec)
        return layer

    def short_conv(self, spec: tree.Recurrent) -> ShortConv:
        """A short convolution of gated channels."""
        assert isinstance(spec.sizes, tree.ShortConvSizes)
        layer = ShortConv(self.build, spec.at, spec.sizes, index=len(self.caches), op_site=self.op(spec))
        self.keep(self.site(spec), layer.cache_spec)
        return layer

    def selective_scan(self, spec: tree.Recurrent) -> SelectiveScan:
        """Mamba-1's convolution and scan."""
        assert isinstance(spec.sizes, tree.SelectiveScanSizes)
        op_site, conv_site = self.ops(spec)
        own: dict[str, Any] = {"index": len(self.caches), "op_site": op_site, "conv_site": conv_site}
        layer = SelectiveScan(self.build, spec.at, spec.sizes, **own)
        self.keep(self.site(spec), layer.cache_spec)
        return layer

    def _recurrent(self, kind: Callable[..., R], spec: tree.Recurrent, sizes: tree.RecurrentSizes) -> R:
        own = {"index": len(self.caches), "eps": spec.eps, "op_site": self.op(spec)}
        layer = kind(self.build, spec.at, sizes, **own)
        self.keep(self.site(spec), layer.cache_spec)
        return layer

    def joint(self, spec: tree.Joint) -> Join:
        """The sums and the norms of a joint."""
        return make_joint(self, spec)

    def block(self, spec: tree.Spec, *, fused: bool = False) -> Any:
        """A block; ``fused``: its entry is part of the op before it."""
        if spec.implementation:
            return _load(spec.implementation)(self, spec)
        return BLOCKS[type(spec)](self, spec, fused=fused)

    def sublayer(self, spec: tree.Sublayer | tree.Spec) -> Callable[..., Any]:
        """A sublayer, or a part of a layer that is not a sublayer of a residual stream."""
        if not isinstance(spec, tree.Sublayer):
            part: Callable[..., Any] = self.block(spec)
            return part
        joint = spec.joint
        if joint.entry is None:
            return Normed(self.joint(joint), self.block(spec.block))
        assert joint.norm is not None
        norm, linear = NormWeight(self.build, joint.norm), self.linear(joint.entry.linear)
        options = joint.options | dict(joint.entry.options)
        op = self.kernel(joint, linear)
        op = partial(op, **options) if options else op
        return Fused(op, norm, linear, self.block(spec.block, fused=True))

    def stream(self, spec: tree.Stream) -> Any:
        """What starts and ends a stream."""
        return _load(spec.implementation)(self, spec)

    def _cos_sin(self, rope: tree.Rope, back: bool = False) -> Tensor:
        own, build = rope.parameters, self.build
        longest = build.max_model_len or rope.max_model_len

        def made(rows: range) -> Tensor:
            options: dict[str, Any] = {"trained_positions": rope.positions, "rows": rows}
            table = cos_sin_cache(own, rope.dim, longest, own["rope_theta"], **options)
            if back:
                table[:, table.shape[1] // 2 :].neg_()
            return table

        return build.position_table(made, longest)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
