"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import IOProcessorSpec, hookimpl


@hookimpl
def llmk_io_processors() -> list[IOProcessorSpec]:
    """IO processors. One that can't serve every checkpoint says so in ``supports``."""
    return [
        IOProcessorSpec(
            id="acme.surprise",
            name="acme-surprise",
            implementation="llmk_acme.surprise:Surprise",
            examples="llmk_acme.examples:SURPRISE",
            summary="how little the model expects each of some texts",
        )
    ]
