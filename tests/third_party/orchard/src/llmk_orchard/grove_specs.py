"""The plugin module of the platform. It is a plugin of its own, as kernels beside a platform are for that alone."""

from __future__ import annotations

from llmk.api import PlatformSpec, hookimpl
from llmk_orchard.soil import KNOWN, probe


@hookimpl
def llmk_platforms() -> list[PlatformSpec]:
    """Cores of x86, which are used only by name."""
    return [
        PlatformSpec(
            id="grove.grove",
            name="grove",
            implementation="llmk_orchard.grove:Grove",
            probe=probe,
            known=KNOWN,
            rank=-10,
            examples="llmk_orchard.more_examples:MACHINES",
            summary="x86 by its generations",
        )
    ]
