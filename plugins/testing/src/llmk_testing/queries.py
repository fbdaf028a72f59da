"""The queries of the suites: ordinary sizes first, then unusual ones; by label, a function that makes the query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from llmk.api import AttentionQuery, LinearQuery, MoEQuery, Query
from llmk.reference.moe import MoEExamples
from llmk_testing.specialized import attention_options, combined, first_served

Q = TypeVar("Q", bound=Query)

_HEADS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("8 heads over 2 of 64, blocks of 16", {"shape": (8, 2, 64, 16)}),
    ("4 heads over 4 of 128, blocks of 16", {"shape": (4, 4, 128, 16)}),
    ("6 heads over 2 of 24, blocks of 4", {"shape": (6, 2, 24, 4)}),
    ("7 heads over 1 of 40, blocks of 1", {"shape": (7, 1, 40, 1)}),
    ("2 heads over 1 of 256, blocks of 32", {"shape": (2, 1, 256, 32)}),
    ("32 heads over 1 of 16, blocks of 8", {"shape": (32, 1, 16, 8)}),
    ("3 heads over 3 of 80, blocks of 5", {"shape": (3, 3, 80, 5)}),
    ("6 heads over 3 of 96, blocks of 64", {"shape": (6, 3, 96, 64)}),
    ("4 heads over 2 of 192, blocks of 128", {"shape": (4, 2, 192, 128)}),
    ("a window of 21", {"sliding_window": 21}),
    ("a window of one block", {"sliding_window": 16}),
    ("a window of 1", {"sliding_window": 1}),
    ("a window of 1,024", {"sliding_window": 1024, "shape": (4, 2, 64, 16)}),
    ("chunks of 21", {"sliding_window": 21, "chunked": True}),
    ("chunks of 128", {"sliding_window": 128, "chunked": True, "shape": (4, 2, 64, 16)}),
    ("chunks of 1,100", {"sliding_window": 1100, "chunked": True, "shape": (2, 1, 32, 16)}),
    ("a soft cap", {"softcap": 1.5}),
    ("sinks", {"sinks": True}),
    ("window, soft cap and sinks", {"sliding_window": 33, "softcap": 2.0, "sinks": True, "shape": (6, 2, 64, 8)}),
    ("slopes", {"alibi": True}),
    (
        "slopes, window, soft cap and sinks",
        {"shape": (6, 2, 24, 4), "alibi": True, "sliding_window": 21, "softcap": 1.5, "sinks": True},
    ),
    ("a scale of 0.31", {"scale": 0.31}),
    ("a cache in float8_e4m3fn", {"cache_dtype": "float8_e4m3fn"}),
    (
        "a cache in float8_e4m3fn, window and soft cap",
        {"cache_dtype": "float8_e4m3fn", "sliding_window": 21, "softcap": 1.5},
    ),
    ("a cache in float8_e4m3fn and sinks", {"cache_dtype": "float8_e4m3fn", "sinks": True}),
    ("a cache in float8_e5m2", {"cache_dtype": "float8_e5m2"}),
    ("a cache in bfloat16", {"cache_dtype": "bfloat16"}),
    ("values of 40, keys of 64", {"value_dim": 40}),
    (
        "values of 48, keys of 24, window, soft cap and sinks",
        {"shape": (6, 2, 24, 4), "value_dim": 48, "sliding_window": 21, "softcap": 1.5, "sinks": True},
    ),
    ("values of 40, keys of 64, a cache in float8_e4m3fn", {"value_dim": 40, "cache_dtype": "float8_e4m3fn"}),
    ("a cache in int8", {"cache_dtype": "int8"}),
    (
        "a cache in int8, window, soft cap and sinks",
        {"cache_dtype": "int8", "shape": (6, 2, 24, 4), "sliding_window": 21, "softcap": 1.5, "sinks": True},
    ),
    ("values of 40, keys of 64, a cache in int8", {"value_dim": 40, "cache_dtype": "int8"}),
    ("a cache in int4", {"cache_dtype": "int4"}),
    ("7 heads over 1 of 45, blocks of 1, a cache in int4", {"cache_dtype": "int4", "shape": (7, 1, 45, 1)}),
    ("latent rows of 48 and 16", {"shape": (4, 1, 64, 16), "latent_dim": 48}),
    ("latent rows of 40 without a shared key", {"shape": (20, 1, 40, 4), "latent_dim": 40}),
    ("latent rows of 512 and 64", {"shape": (3, 1, 576, 16), "latent_dim": 512}),
    ("latent rows of 48 and 16, a cache in int8", {"shape": (4, 1, 64, 16), "latent_dim": 48, "cache_dtype": "int8"}),
)

_SOME = 2
"""Queries that a kernel serves for which no others are sought."""

_LINEAR_SIZES: tuple[tuple[int, int, bool], ...] = (
    (512, 256, False),
    (1024, 512, True),
    (64, 48, False),
    (72, 40, True),
    (33, 17, False),
    (4096, 24, False),
    (16, 1024, True),
    (256, 21, True),
    (128, 1, True),
    (4224, 20, True),
    (4249, 12, True),
)
"""Inputs, outputs, and whether there is a bias. Sums over 4096 elements reveal the precision of the accumulator; those
over a few more leave a part of the last of the splits that kernels cut them into, and the bias belongs to one of them.
"""

_LARGE_SIZES = tuple(
    (inputs, outputs, bias)
    for inputs, outputs in ((1024, 1024), (2048, 2048), (4096, 4096), (1536, 7168), (8192, 1280))
    for bias in (False, True)
)

_MIXTURES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("2 of 8 experts", {}),
    ("1 of 5 experts, 72 to 40", {"num_experts": 5, "top_k": 1, "hidden_size": 72, "intermediate_size": 40}),
    ("2 of 3 experts, 256 to 128", {"num_experts": 3, "hidden_size": 256, "intermediate_size": 128}),
    ("2 of 8 experts, 64 to 40", {"hidden_size": 64, "intermediate_size": 40}),
    ("2 of 8 experts, 40 to 64", {"hidden_size": 40, "intermediate_size": 64}),
    ("1 of 1 expert, 64 to 48", {"num_experts": 1, "top_k": 1, "hidden_size": 64, "intermediate_size": 48}),
    ("6 of 6 experts", {"num_experts": 6, "top_k": 6, "renormalize": False}),
    ("8 of 64 experts", {"num_experts": 64, "top_k": 8, "renormalize": False}),
    ("GELU", {"activation": "gelu"}),
    ("GELU by tanh", {"activation": "gelu_tanh"}),
    ("GELU by tanh, sigmoid scores", {"activation": "gelu_tanh", "scoring": "sigmoid"}),
    ("1 of 8 experts, scaled", {"top_k": 1, "scaling": 2.5, "renormalize": False}),
    ("sigmoid scores, scaled", {"scoring": "sigmoid", "scaling": 2.5}),
    ("sigmoid scores as they are", {"scoring": "sigmoid", "renormalize": False}),
    ("biases", {"bias": True}),
    ("2 of 4 groups by the best", {"num_experts": 16, "top_k": 3, "num_groups": 4, "top_groups": 2}),
    (
        "2 of 4 groups by the sum of the two best",
        {
            "num_experts": 16,
            "top_k": 3,
            "num_groups": 4,
            "top_groups": 2,
            "group_scoring": "top2_sum",
            "scoring": "sigmoid",
        },
    ),
    ("a clamped activation", {"activation_limit": 1.5}),
    (
        "a clamped activation with alpha and offset, biases",
        {"activation_alpha": 1.702, "activation_limit": 2.0, "up_offset": 1.0, "bias": True},
    ),
    ("experts without gates, the square of ReLU", {"gated": False, "activation": "relu2"}),
    (
        "experts without gates, GELU, biases, 72 to 40",
        {"gated": False, "activation": "gelu", "bias": True, "hidden_size": 72, "intermediate_size": 40},
    ),
    ("soft-capped router logits", {"facts": {"router_softcap": 0.7}}),
    (
        "soft-capped router logits, sigmoid scores as they are",
        {"facts": {"router_softcap": 2.0}, "scoring": "sigmoid", "renormalize": False},
    ),
    ("long sums", {"num_experts": 3, "hidden_size": 2048, "intermediate_size": 64}),
)


def attention_queries(
    serves: Callable[[Callable[..., AttentionQuery]], bool] = lambda make: True,
) -> Mapping[str, Callable[..., AttentionQuery]]:
    """Paged attention: heads, blocks, masks, caches. For a kernel that serves almost none of these (``serves``), shapes
    that it serves, and the other options with the first of them."""
    usual = {label: partial(_attention, **asked) for label, asked in _HEADS}
    if sum(map(serves, usual.values())) >= _SOME:
        return usual
    own = attention_options(lambda options: serves(partial(_attention, **options)))
    first = own[0] if own else {}
    shapes = {_label(**options): partial(_attention, **options) for options in own}
    others = {label: partial(_attention, **{**asked, **first}) for label, asked in _HEADS if asked.keys() != {"shape"}}
    return {**shapes, **others, **{label: make for label, make in usual.items() if label not in others}}


def _label(*, shape: tuple[int, int, int, int], **options: Any) -> str:
    heads, kv_heads, head_dim, block_size = shape
    more = "".join(f", {name} = {value}" for name, value in options.items())
    return f"{heads} heads over {kv_heads} of {head_dim}, blocks of {block_size}{more}"


def linear_queries(
    formats: Iterable[str], serves: Callable[[Callable[..., LinearQuery]], bool] = lambda make: True
) -> Mapping[str, Callable[..., LinearQuery]]:
    """GEMMs, with the weight in each of ``formats``; for a kernel that serves none of the sizes (``serves``), with
    those of large models, too."""
    return {
        f"{inputs} to {outputs}{' with bias' if bias else ''}{'' if stored == 'plain' else f', {stored}'}": make
        for stored in formats
        for (inputs, outputs, bias), make in _sized(stored, serves).items()
    }


def _sized(
    stored: str, serves: Callable[[Callable[..., LinearQuery]], bool]
) -> Mapping[tuple[int, int, bool], Callable[..., LinearQuery]]:
    """By inputs, outputs, and whether there is a bias."""
    grouped = stored in ("int4_group", "int8_group")

    def made(sizes: Iterable[tuple[int, int, bool]]) -> dict[tuple[int, int, bool], Callable[..., LinearQuery]]:
        return {
            (inputs, outputs, bias): partial(
                LinearQuery, in_features=inputs, out_features=outputs, bias=bias, weight_format=stored
            )
            for inputs, outputs, bias in sizes
            if not grouped or inputs % 128 == 0
        }

    found = made(_LINEAR_SIZES)
    return found if any(map(serves, found.values())) else found | made(_LARGE_SIZES)


def moe_queries(
    formats: Iterable[str], serves: Callable[[Callable[..., MoEQuery]], bool], own: MoEExamples
) -> Mapping[str, Callable[..., MoEQuery]]:
    """Mixtures of experts, with the weights in each of ``formats``.

    They vary the usual combination of options; for a kernel that does not serve it (``serves``), the first other
    combination that it serves. ``own`` is what the kernel supports but the core does not define.
    """
    asked: dict[str, dict[str, Any]] = {name: {"activation": name} for name in own.activations}
    asked |= {f"{name} scores": {"scoring": name} for name in own.scorings}
    asked |= {", ".join(f"{name} = {value}" for name, value in facts.items()): {"facts": facts} for facts in own.facts}
    return {
        label + ("" if stored == "plain" else f", {stored}"): partial(MoEQuery, **usual | changes, weight_format=stored)
        for stored in formats
        for usual in [_usual_mixture(stored, serves, own)]
        for label, changes in (*_MIXTURES, *asked.items())
    }


def _usual_mixture(stored: str, serves: Callable[[Callable[..., MoEQuery]], bool], own: MoEExamples) -> dict[str, Any]:
    """The options that all MoE queries of a kernel share, unless one overrides them."""
    usual: dict[str, Any] = {"num_experts": 8, "top_k": 2, "hidden_size": 128, "intermediate_size": 96}
    axes: list[list[dict[str, Any]]] = [
        [{"activation": name} for name in ("silu", "gelu", "gelu_tanh", *own.activations)]
        + [{"activation": name, "gated": False} for name in ("relu2", "gelu", "silu")],
        [{}, *({"scoring": name} for name in ("sigmoid", *own.scorings))],
        [{}, {"renormalize": False}],
        [{}, {"bias": True}],
        [{}, *({"facts": facts} for facts in own.facts)],
        [{}, *({"num_groups": 4, "top_groups": 2, "group_scoring": how} for how in ("max", "top2_sum"))],
        [{}, {"num_experts": 16, "top_k": 3}, {"num_experts": 32, "top_k": 4}, {"top_k": 1}]
        + [{"num_experts": count, "top_k": 8} for count in (64, 128, 256)],
        [{}, *({"hidden_size": size, "intermediate_size": size} for size in (128, 256, 512, 1024, 2048))],
    ]
    found = first_served(axes, lambda options: serves(partial(MoEQuery, **{**usual, **options}, weight_format=stored)))
    return usual | combined(found or ())


def _attention(
    *, dtype: str, shape: tuple[int, int, int, int] = (8, 2, 64, 16), cache_dtype: str = "", **asked: Any
) -> AttentionQuery:
    heads, kv_heads, head_dim, block_size = shape
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, "block_size": block_size}
    usual = {"scale": head_dim**-0.5, "cache_dtype": cache_dtype or dtype, "dtype": dtype}
    return AttentionQuery(**sizes | usual | asked)
