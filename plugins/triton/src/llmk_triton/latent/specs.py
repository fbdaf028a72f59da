"""The kernels of attention to selected tokens. Imports neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Iterator

from llmk.api import OK, KernelSpec, OpQuery, Verdict, no
from llmk_triton.kernel_spec import has_large_tiles, kernel_spec

_WIDEST_LATENT, _WIDEST_SHARED_KEY = 512, 64
"""Most elements of a latent vector, of which a program holds a result for each of its heads, and of the shared key."""
_WIDEST_INDEX, _MOST_INDEX_HEADS = 128, 128
"""Most elements of an indexer's key, and most heads, which are one tile."""


def selected_specs() -> Iterator[KernelSpec]:
    """All of them."""
    yield kernel_spec(
        "select_tokens",
        "op",
        "latent.selected:select_tokens",
        op="select_tokens",
        supports=supports_index,
        summary="The indexer's scores in one launch, of which torch picks the greatest.",
    )
    yield kernel_spec(
        "selected_attention",
        "op",
        "latent.selected:selected_attention",
        op="selected_attention",
        supports=supports_rows,
        summary="A launch for groups of heads; for few tokens, several programs share what each selected.",
    )


def supports_index(query: OpQuery) -> Verdict:
    """Indexers whose heads fit in one tile."""
    heads, size = query.facts.get("num_heads", 0), query.facts.get("head_dim", 0)
    verdict = _supports_device(query)
    if heads > _MOST_INDEX_HEADS:
        verdict &= no("num_heads", wanted=heads, found=f"up to {_MOST_INDEX_HEADS}")
    if size > _WIDEST_INDEX:
        verdict &= no("head_dim", wanted=size, found=f"up to {_WIDEST_INDEX}")
    return verdict


def supports_rows(query: OpQuery) -> Verdict:
    """Rows that fit in a program's registers and shared memory."""
    latent, rope = query.facts.get("kv_lora_rank", 0), query.facts.get("qk_rope_head_dim", 0)
    verdict = _supports_device(query)
    if latent > _WIDEST_LATENT or rope > _WIDEST_SHARED_KEY:
        found = f"up to {_WIDEST_LATENT} and {_WIDEST_SHARED_KEY}"
        verdict &= no("kv_lora_rank", wanted=f"{latent} and {rope}", found=found)
    return verdict


def _supports_device(query: OpQuery) -> Verdict:
    platform = query.platform
    if has_large_tiles(platform):
        return OK
    return no("arch", wanted=platform.arch, found="GPUs with more registers for a row per head")
