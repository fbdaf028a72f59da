"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import KernelSpec, OpContract, Tier, hookimpl

OP = "llmk_acme_tanh"
"""The op's name. One that another wheel declares is refused, so it has this distribution's."""


@hookimpl
def llmk_ops() -> list[KernelSpec | OpContract]:
    """The op, the kernel that says what is right, and one that is used in its place."""
    return [
        OpContract(
            id="acme.tanh",
            op=OP,
            signature="(x, alpha, weight, bias) -> out",
            facts=("size",),
            examples="llmk_acme.examples:TANH",
            weights=("alpha", "weight", "bias"),
            summary="Dynamic tanh, which some models have in place of a norm.",
        ),
        KernelSpec(
            id="acme.tanh",
            kind="op",
            op=OP,
            implementation="llmk_acme.dynamic_tanh:dynamic_tanh",
            tier=Tier.REFERENCE,
            deterministic=True,
            capture="full",
            summary="dynamic tanh in float32, as its paper writes it",
        ),
        KernelSpec(
            id="acme.tanh_in_place",
            kind="op",
            op=OP,
            implementation="llmk_acme.dynamic_tanh:dynamic_tanh_in_place",
            tier=Tier.PORTABLE,
            deterministic=True,
            capture="full",
            summary="dynamic tanh with a third of the memory",
        ),
    ]
