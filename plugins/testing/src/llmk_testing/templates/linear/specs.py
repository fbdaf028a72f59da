"""The plugin module: what this distribution brings. It needs no torch."""

from __future__ import annotations

from llmk.api import OK, KernelSpec, LinearQuery, Needs, Tier, Verdict, hookimpl, no


def supports(query: LinearQuery) -> Verdict:
    """Weights that are stored as they are. ``query`` has the product's shape, too: refuse what isn't served well."""
    if query.weight_format == "plain":
        return OK
    return no("weight_format", wanted=query.weight_format, found="plain")


@hookimpl
def llmk_linear_kernels() -> list[KernelSpec]:
    """Products with weights."""
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
            summary="torch's product with a transposed weight",
        )
    ]
