"""What the plain executor can run: trees of dense layers with RMS norms, in one process. It imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from llmk.api import OK, ExecutorQuery, Verdict, no
from llmk.tree import CausalLM, GatedMLP, Linear, Norm, Residual, SelfAttention

DTYPES = ("float32", "bfloat16", "float16")


def executor_supports(query: ExecutorQuery) -> Verdict:
    """All reasons why not."""
    verdict = OK
    if query.platform.device_type != "cpu":
        verdict &= no("platform", wanted="torch on the host (cpu)", found=query.platform.label)
    if query.tensor * query.pipeline != 1:
        verdict &= no("parallel", wanted="1 device", found=f"{query.tensor} x {query.pipeline}")
    if query.dtype not in DTYPES:
        verdict &= no("dtype", wanted=" or ".join(DTYPES), found=query.dtype)
    if query.cache_dtype not in DTYPES:
        verdict &= no("cache_dtype", wanted=" or ".join(DTYPES), found=query.cache_dtype)
    if query.tree is None:
        return verdict & no("tree", wanted="a tree of specs", found="none", hint="the family gives none")
    missing = sorted(set(_missing(query.tree)))
    for what in missing:
        verdict &= no("tree", wanted="dense layers of RMS norms, full or sliding attention and gated MLPs", found=what)
    return verdict


def _missing(tree: CausalLM) -> Iterator[str]:
    if tree.stream is not None:
        yield "a stream"
    if tree.embed_norm is not None:
        yield "a norm of embeddings"
    if tree.residual_dtype not in ("", "float32"):
        yield f"a {tree.residual_dtype} residual"
    yield from _norm(tree.norm)
    for part in (part for layer in tree.layers for part in layer):
        if not isinstance(part, Residual):
            yield type(part).__name__
            continue
        yield from _norm(part.norm)
        yield from _norm(part.post)
        if isinstance(part.block, SelfAttention):
            yield from _attention(part.block)
        elif isinstance(part.block, GatedMLP):
            yield from _linear(part.block.gate_up, part.block.down)
        else:
            yield type(part.block).__name__


def _norm(norm: Norm | None) -> Iterator[str]:
    if norm is not None and (norm.centered or norm.bias or not norm.weighted):
        yield "a norm that is centered or has no weight"


def _linear(*layers: Linear) -> Iterator[str]:
    for layer in layers:
        if layer.adapters is not None or layer.groups or layer.absorbed:
            yield "a linear layer with adapters or of groups"


def _attention(block: SelfAttention) -> Iterator[str]:
    attend = block.attend
    yield from _linear(block.qkv, block.out)
    odd = {
        "a gate": block.gate is not None or block.gate_proj is not None,
        "clipping": block.clip is not None,
        "a scaled output": block.out_scale != 1.0,
        "keys as values": block.keys_as_values,
        "norms apart": attend.norms_apart,
        "norms after rotation": attend.norm_after_rope,
        "norms of values": attend.value_norm is not None,
        "unweighted norms": attend.qk_norm is not None and not attend.norm_weighted,
        "shared keys": attend.shares is not None,
        "chunks": attend.chunked,
        "sinks": attend.sinks,
        "scaled queries": attend.query_scale is not None,
        "slopes": bool(attend.slopes),
        "several axes": attend.rope is not None and bool(attend.rope.sections),
    }
    yield from (name for name, is_there in odd.items() if is_there)
