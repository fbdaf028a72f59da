"""The plugin module of ``llmk-anthropic``: its routes."""

from __future__ import annotations

from llmk.api import RouteSpec, hookimpl


@hookimpl
def llmk_routes() -> list[RouteSpec]:
    """Messages, and the count of a message's tokens."""
    return [
        RouteSpec(
            id="anthropic.messages",
            method="POST",
            path="/v1/messages",
            implementation="llmk_anthropic.messages:Messages",
            examples="llmk_anthropic.examples:MESSAGES",
            summary="Anthropic's Messages API: a response to a conversation, streamed or complete",
        ),
        RouteSpec(
            id="anthropic.count_tokens",
            method="POST",
            path="/v1/messages/count_tokens",
            implementation="llmk_anthropic.messages:CountTokens",
            examples="llmk_anthropic.examples:COUNT",
            summary="Anthropic's Messages API: the number of tokens of a conversation",
        ),
    ]
