"""The plugin module: defaults for platforms, checks of the configuration, and options of its own. It imports no
torch."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, Field

from llmk.api import Default, ModelFacts, Plan, PlatformFacts, Problem, hookimpl

logger = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SMALL = 16 << 30


class Options(BaseModel, extra="forbid"):
    """``[plugin.acme]``."""

    allow_open: bool = Field(False, description="Let a server without API keys listen to other machines.")


@hookimpl
def llmk_config_schema() -> type[BaseModel]:
    """The options."""
    return Options


@hookimpl
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None) -> Iterable[Default]:
    """Better defaults for this machine and model; values that the user sets take precedence."""
    if model is not None and 0 < platform.memory_bytes < SMALL:
        yield Default("scheduler.max_num_seqs", 16, "a device of less than 16 GiB has room for few requests")


@hookimpl
def llmk_check_config(config: Any, platform: PlatformFacts) -> Iterable[Problem]:
    """Configurations that must not be started, reported before anything is loaded. ``config`` is an
    ``llmk.config.Config``."""
    options = Options.model_validate(config.plugin.get("acme", {}))
    if config.server.host not in LOOPBACK and not config.server.api_keys and not options.allow_open:
        yield Problem(
            "server.api_keys",
            f"{config.server.host} is open to anyone",
            "set a key, or [plugin.acme] allow_open = true",
        )


@hookimpl
def llmk_plan_resolved(plan: Plan) -> None:
    """Called with the resolved plan, which it can't change."""
    wheels = ", ".join(f"{wheel} {version}" for wheel, version in plan.wheels)
    logger.info("%s is served by %s", plan.architecture, wheels)
