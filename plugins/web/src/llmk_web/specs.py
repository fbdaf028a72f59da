"""The plugin module of ``llmk-web``: its page."""

from __future__ import annotations

from llmk.api import PageSpec, hookimpl


@hookimpl
def llmk_pages() -> list[PageSpec]:
    """The page at ``/``."""
    return [
        PageSpec(
            id="web.page",
            path="/",
            package="llmk_web",
            folder="page",
            summary="a chat with the model, live numbers of the server, its memory, and the plan in words",
        )
    ]
