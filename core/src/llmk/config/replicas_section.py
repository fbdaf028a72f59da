"""The section of several engines that serve one model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llmk.config.section import Count, Seconds, Section


class ReplicasSection(Section):
    """Replicas: engines that serve the same model behind one server."""

    count: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1, description="Engines to start on this machine, each with its own weights and cache."
    )
    max_load: Annotated[float, Field(ge=1.0)] = Field(
        default=1.1, description="Work that the busiest may be given, as a multiple of the mean (prefix_aware)."
    )
    router_seconds: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="Time limit of a router's call, after which the built-in choice is used."
    )
    slow_factor: Annotated[float, Field(ge=0)] = Field(
        default=8.0,
        description="Steps that take so many times the median's time make a replica slow: it gets nothing new, and its "
        "requests go on elsewhere. 0: never.",
    )
    slow_seconds: Seconds = Field(
        default=10.0, description="Seconds that steps must take longer than that, and that a slow replica is left out."
    )


class EventsSection(Section):
    """Events of the K/V cache for routers of clusters: which blocks were stored and removed."""

    endpoint: str = Field(
        default="", description="ZeroMQ address to publish them on: tcp://127.0.0.1:5557. Empty: they are not."
    )
    replay_endpoint: str = Field(
        default="", description="ZeroMQ address that sends past ones again, from a sequence number on. Empty: none."
    )
    topic: str = Field(default="", description="Topic of the messages, such as kv@POD@MODEL.")
    buffer: Count = Field(default=10_000, description="Messages that can be sent again.")
