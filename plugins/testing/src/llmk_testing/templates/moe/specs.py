"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import OK, KernelSpec, MoEQuery, Needs, Tier, Verdict, hookimpl, no


def supports(query: MoEQuery) -> Verdict:
    """Gated SiLU experts without biases, with plain weights."""
    verdict = OK
    if query.weight_format != "plain":
        verdict &= no("weight_format", wanted=query.weight_format, found="plain")
    if query.activation != "silu":
        verdict &= no("activation", wanted=query.activation, found="silu")
    if query.bias:
        verdict &= no("bias", wanted="biases", found="experts without")
    return verdict


@hookimpl
def llmk_moe_kernels() -> list[KernelSpec]:
    """Mixtures of experts."""
    return [
        KernelSpec(
            id="acme.moe",
            kind="moe",
            implementation="llmk_acme.moe:moe",
            tier=Tier.PORTABLE,
            # Add platforms=("...",), features and packages as soon as the kernel needs them.
            needs=Needs(dtypes=("bfloat16", "float16", "float32")),
            supports=supports,
            summary="a loop over the experts",
        )
    ]
