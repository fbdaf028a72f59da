"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import RouteSpec, hookimpl


@hookimpl
def llmk_routes() -> list[RouteSpec]:
    """Routes of HTTP APIs. A path that llmk serves itself stays llmk's."""
    return [
        RouteSpec(
            id="acme.ask",
            method="POST",
            path="/acme/ask",
            implementation="llmk_acme.ask:Ask",
            examples="llmk_acme.examples:ASK",
            summary="a question and its answer",
        )
    ]
