"""The plugin module of ``llmk-ollama``: its routes."""

from __future__ import annotations

from typing import Literal

from llmk.api import RouteSpec, hookimpl


def _route(method: Literal["GET", "HEAD", "POST"], path: str, implementation: str, summary: str) -> RouteSpec:
    name = path.removeprefix("/api/").strip("/") or "root"
    return RouteSpec(
        id=f"ollama.{name}" if method != "HEAD" else f"ollama.{name}_head",
        method=method,
        path=path,
        implementation=f"llmk_ollama.{implementation}",
        framing="ndjson",
        any_content_type=True,
        examples=f"llmk_ollama.examples:{name.upper()}",
        summary=f"Ollama's API: {summary}",
    )


@hookimpl
def llmk_routes() -> list[RouteSpec]:
    """Generation, embeddings, and what is served."""
    return [
        _route("POST", "/api/chat", "chat:Chat", "a response to a conversation, streamed or complete"),
        _route("POST", "/api/generate", "generate:Generate", "a response to a prompt, streamed or complete"),
        _route("POST", "/api/embed", "embed:Embed", "embeddings of texts"),
        _route("POST", "/api/embeddings", "embed:Embeddings", "the embedding of a text, in the older format"),
        _route("GET", "/api/tags", "models:Tags", "the served model and its adapters"),
        _route("POST", "/api/show", "models:Show", "details of the served model"),
        _route("POST", "/api/pull", "models:Pull", "whether a model is served, for clients that pull it first"),
        _route("GET", "/api/ps", "models:Processes", "the models in memory"),
        _route("GET", "/api/version", "models:Version", "the version of the API"),
        _route("GET", "/", "models:Root", "whether the server runs"),
        _route("HEAD", "/", "models:Root", "whether the server runs"),
    ]
