"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import PageSpec, hookimpl


@hookimpl
def llmk_pages() -> list[PageSpec]:
    """Pages for browsers. A page for a path that another has is left out with a warning."""
    return [
        PageSpec(
            id="acme.tokens",
            path="/acme",
            package="llmk_acme",
            folder="page",
            summary="how many tokens a text has",
        )
    ]
