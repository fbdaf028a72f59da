"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import OK, AttentionQuery, KernelSpec, Needs, Tier, Verdict, hookimpl, no


def supports(query: AttentionQuery) -> Verdict:
    """Causal attention over keys and values in the engine's dtype; with sliding windows, soft caps and sinks."""
    verdict = OK
    if query.latent_dim is not None:
        verdict &= no("latent_dim", wanted=query.latent_dim, found="values that are stored apart")
    if query.cache_dtype != query.dtype:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=query.dtype)
    if not query.causal:
        verdict &= no("causal", wanted="attention to later tokens", found="causal")
    return verdict


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
            summary="one request at a time, in float32",
        )
    ]
