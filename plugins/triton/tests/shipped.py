"""Calls that launch every kernel in the shapes of well-known models. Tensors lie on the CPU: a stand-in driver runs
nothing on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from llmk.api import AttentionQuery, CacheStep, PlatformFacts
from llmk_triton import activations, embedding, norms
from llmk_triton.attention import TritonAttention, qk_norm_rope_attention
from llmk_triton.tiles import current_target

FACTS = PlatformFacts(name="any", arch="any", device_type="cpu")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

MODELS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {"num_heads": 16, "num_kv_heads": 8, "head_dim": 128},
    "qwen3-8b": {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "qwen3-30b-a3b": {"num_heads": 32, "num_kv_heads": 4, "head_dim": 128},
    "gemma2-9b": {"num_heads": 16, "num_kv_heads": 8, "head_dim": 256, "sliding_window": 4096, "softcap": 50.0},
    "gpt-oss-20b": {"num_heads": 64, "num_kv_heads": 8, "head_dim": 64, "sliding_window": 128, "sinks": True},
    "phi-3-mini": {"num_heads": 32, "num_kv_heads": 32, "head_dim": 96, "sliding_window": 2047},
}


def attention(model: str, dtype: torch.dtype, requests: int, queries: int, length: int, **changes: Any) -> None:
    """QK-norm, rope, write and attention of a step with equal requests, in one op and in its parts."""
    name = str(dtype).removeprefix("torch.")
    facts = {"dtype": name, "cache_dtype": name, "block_size": 16, "scale": 0.1, **MODELS[model], **changes}
    query = AttentionQuery(platform=FACTS, site="attention", **facts)
    current_target.cache_clear()
    backend = TritonAttention(query, torch.device("cpu"))
    tokens, size = requests * queries, query.head_dim
    step = CacheStep(
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
    layout = backend.cache_layout(2)
    cache = torch.zeros(layout.shape, dtype=getattr(torch, layout.dtype))
    sinks = torch.zeros(query.num_heads) if query.sinks else None
    qkv = torch.zeros(tokens, query.num_heads + 2 * query.num_kv_heads, size, dtype=dtype)
    q, k, v = qkv.split_with_sizes([query.num_heads, query.num_kv_heads, query.num_kv_heads], 1)
    weight = torch.zeros(size, dtype=dtype)
    meta = backend.prepare(step)
    positions, angles = torch.zeros(tokens, dtype=torch.int64), torch.zeros(8, size)
    qk_norm_rope_attention(q, k, v, weight, weight, 1e-6, positions, angles, cache, meta)
    backend.write(k, v, cache, meta)
    backend.run(q, cache, meta, sinks)


def elementwise(size: int, inner: int, dtype: torch.dtype) -> None:
    """Norms, activations and embedding of a hidden size and an intermediate size."""
    x, weight = torch.zeros(4, size, dtype=dtype), torch.zeros(size, dtype=dtype)
    norms.rms_norm(x, weight, 1e-6)
    norms.add_rms_norm(x, x, weight, 1e-6)
    norms.sandwich_norm_plus_one(x, x, weight, weight, 1e-6)
    for activate in (activations.silu_and_mul, activations.gelu_and_mul, activations.gelu_tanh_and_mul):
        activate(torch.zeros(4, 2 * inner, dtype=dtype))
    embedding.embedding(torch.zeros(4, dtype=torch.int64), x)


def _cases() -> dict[str, Callable[[], None]]:
    cases: dict[str, Callable[[], None]] = {}
    for name, dtype in DTYPES.items():
        for size, inner in ((1024, 3072), (2048, 768), (4096, 12288), (3584, 14336)):
            cases[f"elementwise {size}x{inner} {name}"] = partial(elementwise, size, inner, dtype)
        for model in MODELS:
            cases[f"decode {model} {name}"] = partial(attention, model, dtype, 1, 1, 512)
            cases[f"many decode {model} {name}"] = partial(attention, model, dtype, 256, 1, 512)
            cases[f"prefill {model} {name}"] = partial(attention, model, dtype, 1, 512, 512)
            cases[f"mixed {model} {name}"] = partial(attention, model, dtype, 2, 256, 512)
    return cases


CASES = _cases()
