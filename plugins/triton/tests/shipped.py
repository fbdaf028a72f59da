"""Calls that launch every kernel in the shapes of well-known models. Tensors lie on the CPU: a stand-in driver runs
nothing on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import llmk_triton
from llmk.api import AttentionQuery, CacheStep, PlatformFacts
from llmk.reference.quantized_weight import ScaledWeight
from llmk_triton.attention.backend import SpecializedAttention, TritonAttention, qk_norm_rope_attention
from llmk_triton.attention.int8_cache import Int8Attention
from llmk_triton.attention_support import supports_attention, supports_int8
from llmk_triton.batch import batch_state as batch
from llmk_triton.batch import embedding
from llmk_triton.common import activations, layer_norms, norms
from llmk_triton.common.targets import SPECIALIZED_TILES, current_target, has_wave32
from llmk_triton.common.tuned import architecture, table
from llmk_triton.gemm import int4, small_m
from llmk_triton.gemm.problem import GemmProblem, Operands
from llmk_triton.kernel_spec import has_large_tiles
from llmk_triton.latent.backend import LatentAttention, latent_attention
from llmk_triton.latent.selected import select_tokens, selected_attention
from llmk_triton.moe import fused as moe
from llmk_triton.moe import int4 as moe_int4
from llmk_triton.moe import library
from llmk_triton.recurrent import delta_net, lightning, state_space
from llmk_triton.recurrent.selective_scan import selective_scan, selective_scan_by_token
from llmk_triton.recurrent.short_conv import short_conv
from llmk_triton.sampling.logprobs import logprobs
from llmk_triton.sampling.mask import apply_mask
from llmk_triton.sampling.penalties import apply_penalties
from llmk_triton.sampling.sample import sample

# Of the platform's own wheel, which compiles it for the same chips.
from llmk_rocm.quantize import quantize_rows  # isort: skip

FACTS = PlatformFacts(name="any", arch="any", device_type="cpu")
NO_FP8 = (80, "gfx90a", "gfx942", "gfx1100", "gfx1101", "gfx1151")
"""Architectures without fp8 as checkpoints have it."""
NOT_WIDENED = tuple(arch for arch in NO_FP8 if arch != "gfx942")
"""Those of them where Triton does not convert it to 16 bits either."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

MODELS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {"num_heads": 16, "num_kv_heads": 8, "head_dim": 128},
    "qwen3-8b": {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "qwen3-30b-a3b": {"num_heads": 32, "num_kv_heads": 4, "head_dim": 128},
    "gemma2-9b": {"num_heads": 16, "num_kv_heads": 8, "head_dim": 256, "sliding_window": 4096, "softcap": 50.0},
    "gpt-oss-20b": {"num_heads": 64, "num_kv_heads": 8, "head_dim": 64, "sliding_window": 128, "sinks": True},
    "falcon3-10b": {"num_heads": 12, "num_kv_heads": 4, "head_dim": 256},
    "falcon-7b": {"num_heads": 71, "num_kv_heads": 1, "head_dim": 64},
    "mimo-v2-flash": {
        "num_heads": 64,
        "num_kv_heads": 8,
        "head_dim": 192,
        "value_dim": 128,
        "sliding_window": 128,
        "sinks": True,
    },
    "phi-3-mini": {"num_heads": 32, "num_kv_heads": 32, "head_dim": 96, "sliding_window": 2047},
    "llama-4-scout": {"num_heads": 40, "num_kv_heads": 8, "head_dim": 128, "sliding_window": 8192, "chunked": True},
    "gemma-4-e2b": {"num_heads": 8, "num_kv_heads": 1, "head_dim": 512, "scale": 1.0},
    "gemma-4-26b": {"num_heads": 16, "num_kv_heads": 2, "head_dim": 512, "scale": 1.0},
}
TURNED = {"falcon-7b": {"neighbours": True}, "phi-3-mini": {"norm_after_rope": True}}
"""How heads are rotated, where it is not as usual. They need not be those models' ways."""

RECURRENT: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "mamba2-2.7b": ("state_space_mixer", (80, 64, 1, 128)),
    "granite-4.0-h-tiny": ("state_space_mixer", (48, 64, 1, 128)),
    "falcon-h1-7b": ("state_space_mixer", (24, 128, 1, 256)),
    "mamba-codestral-7b": ("state_space_mixer", (128, 64, 8, 128)),
    "qwen3-next": ("gated_delta_net", (32, 16, 128, 128)),
    "kimi-linear": ("kimi_delta", (32, 32, 128, 128)),
    "minimax-m1": ("lightning_attention", (64, 128, 64, 128)),
}
"""Layers: heads, their size, groups and the state's size; or heads, key heads, and the sizes of keys and values."""
LAYERS: dict[str, tuple[Callable[..., torch.Tensor], ...]] = {
    "state_space_mixer": (state_space.state_space_mixer, state_space.state_space_mixer_by_token),
    "lightning_attention": (lightning.lightning_attention, lightning.lightning_attention_by_token),
    **dict.fromkeys(("gated_delta_net", "kimi_delta"), (delta_net.gated_delta_net, delta_net.gated_delta_net_by_token)),
}

LATENT_MODELS = {
    "deepseek-v2-lite": (16, 512, 64, 128, 128),
    "deepseek-v3": (128, 512, 64, 128, 128),
    "minicpm3-4b": (40, 256, 32, 64, 64),
    "tiny": (4, 48, 16, 32, 24),
}
"""Heads; elements of a latent vector, of the shared key, of a head's own key, and of its value."""

SELECTED_MODELS = {"deepseek-v3.2": (128, 64), "deepseek-v3.2 by 8": (16, 64), "glm-5": (64, 32)}
"""Heads of attention to selected tokens, and of its indexer."""

EXPERTS: dict[str, tuple[int, int, int, int]] = {
    "qwen3-30b-a3b": (128, 8, 2048, 768),
    "mixtral-8x7b": (8, 2, 4096, 14336),
    "qwen3-next": (512, 10, 2048, 512),
    "deepseek-v2-lite": (64, 6, 2048, 1408),
    "granite-4-tiny": (64, 6, 1536, 512),
    "tiny": (16, 2, 128, 64),
}
"""Experts, those of a token, hidden and intermediate sizes."""


GEMMS = {
    "linear": ("linear", (1, 4, 16, 64, 128), ((1024, 3072), (6144, 4096))),
    "gate up": ("gate_up_silu", (1, 4, 16, 64, 128), ((3072, 1024), (12288, 4096))),
    "norm linear": ("add_rms_norm_linear", (1, 4, 16), ((4096, 1024), (6144, 4096))),
    "router": ("linear", (17, 64), ((128, 2048), (60, 4096))),
    "norm router": ("add_rms_norm_router", (1,), ((128, 2048), (8, 4096))),
    "norm gate up": ("add_rms_norm_gate_up_silu", (1, 4, 16), ((3072, 1024), (12288, 4096))),
}
"""Ops of :mod:`llmk_triton.gemm.small_m`, for how many rows, and what they make of how much in well-known models,
the larger in the usual dtype alone."""


def attention(model: str, dtype: torch.dtype, requests: int, queries: int, length: int, **changes: Any) -> None:
    """QK-norm, rope, write and attention of a step with equal requests, in one op and in its parts."""
    backend, step = _attention(TritonAttention, model, dtype, requests, queries, length, changes)
    if backend is None:
        return
    query, size = backend.query, backend.query.head_dim
    cache = _cache(backend)
    sinks = torch.zeros(query.num_heads) if query.sinks else None
    qkv = torch.zeros(step.num_tokens, query.num_heads + 2 * query.num_kv_heads, size, dtype=dtype)
    q, k, v = qkv.split_with_sizes([query.num_heads, query.num_kv_heads, query.num_kv_heads], 1)
    v = v if query.value_dim is None else torch.zeros(*v.shape[:2], query.value_dim, dtype=dtype)
    weight = torch.zeros(size, dtype=dtype)
    meta = backend.prepare(step)
    positions, angles = torch.zeros(step.num_tokens, dtype=torch.int64), torch.zeros(8, size)
    turned: dict[str, Any] = TURNED.get(model, {})
    qk_norm_rope_attention(q, k, v, weight, weight, 1e-6, positions, angles, cache, meta, sinks=sinks, **turned)
    backend.write(k, v, cache, meta)
    backend.run(q, cache, meta, sinks)


def int8_attention(model: str, dtype: torch.dtype, requests: int, queries: int, length: int) -> None:
    """Write and attention over an int8 cache, where it serves the model."""
    query, step = _step(dtype, requests, queries, length, {**MODELS[model], "cache_dtype": "int8"})
    if query.value_dim is not None or not supports_int8(replace(query, platform=_facts())):
        return
    backend, heads = Int8Attention(query, torch.device("cpu")), (query.num_heads, query.num_kv_heads)
    q, k = (torch.zeros(step.num_tokens, count, query.head_dim, dtype=dtype) for count in heads)
    cache, meta = _cache(backend), backend.prepare(step)
    backend.write(k, k, cache, meta)
    backend.run(q, cache, meta, torch.zeros(query.num_heads) if query.sinks else None)


def specialized(model: str, dtype: torch.dtype) -> None:
    """Attention of a prompt by specialized warps, which Hopper has."""
    if current_target().arch != 90:
        return
    backend, step = _attention(SpecializedAttention, model, dtype, 1, 512, 512, {})
    assert backend is not None
    query = torch.zeros(step.num_tokens, backend.query.num_heads, backend.query.head_dim, dtype=dtype)
    backend.run(query, _cache(backend), backend.prepare(step), query)


def latent(
    model: str, dtype: torch.dtype, requests: int, queries: int, length: int, *, known: bool = False, **changes: Any
) -> None:
    """Latent attention of a step with equal requests, in one op and in its parts. With ``known`` lengths, keys and
    values are projected."""
    heads, rank, rope, plain, value = LATENT_MODELS[model]
    shape = {"num_heads": heads, "num_kv_heads": 1, "head_dim": rank + rope, "latent_dim": rank}
    query, step = _step(dtype, requests, queries, length, {**shape, **changes})
    if known:
        step.host_query_lens, step.host_seq_lens = [queries] * requests, [length] * requests
    if _lacks(query) or not has_large_tiles(_facts()):
        return
    backend, tokens = LatentAttention(query, torch.device("cpu")), step.num_tokens
    cache = _cache(backend)
    q, rows = torch.zeros(tokens, heads, plain + rope, dtype=dtype), torch.zeros(tokens, rank + rope, dtype=dtype)
    weight, up = torch.zeros(rank, dtype=dtype), torch.zeros(heads, plain, rank, dtype=dtype)
    positions, angles, meta = torch.zeros(tokens, dtype=torch.int64), torch.zeros(8, rope), backend.prepare(step)
    v_up = torch.zeros(heads, rank, value, dtype=dtype)
    latent_attention(q, rows, weight, 1e-6, up, v_up, positions, angles, cache, meta)
    backend.write(rows[:, None], None, cache, meta)


def _attention(
    kind: type[TritonAttention],
    model: str,
    dtype: torch.dtype,
    requests: int,
    queries: int,
    length: int,
    changes: dict[str, Any],
) -> tuple[TritonAttention | None, CacheStep]:
    """A backend of a model, where it serves the model on the target, and a step."""
    query, step = _step(dtype, requests, queries, length, {**MODELS[model], **changes})
    served = supports_attention(replace(query, platform=_facts()))
    return kind(query, torch.device("cpu")) if served else None, step


def _facts() -> PlatformFacts:
    """What the kernels' specs need of a platform, for the target."""
    target = current_target()
    has = {"triton"} | ({"subgroup16"} if target.backend == "xpu" else set())
    has |= {"fp8"} if target.arch not in NO_FP8 else set()
    return replace(FACTS, arch=str(target.arch), features=frozenset(has))


def _lacks(query: AttentionQuery) -> bool:
    return query.cache_dtype == "float8_e4m3fn" and current_target().arch in NO_FP8


def _step(
    dtype: torch.dtype, requests: int, queries: int, length: int, facts: dict[str, Any]
) -> tuple[AttentionQuery, CacheStep]:
    name = str(dtype).removeprefix("torch.")
    facts = {"dtype": name, "cache_dtype": name, "block_size": 16, "scale": 0.1, **facts}
    query = AttentionQuery(platform=FACTS, site="attention", **facts)
    return query, _cache_step(requests, queries, length)


def _cache_step(requests: int, queries: int, length: int) -> CacheStep:
    tokens = requests * queries
    return CacheStep(
        query_start=torch.zeros(requests + 1, dtype=torch.int32),
        seq_lens=torch.zeros(requests, dtype=torch.int32),
        block_table=torch.zeros(requests, -(-length // 16), dtype=torch.int32),
        slot_mapping=torch.zeros(tokens, dtype=torch.int64),
        num_requests=requests,
        num_tokens=tokens,
        max_query_len=queries,
        max_seq_len=length,
        block_size=16,
    )


def _cache(backend: TritonAttention | LatentAttention) -> torch.Tensor:
    layout = backend.cache_layout(2)
    return torch.zeros(layout.shape, dtype=getattr(torch, layout.dtype))


def elementwise(size: int, inner: int, dtype: torch.dtype) -> None:
    """Norms, activations and embedding of a hidden size and an intermediate size."""
    x, weight = torch.zeros(4, size, dtype=dtype), torch.zeros(size, dtype=dtype)
    norms.rms_norm(x, weight, 1e-6)
    norms.add_rms_norm(x, x, weight, 1e-6)
    norms.add_rms_norm(x, x, weight, 1e-6, residual_multiplier=0.22)
    norms.rms_norm_add(x, x, weight, 1e-6)
    norms.add_rms_norm_fp32_residual(x, x.float(), weight, 1e-6)
    activations.sigmoid_gate(x, x)
    activations.sigmoid_gate(x, x[:, :1])
    norms.sandwich_norm(x, x, weight, weight, 1e-6, norm_offset=1.0)
    layer_norms.layer_norm(x, None, None, 1e-5)
    layer_norms.add_layer_norm(x, x, weight, weight, 1e-5)
    activations.softcap(x, 30.0)
    activations.xielu(torch.zeros(4, inner, dtype=dtype), *(torch.zeros(1) for _ in range(4)))
    for activate in (activations.silu_and_mul, activations.gelu_and_mul, activations.gelu_tanh_and_mul):
        activate(torch.zeros(4, 2 * inner, dtype=dtype))
    for kind in activations.KINDS:
        activations.activation(torch.zeros(4, inner, dtype=dtype), kind)
    embedding.embedding(torch.zeros(4, dtype=torch.int64), x)
    embedding.scaled_embedding(torch.zeros(4, dtype=torch.int64), x, 12.0)


def recurrent(layer: str, sizes: tuple[int, ...], dtype: torch.dtype, requests: int, queries: int) -> None:
    """A recurrent layer in a step of requests with as many tokens each: in chunks, where there is such a kernel, and by
    token."""
    step = _cache_step(requests, queries, 512)
    if layer == "lightning_attention":
        heads, size, *_ = sizes
        x, states = torch.zeros(step.num_tokens, heads, size, dtype=dtype), torch.zeros(2, heads, size, size)
        for run in LAYERS[layer][dtype == torch.float32 or has_wave32(current_target()) :]:
            run(x, x, x, torch.zeros(heads), (states,), step)
        return
    given = (_scanned if layer == "state_space_mixer" else _delta)(sizes, dtype, step)
    options: list[dict[str, Any]] = [{}]
    if layer == "kimi_delta":
        heads, _, size, _ = sizes
        given = *given[:4], torch.zeros(step.num_tokens, heads, 1, size, dtype=dtype), *given[5:]
        given = *given[:8], torch.zeros(heads, size), *given[9:]
        options = [{"gate_activation": "sigmoid", "decay_bound": bound} for bound in (None, -5.0)]
    for run in LAYERS[layer][dtype == torch.float32 or has_wave32(current_target()) :]:
        for each in options:
            run(*given, step, **each)


def _scanned(sizes: tuple[int, ...], dtype: torch.dtype, step: CacheStep) -> tuple[Any, ...]:
    heads, head_dim, groups, size = sizes
    inner, channels = heads * head_dim, heads * head_dim + 2 * groups * size
    projected = torch.zeros(step.num_tokens, inner + channels + heads, dtype=dtype)
    caches = torch.zeros(2, 3, channels, dtype=dtype), torch.zeros(2, heads, head_dim, size)
    weights, real = (torch.zeros(channels, 4, dtype=dtype), torch.zeros(channels, dtype=dtype)), torch.zeros(heads)
    return projected, *weights, real, real, real, (0.0, None), torch.zeros(inner, dtype=dtype), 1e-5, caches


def channels(count: int, size: int, dtype: torch.dtype, requests: int, queries: int) -> None:
    """Mamba-1's scan of so many channels, and the convolutions of as many, activated and gated."""
    step = _cache_step(requests, queries, 512)
    x, real = torch.zeros(step.num_tokens, count, dtype=dtype), torch.zeros(count)
    wide, weight = torch.zeros(step.num_tokens, 3 * count, dtype=dtype), torch.zeros(count, 4, dtype=dtype)
    b, rates = torch.zeros(step.num_tokens, size, dtype=dtype), torch.zeros(count, size)
    scan = selective_scan if dtype != torch.float32 and not has_wave32(current_target()) else selective_scan_by_token
    scan(x, x, rates, b, b, real, real, x, torch.zeros(2, count, size), step)
    caches = (torch.zeros(2, 3, count, dtype=dtype),)
    short_conv(x, weight, x[0], caches, step, activation="silu")
    short_conv(wide, weight, None, caches, step, gated=True)


def _delta(sizes: tuple[int, ...], dtype: torch.dtype, step: CacheStep) -> tuple[Any, ...]:
    heads, key_heads, key_dim, value_dim = sizes
    shared_by, channels = heads // key_heads, 2 * key_heads * key_dim + heads * value_dim
    parts = [key_dim] * 2 + [shared_by * value_dim] * 2
    q, k, v, gate = torch.zeros(step.num_tokens, key_heads, sum(parts), dtype=dtype).split_with_sizes(parts, 2)
    v, gate = (x.unflatten(2, (shared_by, value_dim)) for x in (v, gate))
    a, b = torch.zeros(step.num_tokens, key_heads, 2, shared_by, dtype=dtype).unbind(2)
    caches = torch.zeros(2, 3, channels, dtype=dtype), torch.zeros(2, heads, value_dim, key_dim)
    weight, norm, real = torch.zeros(channels, 4, dtype=dtype), torch.zeros(value_dim, dtype=dtype), torch.zeros(heads)
    return q, k, v, gate, a, b, weight, real, real, norm, 1e-6, caches


def experts(shape: tuple[int, ...], dtype: torch.dtype, tokens: int, arch: str = "") -> None:
    """A mixture of experts, by how many there are, how many a token takes, and their sizes; with ``arch``, for that
    alone."""
    count, top_k, hidden, inner = shape
    x, logits = torch.zeros(tokens, hidden, dtype=dtype), torch.zeros(tokens, count, dtype=dtype)
    # Nothing reads them, so they need no memory.
    one = torch.zeros(1, dtype=dtype)
    weights = {"gate_up": one.expand(count, 2 * inner, hidden), "down": one.expand(count, hidden, inner)}
    if arch and arch != architecture(current_target()):
        return
    moe.fused_moe(x, logits, weights, top_k=top_k, renormalize=True)


def quantized_experts(shape: tuple[int, ...], dtype: torch.dtype, tokens: int, stored: str) -> None:
    """The same with weights of another format."""
    count, top_k, hidden, inner = shape
    x, logits = torch.zeros(tokens, hidden, dtype=dtype), torch.zeros(tokens, count, dtype=dtype)
    sizes = {"gate_up": (2 * inner, hidden), "down": (hidden, inner)}
    options: dict[str, Any] = {"top_k": top_k, "renormalize": True}
    if stored == "int4":
        weights = {}
        for name, (out, size) in sizes.items():
            tiles = 2 * -(-out // 128)
            words = torch.empty(1, dtype=torch.int16).expand(count * tiles, size // 128, 64, 32)
            scale = torch.empty(1, dtype=torch.bfloat16).expand(size // 128, count * tiles * 64)
            weight = int4.TiledInt4(words, scale, None, count * tiles * 64, size, 128, None)
            weights[name] = moe_int4.Int4Experts(weight, tiles, out)
        moe_int4.fused_moe(x, logits, weights, **options)
    elif current_target().arch not in NOT_WIDENED:
        one, block = torch.zeros(1, dtype=torch.float8_e4m3fn), 128 if stored == "fp8_block" else 1
        plain = {name: one.expand(count, *size) for name, size in sizes.items()}
        scales = {
            f"{name}_scale": torch.empty(1).expand(count, -(-out // block), -(-size // block) if block > 1 else 1)
            for name, (out, size) in sizes.items()
        }
        moe.fused_moe(x, logits, plain | scales, **options)


def grouped_experts(dtype: torch.dtype, tokens: int) -> None:
    """DeepSeek-V3's choice of experts, of a rank of 16."""
    x, logits, one = torch.zeros(tokens, 7168, dtype=dtype), torch.zeros(tokens, 256), torch.zeros(1, dtype=dtype)
    weights = {"gate_up": one.expand(256, 256, 7168), "down": one.expand(256, 7168, 128)}
    options: dict[str, Any] = {"scoring": "sigmoid", "scaling": 2.5, "selection_bias": logits[0]}
    groups: dict[str, Any] = {"num_groups": 8, "top_groups": 4, "group_scoring": "top2_sum"}
    moe.fused_moe(x, logits, weights, top_k=8, renormalize=True, **options, **groups)


def library_experts(dtype: torch.dtype, tokens: int) -> None:
    """What stands between the library's GEMMs of Mixtral's experts."""
    x, logits = torch.zeros(tokens, 4096, dtype=dtype), torch.zeros(tokens, 8)
    counts, order = torch.zeros(8, dtype=torch.int32), torch.zeros(8, tokens, dtype=torch.int32)
    rows = moe.ExpertRows(counts, order, torch.zeros(tokens, 2))
    copied, places = library.by_expert(x, rows, counts, 2)
    library.weighted_sum(copied, places, rows.scores, moe.FusedMoE(x, logits, _no_experts(), 2, True).weighting)


def _no_experts() -> dict[str, torch.Tensor]:
    return {"gate_up": torch.zeros(1).expand(8, 1, 4096), "down": torch.zeros(1).expand(8, 4096, 1)}


def biased_experts(dtype: torch.dtype, tokens: int) -> None:
    """GPT-OSS's experts, with biases and a clamped activation."""
    x, logits, one = torch.zeros(tokens, 2880, dtype=dtype), torch.zeros(tokens, 32), torch.zeros(1, dtype=dtype)
    weights = {"gate_up": one.expand(32, 5760, 2880), "down": one.expand(32, 2880, 2880)}
    weights |= {"gate_up_bias": one.expand(32, 5760), "down_bias": one.expand(32, 2880)}
    gate: dict[str, Any] = {"activation_alpha": 1.702, "activation_limit": 7.0, "up_offset": 1.0}
    moe.fused_moe(x, logits, weights, top_k=4, renormalize=True, **gate)


def plain_experts(dtype: torch.dtype, tokens: int) -> None:
    """Nemotron 3 Nano's experts, without gates."""
    x, logits, one = torch.zeros(tokens, 2688, dtype=dtype), torch.zeros(tokens, 128), torch.zeros(1, dtype=dtype)
    weights = {"gate_up": one.expand(128, 1856, 2688), "down": one.expand(128, 2688, 1856)}
    options: dict[str, Any] = {"scoring": "sigmoid", "scaling": 2.5, "selection_bias": logits[0]}
    moe.fused_moe(x, logits, weights, top_k=6, renormalize=True, activation="relu2", gated=False, **options)


def quantized_rows(size: int) -> None:
    """Activations in fp8, in the format that an AMD chip multiplies."""
    arch = current_target().arch
    if arch in ("gfx942", "gfx950", "gfx1200", "gfx1201"):
        dtype = torch.float8_e4m3fnuz if arch == "gfx942" else torch.float8_e4m3fn
        quantize_rows(torch.zeros(4, size, dtype=torch.bfloat16), dtype)


def gemm(kernel: str, dtype: torch.dtype, rows: int, size: int, out: int, scaled: int = 0, arch: str = "") -> None:
    """One of :data:`GEMMS`, with the chosen configuration; with ``arch``, only for it. fp8 is only for devices where it
    is widened."""
    target = current_target()
    if (arch and arch != architecture(target)) or (scaled and target.arch in NOT_WIDENED):
        return
    what = GemmProblem(kernel, dtype, rows, size, out, scaled)
    x, values = torch.empty(rows, size, dtype=dtype), torch.empty(1, dtype=what.stored)
    weight = ScaledWeight(values, torch.empty(1), (scaled, scaled)) if scaled else values
    norm = (x, x[0], 1e-6, x if what.returns_normed else None) if what.normed else ()
    small_m.launch(what, small_m.choose(what, current_target(), num_sms=132), Operands(x, weight, None, *norm))


def activated_gemm(dtype: torch.dtype, rows: int, size: int, out: int) -> None:
    """An activation and the linear layer after it."""
    x, weight = torch.empty(rows, size, dtype=dtype), torch.empty(1, dtype=dtype).expand(out, size)
    small_m.activate_linear(x, "gelu", weight, None)


def int4_gemm(dtype: torch.dtype, rows: int, size: int, out: int, group: int, *, zero: bool) -> None:
    """A GEMM with a 4-bit weight, and the weight widened."""
    width = 32 if group % 128 == 0 else 16
    blocks, tiles = -(-size // (4 * width)), 2 * -(-out // 128)
    words = torch.empty(1, dtype=torch.int16).expand(tiles, blocks, 64, width)
    scale = torch.empty(1, dtype=torch.float16).expand(size // group, 64 * tiles)
    points = torch.empty(1, dtype=torch.uint8).expand(size // group, 64 * tiles) if zero else None
    weight = int4.TiledInt4(words, scale, points, out, size, group, None)
    config = int4.choose(current_target(), dtype, rows, out, size, 132)
    int4.launch(torch.empty(rows, size, dtype=dtype), weight, None, config)
    if rows > 64:
        int4.widened(weight, dtype)


def _quantized_cases() -> dict[str, Callable[[], None]]:
    cases: dict[str, Callable[[], None]] = {}
    for name, (group, zero) in itertools.product(("bf16", "fp16"), ((128, False), (128, True), (64, True), (32, True))):
        for rows, (out, size) in itertools.product((1, 32, 256), ((4096, 4096), (24576, 4096), (4096, 12288))):
            label = f"int4 {out}x{size} by {group}{' with zero points' if zero else ''} x{rows} {name}"
            cases[label] = partial(int4_gemm, DTYPES[name], rows, size, out, group, zero=zero)
    formats = ("int4", "fp8_channel", "fp8_block")
    for name, stored, tokens in itertools.product(("bf16", "fp16"), formats, (1, 64, 1024)):
        run = partial(quantized_experts, EXPERTS["qwen3-30b-a3b"], DTYPES[name], tokens, stored)
        cases[f"{stored} experts qwen3-30b-a3b x{tokens} {name}"] = run
    return cases


def _tuned() -> dict[str, Callable[[], None]]:
    """Everything that has a tuned configuration, each for what it was tuned for."""
    cases: dict[str, Callable[[], None]] = {}
    formats = {str(dtype).removeprefix("torch."): (name, 0) for name, dtype in DTYPES.items()}
    formats |= {"fp8_channel": ("bf16", 1), "fp8_block": ("bf16", 128)}
    for file in Path(llmk_triton.__file__).parent.glob("configs/*.json"):
        kernel, arch = file.name.removesuffix(".json").split(".")
        if kernel == "moe":
            for dtype, shapes in table(kernel, arch).items():
                for shape, rows in ((shape, int(rows)) for shape, by_rows in shapes.items() for rows in by_rows):
                    run = partial(experts, tuple(map(int, shape.split("x"))), getattr(torch, dtype), rows, arch=arch)
                    cases[f"tuned {arch} experts {dtype} {shape} x{rows}"] = run
        if kernel not in {kernel for kernel, _, _ in GEMMS.values()}:
            continue
        for weight_format, shapes in table(kernel, arch).items():
            name, scaled = formats[weight_format]
            for shape, rows in ((shape, int(rows)) for shape, by_rows in shapes.items() for rows in by_rows):
                out, size = map(int, shape.split("x"))
                out //= 2 if kernel.endswith("gate_up_silu") else 1
                run = partial(gemm, kernel, DTYPES[name], rows, size, out, scaled, arch=arch)
                cases[f"tuned {arch} {kernel} {weight_format} {shape} x{rows} {name}"] = run
    return cases


def choosing(vocab: int, dtype: torch.dtype) -> None:
    """Greedy and random sampling."""
    logits = torch.zeros(2, vocab, dtype=dtype)
    sample(logits, None, None, None, None, None, None)
    real, whole = torch.zeros(2, 6), torch.zeros(2, 3, dtype=torch.int64)
    sample(logits, real[:, 0], whole[:, 0], real[:, 1], real[:, 2], whole[:, 1], whole[:, 2])
    logprobs(logits, whole[:, 0], 5)
    tokens, rows = torch.zeros(2, 64, dtype=torch.int32), whole[:, 0].contiguous()
    apply_penalties(logits, rows, tokens, rows, rows, rows, real[:, 3], real[:, 4], real[:, 5])
    apply_mask(logits, rows, torch.zeros(2, -(-vocab // 32), dtype=torch.int32))


def batch_state() -> None:
    """A step laid out, and what it changes."""
    tokens, slots, computed = (torch.zeros(2, 64, dtype=torch.int32), *torch.zeros(2, 2, dtype=torch.int64))
    step = batch.build_step(tokens, computed, slots, slots, 2)
    batch.compute_slot_mapping(tokens, slots, step.rows, step.positions, 16, 4)
    batch.append_tokens(tokens, computed, slots, slots)
    batch.accept_drafts(tokens, computed, slots, slots, slots, slots, 5)
    batch.update_rows(tokens, slots, slots, slots, slots)


def selected(heads: int, index_heads: int, dtype: torch.dtype, requests: int, queries: int) -> None:
    """Attention to 2,048 selected tokens, and what selects them, with DeepSeek-V3.2's sizes of heads, where a program
    has registers for a tile of them."""
    if not has_large_tiles(_facts()):
        return
    step = _cache_step(requests, queries, 512)
    q, k = torch.zeros(step.num_tokens, index_heads, 128, dtype=dtype), torch.zeros(step.num_tokens, 128, dtype=dtype)
    weights, keys = torch.zeros(step.num_tokens, index_heads, dtype=dtype), torch.zeros(64, 16, 128, dtype=dtype)
    select_tokens(q, k, weights, keys, step, top_k=2048)
    query, row = torch.zeros(step.num_tokens, heads, 576, dtype=dtype), torch.zeros(step.num_tokens, 576, dtype=dtype)
    picked, rows = torch.zeros(step.num_tokens, 2048, dtype=torch.int32), torch.zeros(64, 16, 576, dtype=dtype)
    selected_attention(query, row, picked, rows, step, scale=0.1, latent_dim=512)


def _latent_cases() -> dict[str, Callable[[], None]]:
    cases: dict[str, Callable[[], None]] = {}
    for model, name in itertools.product(LATENT_MODELS, ("bf16", "fp16")):
        dtype = DTYPES[name]
        cases[f"latent decode {model} {name}"] = partial(latent, model, dtype, 1, 1, 512)
        cases[f"latent many decode {model} {name}"] = partial(latent, model, dtype, 256, 1, 512)
        cases[f"latent mixed {model} {name}"] = partial(latent, model, dtype, 2, 64, 512)
        cases[f"latent prompt {model} {name}"] = partial(latent, model, dtype, 1, 512, 512, known=True)
        if name == "bf16":
            run = partial(latent, model, dtype, 2, 64, 512, cache_dtype="float8_e4m3fn")
            cases[f"latent mixed {model}, fp8 cache {name}"] = run
    for (model, heads), name in itertools.product(SELECTED_MODELS.items(), ("bf16", "fp16")):
        cases[f"selected decode {model} {name}"] = partial(selected, *heads, DTYPES[name], 1, 1)
        cases[f"selected prompt {model} {name}"] = partial(selected, *heads, DTYPES[name], 2, 256)
    return cases


def _attention_cases(model: str, name: str, dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    cases: dict[str, Callable[[], None]] = {}
    cases[f"decode {model} {name}"] = partial(attention, model, dtype, 1, 1, 512)
    cases[f"many decode {model} {name}"] = partial(attention, model, dtype, 256, 1, 512)
    cases[f"prefill {model} {name}"] = partial(attention, model, dtype, 1, 512, 512)
    cases[f"mixed {model} {name}"] = partial(attention, model, dtype, 2, 256, 512)
    whole = "chunked" not in MODELS[model]
    if whole and MODELS[model]["head_dim"] in SPECIALIZED_TILES and name != "fp32":
        cases[f"specialized {model} {name}"] = partial(specialized, model, dtype)
    if name == "bf16":
        run = partial(attention, model, dtype, 2, 256, 512, cache_dtype="float8_e4m3fn")
        cases[f"mixed {model}, fp8 cache {name}"] = run
    return cases


def _cases() -> dict[str, Callable[[], None]]:
    cases: dict[str, Callable[[], None]] = {"batch state": batch_state}
    cases["library experts mixtral-8x7b bf16"] = partial(library_experts, torch.bfloat16, 2048)
    for name, dtype in DTYPES.items():
        cases[f"sampling {name}"] = partial(choosing, 151936, dtype)
        cases[f"sampling few tokens {name}"] = partial(choosing, 320, dtype)
        for size, inner in ((1024, 3072), (2048, 768), (4096, 12288), (3584, 14336)):
            cases[f"elementwise {size}x{inner} {name}"] = partial(elementwise, size, inner, dtype)
        for label, (kernel, all_rows, shapes) in GEMMS.items():
            for rows, (out, columns) in itertools.product(all_rows, shapes if name == "bf16" else shapes[:1]):
                run = partial(gemm, kernel, dtype, rows, columns, out)
                cases[f"{label} {out}x{columns} x{rows} {name}"] = run
                for scales, scaled in (("channel", 1), ("block", 128)) if name == "bf16" else ():
                    run = partial(gemm, kernel, dtype, rows, columns, out, scaled)
                    cases[f"fp8 {scales} {label} {out}x{columns} x{rows} {name}"] = run
        for model in MODELS:
            cases |= _attention_cases(model, name, dtype)
        for tokens in (1, 64, 1024):
            cases[f"experts deepseek-v3 x{tokens} {name}"] = partial(grouped_experts, dtype, tokens)
            cases[f"experts gpt-oss x{tokens} {name}"] = partial(biased_experts, dtype, tokens)
            cases[f"experts nemotron-3-nano x{tokens} {name}"] = partial(plain_experts, dtype, tokens)
        for model in EXPERTS:
            for power in range(14):
                cases[f"experts {model} x{1 << power} {name}"] = partial(experts, EXPERTS[model], dtype, 1 << power)
    return cases


def _activated_cases() -> dict[str, Callable[[], None]]:
    return {
        f"activate linear 2560x10240 x{rows} {name}": partial(activated_gemm, dtype, rows, 10240, 2560)
        for name, dtype in DTYPES.items()
        for rows in (1, 4, 16)
    }


def _int8_cases() -> dict[str, Callable[[], None]]:
    steps = {"decode": (1, 1, 512), "many decode": (256, 1, 512), "mixed": (2, 256, 512)}
    return {
        f"int8 cache, {kind} {model} {name}": partial(int8_attention, model, dtype, *step)
        for name, dtype in DTYPES.items()
        for model in MODELS
        for kind, step in steps.items()
    }


def _recurrent_cases() -> dict[str, Callable[[], None]]:
    cases: dict[str, Callable[[], None]] = {}
    for (name, dtype), (model, (layer, sizes)) in itertools.product(DTYPES.items(), RECURRENT.items()):
        for kind, step in (("decode", (1, 1)), ("many decode", (256, 1)), ("mixed", (2, 256))):
            cases[f"recurrent {kind} {model} {name}"] = partial(recurrent, layer, sizes, dtype, *step)
    for name, dtype in DTYPES.items():
        for kind, step in (("decode", (1, 1)), ("many decode", (256, 1)), ("mixed", (2, 256))):
            cases[f"channels {kind} {name}"] = partial(channels, 8192, 16, dtype, *step)
    return cases


_ROWS = {f"quantized rows of {size} bf16": partial(quantized_rows, size) for size in (128, 4096, 14336)}
CASES = (
    _cases()
    | _ROWS
    | _activated_cases()
    | _int8_cases()
    | _quantized_cases()
    | _latent_cases()
    | _recurrent_cases()
    | _tuned()
)
