"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from pydantic import BaseModel, Field

from llmk.api import IOProcessorSpec, LogitsProcessorSpec, PolicySpec, RouterSpec, RouteSpec, hookimpl


class Options(BaseModel, extra="forbid"):
    """``[plugin.heron]``, for the IO processor."""

    max_documents: int = Field(1000, ge=1, description="Documents that a request to rerank may have.")
    skip_punctuation: bool = Field(True, description="Whether punctuation in documents counts for nothing.")


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The plugin's own options."""
    return Options


@hookimpl
def llmk_scheduling_policies() -> list[PolicySpec]:
    """Scheduling policies. A policy is only used if the configuration names it."""
    return [
        PolicySpec(
            id="heron.strides",
            name="strides",
            implementation="llmk_lagoon.heron_strides:Strides",
            examples="llmk_lagoon.heron_strides_examples:STRIDES",
            summary="priority classes share the engine: each level of priority gets half of the one before",
        )
    ]


@hookimpl
def llmk_routers() -> list[RouterSpec]:
    """Routers. A router is only used if the configuration names it."""
    return [
        RouterSpec(
            id="heron.rendezvous",
            name="rendezvous",
            implementation="llmk_lagoon.heron_rendezvous:Rendezvous",
            examples="llmk_lagoon.heron_rendezvous_examples:RENDEZVOUS",
            summary="weighted rendezvous hashing of sessions and prefixes, with bounded loads",
        )
    ]


@hookimpl
def llmk_logits_processors() -> list[LogitsProcessorSpec]:
    """Logits processors. Requests name one by its id."""
    return [
        LogitsProcessorSpec(
            id="heron.dry",
            implementation="llmk_lagoon.heron_dry:DontRepeatYourself",
            examples="llmk_lagoon.heron_dry_examples:DRY",
            summary="DRY: the longer a repetition that a token would extend, the less likely the token",
        )
    ]


@hookimpl
def llmk_routes() -> list[RouteSpec]:
    """Routes of HTTP APIs."""
    return [
        RouteSpec(
            id="heron.chat",
            method="POST",
            path="/v2/chat",
            implementation="llmk_lagoon.heron_chat:Chat",
            examples="llmk_lagoon.heron_chat_examples:CHAT",
            summary="Cohere's API, version 2: a response to a conversation, streamed or complete",
        )
    ]


@hookimpl
def llmk_io_processors() -> list[IOProcessorSpec]:
    """IO processors."""
    return [
        IOProcessorSpec(
            id="heron.rerank",
            name="rerank",
            implementation="llmk_lagoon.heron_rerank:Rerank",
            examples="llmk_lagoon.heron_rerank_examples:RERANK",
            summary="documents by their relevance to a query, by late interaction (ColBERT)",
        )
    ]
