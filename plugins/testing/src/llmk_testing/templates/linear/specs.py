"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import OK, KernelSpec, LinearQuery, Needs, Tier, Verdict, hookimpl, no


def supports(query: LinearQuery) -> Verdict:
    """Plain weights. ``query`` also has the GEMM's shape: refuse shapes for which the kernel is slow."""
    if query.weight_format == "plain":
        return OK
    return no("weight_format", wanted=query.weight_format, found="plain")


@hookimpl
def llmk_linear_kernels() -> list[KernelSpec]:
    """Linear kernels."""
    return [
        KernelSpec(
            id="acme.linear",
            kind="linear",
            implementation="llmk_acme.linear:linear",
            prepare="llmk_acme.linear:prepare",
            layout="acme_transposed",
            tier=Tier.PORTABLE,
            # Add platforms=("...",), features and packages as soon as the kernel needs them.
            needs=Needs(dtypes=("bfloat16", "float16", "float32")),
            supports=supports,
            summary="torch's GEMM with a transposed weight",
        )
    ]
