"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import OK, AttentionQuery, KernelSpec, Needs, Tier, Verdict, hookimpl, no


def supports(query: AttentionQuery) -> Verdict:
    """Keys and values in the engine's dtype."""
    if query.cache_dtype != query.dtype:
        return no("cache_dtype", wanted=query.cache_dtype, found=query.dtype)
    return OK


@hookimpl
def llmk_attention_backends() -> list[KernelSpec]:
    """Attention backends."""
    return [
        KernelSpec(
            id="acme.attention",
            kind="attention",
            implementation="llmk_acme.attention:AcmeAttention",
            layout="acme",
            tier=Tier.PORTABLE,
            # Add platforms=("...",), features and packages as soon as the kernel needs them.
            needs=Needs(dtypes=("bfloat16", "float16", "float32")),
            supports=supports,
            # What the kernel handles. A query with any other field at another value than its default refuses it.
            knows=frozenset({"sliding_window", "softcap", "sinks"}),
            summary="one request at a time, in float32",
        )
    ]
