"""The plugin module of ``llmk-statsd``: the logger, and its section of the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from llmk.api import StatLoggerSpec, hookimpl


class Options(BaseModel, extra="forbid"):
    """``[plugin.statsd]``."""

    host: str = Field("127.0.0.1", description="Where the daemon listens.")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(8125, description="Its UDP port.")
    prefix: str = Field("llmk", description="Prefix of every name, followed by a dot. Empty: no prefix.")
    tags: bool = Field(False, description="Send labels as DogStatsD tags instead of parts of the name.")
    max_bytes: Annotated[int, Field(ge=64, le=65507)] = Field(
        1432, description="Largest datagram in bytes. It must fit into the network's packets, mostly 1,500 bytes."
    )


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """Address, prefix and dialect."""
    return Options


@hookimpl
def llmk_stat_loggers() -> list[StatLoggerSpec]:
    """StatsD over UDP."""
    return [
        StatLoggerSpec(
            id="statsd.statsd",
            name="statsd",
            implementation="llmk_statsd.logger:StatsD",
            examples="llmk_statsd.examples:STATSD",
            summary="gauges, and counters as differences, to a StatsD daemon over UDP",
        )
    ]
