"""Which models the executor can run: decoders of attention and gated MLPs, by every field of their trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from llmk.api import ExecutorQuery, Verdict, no

SERVED: dict[str, frozenset[str]] = {
    name: frozenset(("at", *names.split()))
    for name, names in {
        "CausalLM": "embed layers norm head max_model_len default_model_len default_why ignored",
        "Residual": "norm block post scale",
        "SelfAttention": "qkv attend out",
        "Attend": "role heads kv_heads head_dim rope qk_norm norm_names norm_offset window softcap scale",
        "GatedMLP": "gate_up down activation",
        "Linear": "role size outputs bias cut quantizable partial aliases",
        "Part": "rows units name",
        "Norm": "size eps offset role",
        "Embedding": "vocab_size size scale scale_given aliases",
        "Head": "vocab_size size tied bias scale softcap",
        "Rope": "dim positions settings",
    }.items()
}
"""By kind of spec, the fields that are followed. Others must have their defaults."""
ACTIVATIONS = ("silu", "gelu_tanh")
CACHE_DTYPES = ("float32", "float16")


def can_run(query: ExecutorQuery) -> Verdict:
    """All reasons why not."""
    found: list[tuple[str, object, object]] = []
    if query.platform.device_type != "cpu":
        found.append(("platform", "cpu", query.platform.label))
    if query.tensor * query.pipeline != 1:
        found.append(("ranks", 1, query.tensor * query.pipeline))
    if query.dtype != "float32":
        found.append(("dtype", "float32", query.dtype))
    if query.cache_dtype not in CACHE_DTYPES:
        found.append(("cache_dtype", " or ".join(CACHE_DTYPES), query.cache_dtype))
    if query.tree is None:
        found.append(("tree", "a model family that gives its tree", "none"))
    else:
        found += [("model", "attention and gated MLPs", what) for what in sorted(set(unserved(query.tree)))]
    verdict = Verdict(True)
    for code, wanted, is_there in found:
        verdict &= no(code, wanted=wanted, found=is_there)
    return verdict


def unserved(value: Any) -> Iterator[str]:
    """The kinds of specs in a tree that are not known, and fields that say what is not done."""
    if isinstance(value, tuple):
        for each in value:
            yield from unserved(each)
    elif is_dataclass(value):
        kind = type(value).__name__
        if kind not in SERVED:
            yield kind
            return
        for field in fields(value):
            of_field = getattr(value, field.name)
            if field.name in SERVED[kind]:
                yield from unserved(of_field)
            elif field.default is MISSING or of_field != field.default:
                yield f"{kind}.{field.name}"
        activation = getattr(value, "activation", ACTIVATIONS[0])
        if activation not in ACTIVATIONS:
            yield f"{kind}.activation {activation}"
