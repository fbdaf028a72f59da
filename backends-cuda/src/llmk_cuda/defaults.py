"""How the engine's sizes follow from a GPU's memory. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator

from llmk.api import Default, ModelFacts, PlatformFacts
from llmk.api.cache import DTYPE_BYTES

_GIB = 1 << 30

_SIZES = ((64 * _GIB, 256, 8192), (32 * _GIB, 256, 4096), (0, 128, 2048))
"""Least memory, requests at once, tokens of a step: larger chips need more of both before their arithmetic is busy."""

_SAMPLING_BYTES = 48
"""Per logit of a step: float32 logits, sorted copies with indices, and 64-bit sums of ``llmk.reference.sampling``."""

_RESERVE = 1 * _GIB
"""For what torch does not allocate: library workspaces, compiled kernels, graphs, NCCL's buffers."""

_LEAST_SHARE, _MOST_SHARE = 0.5, 0.95


def advise(platform: PlatformFacts, model: ModelFacts | None) -> Iterator[Default]:
    """Sizes of a step, and the share of the memory beside the weights that they leave to the cache; nothing where the
    memory is not known."""
    if not platform.memory_bytes:
        return
    seqs, tokens = next((seqs, tokens) for least, seqs, tokens in _SIZES if platform.memory_bytes >= least)
    why = f"{platform.memory_bytes / _GIB:.0f} GiB of {platform.device_name or platform.label}"
    yield Default("scheduler.max_num_seqs", seqs, why)
    yield Default("scheduler.max_num_batched_tokens", tokens, why)
    if model is not None:
        needed = _RESERVE + activation_bytes(model, tokens, seqs)
        free = platform.memory_bytes - model.num_parameters * DTYPE_BYTES[model.dtype]
        share = 1 - needed / free if free > needed else 0.0
        share = round(min(_MOST_SHARE, max(_LEAST_SHARE, share)), 2)
        why = f"the rest is for activations of {tokens} tokens, sampling of {seqs} requests, and libraries: "
        yield Default("cache.memory_share", share, f"{why}about {needed / _GIB:.1f} GiB")


def activation_bytes(model: ModelFacts, tokens: int, rows: int) -> int:
    """About what a step of ``tokens`` tokens that samples ``rows`` rows holds at most at a time."""
    sites = [site for site in model.linear if site.out_features != model.vocab_size]
    widest = max((site.in_features + site.out_features for site in sites), default=0)
    experts = max((site.top_k * (site.hidden_size + 3 * site.intermediate_size) for site in model.moe), default=0)
    per_token = (4 * model.hidden_size + max(widest, experts)) * DTYPE_BYTES[model.dtype]
    return tokens * per_token + rows * model.vocab_size * _SAMPLING_BYTES
