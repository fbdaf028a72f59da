"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import (
    IOProcessorSpec,
    LogitsProcessorSpec,
    PolicySpec,
    RouterSpec,
    RouteSpec,
    hookimpl,
)


@hookimpl
def llmk_scheduling_policies() -> list[PolicySpec]:
    """Scheduling policies."""
    return [
        PolicySpec(
            id="ibis.tiers",
            name="tiers",
            implementation="llmk_delta.ibis_tiers:Tiers",
            examples="llmk_delta.ibis_policy_examples:TIERS",
            summary="four tiers of priority with shares of 8:4:2:1; within one, short prompts first, with aging",
        )
    ]


@hookimpl
def llmk_routers() -> list[RouterSpec]:
    """Routers."""
    return [
        RouterSpec(
            id="ibis.rendezvous",
            name="rendezvous",
            implementation="llmk_delta.ibis_rendezvous:Rendezvous",
            examples="llmk_delta.ibis_router_examples:RENDEZVOUS",
            summary="rendezvous hashing of sessions and prefixes, with bounded work",
        )
    ]


@hookimpl
def llmk_logits_processors() -> list[LogitsProcessorSpec]:
    """Logits processors."""
    return [
        LogitsProcessorSpec(
            id="ibis.dry",
            implementation="llmk_delta.ibis_dry:Dry",
            examples="llmk_delta.ibis_logits_examples:DRY",
            summary="DRY: tokens that would continue a repetition of earlier text are less likely",
        )
    ]


@hookimpl
def llmk_io_processors() -> list[IOProcessorSpec]:
    """IO processors."""
    return [
        IOProcessorSpec(
            id="ibis.choices",
            name="choices",
            implementation="llmk_delta.ibis_choices:Choices",
            examples="llmk_delta.ibis_io_examples:CHOICES",
            summary="multiple-choice questions, by the likelihood of each choice",
        )
    ]


@hookimpl
def llmk_routes() -> list[RouteSpec]:
    """Routes."""
    return [
        RouteSpec(
            id="ibis.cohere_chat",
            method="POST",
            path="/v2/chat",
            implementation="llmk_delta.ibis_cohere:CohereChat",
            examples="llmk_delta.ibis_route_examples:COHERE_CHAT",
            summary="Cohere's chat API, version 2: a response to a conversation, streamed or complete",
        )
    ]
