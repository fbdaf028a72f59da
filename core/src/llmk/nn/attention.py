"""Attention over the paged cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.api import AttentionBackend, AttentionQuery, CacheSpec, FullAttentionCache, LatentCache, SlidingWindowCache
from llmk.nn.context import StepContext
from llmk.nn.layer import Layer, Parameter
from llmk.nn.norm import HeadNorms, HeadsNorm

if TYPE_CHECKING:
    from llmk.api import StoredTensor
    from llmk.nn.build import Build


class Attention(Layer):
    """Applies Q and K norms (if the model has them) and RoPE, writes K and V to the paged cache, and attends, all in
    one op.

    Args:
        prefix: the attention module's name in the checkpoint.
        index: position of this layer's cache in ``StepContext.caches``.
        num_heads, num_kv_heads: the model's totals; tensor-parallel ranks share them.
        cos_sin: float32 ``[positions, rotary_dim]``, see ``llmk.reference.rope.rotation``; shared by all layers of a
            kind. ``None``: queries and keys are not rotated (the op's facts have ``no_rope``).
        qk_norm_eps: epsilon of the Q and K norms; ``None``: the model has none.
        norm_offset: of the Q and K norms, as in :func:`llmk.reference.norms.rms_norm`.
        whole_qk_norm: whether the Q and K norms are over all heads together, not over each head by itself (OLMo 2,
            arXiv:2501.00656). They are then ops of their own, at ``norm_sites``.
        own_qk_norms: whether each head has Q and K norms of its own (:class:`~llmk.nn.norm.HeadNorms`), at
            ``norm_sites``, too.
        value_dim: elements of a head's value; ``None``: ``head_dim``.
        sinks: whether each head has a sink, a learned logit in the softmax's denominator (GPT-OSS, arXiv:2508.10925).
        norm_names: the checkpoint's names of the Q and K norms.
        given: options of the op that are the same in every step: ``neighbours`` and ``norm_after_rope`` where they are
            set (:class:`llmk.reference.composites.WriteOptions`), and the ``slopes`` of this rank's heads (ALiBi; the
            op's facts have ``alibi``).
        axes: int64 ``[rotary_dim / 2]``, the axis of positions by which each pair is rotated
            (:func:`llmk.reference.rope.rotation.axes_of_pairs`; the op's facts have ``rotary_sections``). ``None``:
            positions have one axis.
        sinks_name: the checkpoint's name of the sinks.
        query_scale: float32 ``[positions]``, a factor of queries; ``None``: they have none. Not with Q norms.
        norm_weighted: whether the Q and K norms have weights.
        shared_kv: the name of the attention module that wrote the keys and values to the same cache (the op's facts
            have ``shared_kv``); empty: this one does.
        keys_as_values: whether values are the keys, as they are before their norm and rotation.
        value_norm: norms each head's value; ``None``: values are not normed.
    """

    _q_weight: Tensor | None = None
    _k_weight: Tensor | None = None

    def __init__(
        self,
        build: Build,
        prefix: str,
        *,
        index: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        cos_sin: Tensor | None,
        qk_norm_eps: float | None = None,
        norm_offset: float = 0.0,
        whole_qk_norm: bool = False,
        own_qk_norms: bool = False,
        value_dim: int | None = None,
        sinks: bool = False,
        norm_names: tuple[str, str] = ("q_norm", "k_norm"),
        given: Mapping[str, Any] | None = None,
        axes: Tensor | None = None,
        sinks_name: str = "sinks",
        query_scale: Tensor | None = None,
        norm_weighted: bool = True,
        shared_kv: str = "",
        keys_as_values: bool = False,
        value_norm: Callable[[Tensor], Tensor] | None = None,
        site: str = "attention",
        op_site: str = "attention.whole",
        norm_sites: tuple[str, str] = ("q_norm", "k_norm"),
    ) -> None:
        self.site, self._index = site, index
        self._op = build.kernel("op", op_site, attention=site)
        counts = (num_heads, num_kv_heads, num_kv_heads)[: 1 if shared_kv else 2 if keys_as_values else 3]
        self._heads = tuple(map(build.parallel.count, counts))
        self._head_dim, self._value_dim, self._value_norm = head_dim, value_dim, value_norm
        self._cos_sin, self._query_scale = cos_sin, query_scale
        self._eps = qk_norm_eps or 0.0
        self._build, self._cache_prefix = build, shared_kv or prefix
        self._scaled = getattr(build.plan.choice("attention", site).query, "cache_dtype", "").startswith("float8")
        self._options: dict[str, Any] = {**({"scales": (1.0, 1.0)} if self._scaled else {}), **(given or {})}
        self._num_axes = 0
        if axes is not None:
            self._num_axes, self._options["axes"] = int(axes.max()) + 1, axes
        self._scales: dict[int, Parameter] = {}
        self._norms: list[Parameter] = []
        self._norms_apart: list[Callable[[Tensor], Tensor]] = []
        names = [f"{prefix}.{name}" for name in norm_names[: 1 if shared_kv else 2]] if qk_norm_eps is not None else []
        if whole_qk_norm or own_qk_norms:
            make: Any = HeadNorms if own_qk_norms else partial(HeadsNorm, offset=norm_offset)
            for name, heads, norm_site in zip(names, (num_heads, num_kv_heads), norm_sites, strict=False):
                self._norms_apart.append(make(build, name, heads, head_dim, self._eps, site=norm_site))
        elif norm_weighted:
            self._norms += [Parameter(build, [f"{name}.weight"], [head_dim], dummy_std=None) for name in names]
        elif names:
            self._q_weight = self._k_weight = torch.ones(head_dim, dtype=build.dtype, device=build.device)
        if self._norms and norm_offset:
            self._options["norm_offset"] = norm_offset
        own: dict[str, Any] = {"dtype": torch.float32, "kept_rows": [[build.parallel.share(num_heads)]]}
        self._sinks = [Parameter(build, [f"{prefix}.{sinks_name}"], [num_heads], **own)] if sinks else []
        super().__init__(build, [*self._norms, *self._sinks])

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """Adds parameters for the K and V scales of an fp8 cache where the checkpoint stores them, even if the cache is
        not fp8."""
        for i, names in enumerate(self._build.cache_scales):
            for name in (f"{self._cache_prefix}.{name}" for name in names):
                if any(tensor.name == name for tensor in stored.get(name.rpartition(".")[0], ())):
                    self._scales[i] = Parameter(self._build, [name], [1], dtype=torch.float32)
        self.parameters = (*self._norms, *self._sinks, *self._scales.values())

    def finish(self) -> None:
        if weights := [parameter.take() for parameter in self._norms]:
            self._q_weight, self._k_weight = weights[0], weights[-1]
        stored = {i: parameter.take().item() for i, parameter in self._scales.items()}
        if self._scaled:
            self._options["scales"] = (stored.get(0, 1.0), stored.get(1, 1.0))
        for parameter in self._sinks:
            self._options["sinks"] = parameter.take()

    def __call__(self, qkv: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, (heads + 2 * kv_heads) * head_dim]`` to ``[tokens, heads * head_dim]``; head counts are this
        rank's. Values have ``value_dim`` instead."""
        if self._value_dim is None:
            heads = qkv.view(qkv.shape[0], -1, self._head_dim)
            q, *own = heads.split_with_sizes(self._heads, 1)
        else:
            widths = (self._head_dim, self._head_dim, self._value_dim)[: len(self._heads)]
            sizes = [count * width for count, width in zip(self._heads, widths, strict=True)]
            parts = zip(qkv.split_with_sizes(sizes, 1), widths, strict=True)
            q, *own = (part.unflatten(1, (-1, width)) for part, width in parts)
        k, v = (own[0], own[-1]) if own else (None, None)
        return self._attend(q, k, v, step)

    def _attend(self, q: Tensor, k: Tensor | None, v: Tensor | None, step: StepContext) -> Tensor:
        if self._norms_apart:
            q = self._norms_apart[0](q)
            k = None if k is None else self._norms_apart[1](k)
        if self._value_norm is not None and v is not None:
            v = self._value_norm(v)
        if self._query_scale is not None:
            q = (q * self._query_scale[step.positions, None, None]).to(q.dtype)
        cache, meta = step.caches[self._index], step.meta[self._index]
        norms = self._q_weight, self._k_weight, self._eps
        positions = self._axes_of(step.rotary) if self._num_axes else step.positions
        out: Tensor = self._op(q, k, v, *norms, positions, self._cos_sin, cache, meta, **self._options)
        return out.flatten(1)

    def _axes_of(self, rotary: Tensor) -> Tensor:
        """int64 ``[tokens, axes]``, with all axes that the layer reads."""
        return rotary.expand(max(len(rotary), self._num_axes), -1).T


class GatedAttention(Attention):
    """Attention with an output gate per head (arXiv:2505.06708). The query projection returns, for each head, the query
    followed by the gate. The op at ``gate_site`` applies the gate; other arguments are those of :class:`Attention`."""

    def __init__(self, build: Build, prefix: str, *, gate_site: str = "attention_gate", **options: Any) -> None:
        super().__init__(build, prefix, **options)
        self._gate = build.kernel("op", gate_site)

    def __call__(self, qkv: Tensor, step: StepContext) -> Tensor:
        """Maps ``[tokens, (2 * heads + 2 * kv_heads) * head_dim]`` to ``[tokens, heads * head_dim]``."""
        num_heads, *others = self._heads
        heads = qkv.view(qkv.shape[0], -1, self._head_dim)
        q_and_gate, k, v = heads.split_with_sizes((2 * num_heads, *others), 1)
        # Kernels need contiguous heads.
        q, gate = q_and_gate.unflatten(1, (num_heads, 2)).transpose(1, 2).contiguous().unbind(1)
        out: Tensor = self._gate(self._attend(q, k, v, step), gate.flatten(1))
        return out


def cache_spec(build: Build, site: str) -> CacheSpec:
    """The cache spec of the layers at an attention site. Its size comes from the cache layout of the site's backend."""
    query = build.plan.choice("attention", site).query
    assert isinstance(query, AttentionQuery)
    size = page_bytes(build.attention(site))
    if query.latent_dim:
        return LatentCache(query.block_size, size)
    if query.sliding_window:
        return SlidingWindowCache(query.block_size, size, query.sliding_window)
    return FullAttentionCache(query.block_size, size)


def page_bytes(backend: AttentionBackend) -> int:
    """Bytes per block that a backend needs for one layer."""
    layout = backend.cache_layout(1)
    size: int = torch.Size(layout.shape).numel() * getattr(torch, layout.dtype).itemsize
    return size
