"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import LogitsProcessorSpec, hookimpl


@hookimpl
def llmk_logits_processors() -> list[LogitsProcessorSpec]:
    """Logits processors. Requests name one by its id."""
    return [
        LogitsProcessorSpec(
            id="acme.no_stutter",
            implementation="llmk_acme.stutter:NoStutter",
            examples="llmk_acme.examples:NO_STUTTER",
            summary="makes a token less likely right after itself",
        )
    ]
