"""The plugin module: this distribution's specs, and its section of the configuration. It imports no torch."""

from __future__ import annotations

from pydantic import BaseModel, Field

from llmk.api import StatLoggerSpec, hookimpl


class Options(BaseModel, extra="forbid"):
    """``[plugin.acme]``."""

    file: str = Field("acme-stats.jsonl", min_length=1, description="Where lines are added.")


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The options."""
    return Options


@hookimpl
def llmk_stat_loggers() -> list[StatLoggerSpec]:
    """Stat loggers. A logger is only used if ``server.stat_loggers`` names it."""
    return [
        StatLoggerSpec(
            id="acme.lines",
            name="acme-lines",
            implementation="llmk_acme.lines:Lines",
            examples="llmk_acme.examples:LINES",
            summary="a line of JSON for every snapshot",
        )
    ]
