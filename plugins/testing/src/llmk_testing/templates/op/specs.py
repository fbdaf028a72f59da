"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import KernelSpec, Needs, Tier, hookimpl


@hookimpl
def llmk_ops() -> list[KernelSpec]:
    """Ops, under the names that ``llmk.reference`` documents. A kernel for a composite op names its ``parts``."""
    return [
        KernelSpec(
            id="acme.rms_norm",
            kind="op",
            op="rms_norm",
            implementation="llmk_acme.norm:rms_norm",
            tier=Tier.PORTABLE,
            # Add platforms=("...",), features and packages as soon as the kernel needs them.
            needs=Needs(dtypes=("bfloat16", "float16", "float32")),
            capture="full",
            summary="the root-mean-square norm, in five operators",
        )
    ]
