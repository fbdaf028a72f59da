"""The plugin ``nova``: its platform, a kernel of its own, and defaults. Imports no torch."""

from __future__ import annotations

from llmk.api import Default, KernelSpec, ModelFacts, Needs, PlatformFacts, PlatformSpec, Tier, hookimpl
from llmk_nova.probe import KNOWN, probe


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """Nova accelerators, ranked above the CPU."""
    return [
        PlatformSpec(
            id="nova.nova",
            name="nova",
            implementation="llmk_nova.platform:NovaPlatform",
            probe=probe,
            known=KNOWN,
            rank=50,
            examples="llmk_nova.examples:MACHINES",
            summary="simulated accelerators",
        )
    ]


@hookimpl
def llmk_ops() -> list[KernelSpec]:
    """A residual's sum and its norm in one kernel."""
    return [
        KernelSpec(
            id="nova.add_rms_norm",
            kind="op",
            op="add_rms_norm",
            implementation="llmk_nova.kernels:add_rms_norm",
            tier=Tier.NATIVE,
            needs=Needs(platforms=("nova",), dtypes=("float32", "bfloat16")),
            deterministic=True,
            summary="sum and norm in one pass over each row",
        )
    ]


@hookimpl
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None) -> list[Default]:
    """Most of the memory for the cache: nobody else has a use for it."""
    if platform.name != "nova":
        return []
    return [Default("cache.memory_share", 0.9, "the device's memory serves the engine alone")]
