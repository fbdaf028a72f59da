"""Which models the NumPy executor can run. It imports no torch."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from llmk.api import OK, ExecutorQuery, Verdict, no

DTYPES = ("float32", "float16")
"""Of caches."""
_READ: dict[str, frozenset[str]] = {
    "CausalLM": frozenset({"embed", "layers", "norm", "head", "max_model_len", "ignored", "ahead"})
    | {"default_model_len", "default_why"},
    "Embedding": frozenset({"vocab_size", "size", "scale", "scale_given", "aliases"}),
    "Residual": frozenset({"norm", "block", "post", "scale"}),
    "Norm": frozenset({"size", "eps", "offset", "centered", "weighted", "bias", "role"}),
    "SelfAttention": frozenset({"qkv", "attend", "out", "clip", "out_scale"}),
    "Attend": frozenset({"role", "heads", "kv_heads", "head_dim", "rope", "qk_norm", "norm_names", "norm_offset"})
    | {"norm_weighted", "window", "softcap", "scale"},
    "GatedMLP": frozenset({"gate_up", "down", "activation"}),
    "Linear": frozenset({"role", "size", "outputs", "bias", "cut", "quantizable", "partial", "aliases"}),
    "Head": frozenset({"vocab_size", "size", "tied", "bias", "scale", "softcap"}),
    "Rope": frozenset({"dim", "positions", "settings"}),
}
"""The fields of each spec that are followed: all others must have their defaults."""
_PARTS = {
    "CausalLM": ("embed", "norm", "head"),
    "Residual": ("norm", "block", "post"),
    "SelfAttention": ("qkv", "attend", "out"),
    "Attend": ("rope",),
    "GatedMLP": ("gate_up", "down"),
}


def supports(query: ExecutorQuery) -> Verdict:
    """Dense decoders in float32, on one device."""
    verdict = OK
    if query.tensor * query.pipeline > 1:
        verdict &= no("parallel", wanted=query.tensor * query.pipeline, found=1, hint="NumPy has one device")
    if query.dtype != "float32":
        verdict &= no("dtype", wanted=query.dtype, found="float32")
    if query.cache_dtype not in DTYPES:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=" or ".join(DTYPES))
    if query.tree is None:
        return verdict & no("no_tree", wanted="a tree of specs", found="none")
    return verdict & _spec(query.tree)


def _spec(spec: Any) -> Verdict:
    """Whether a spec, and all that it is made of, is followed."""
    kind = type(spec).__name__
    if kind not in _READ:
        return no("spec", wanted=kind, found="not built")
    verdict = OK
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name not in _READ[kind] | {"at"} and value != field.default:
            verdict &= no("option", wanted=f"{kind}.{field.name} = {value!r:.60}", found="not built")
    if kind == "GatedMLP" and spec.activation not in ("silu", "gelu_tanh"):
        verdict &= no("activation", wanted=spec.activation, found="silu or gelu_tanh")
    parts = [getattr(spec, name) for name in _PARTS.get(kind, ())]
    if kind == "CausalLM":
        parts += [part for layer in spec.layers for part in layer]
    for part in parts:
        if part is not None:
            verdict &= _spec(part)
    return verdict
