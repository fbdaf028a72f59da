"""Serialises a boot for the engine's process, and restores it there."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from llmk.planning.choices.launchers import launcher_of

if TYPE_CHECKING:
    from llmk.planning.boot import Boot


logger = logging.getLogger(__name__)


def pack(boot: Boot) -> dict[str, Any]:
    """A boot as picklable data, without the registry: specs have functions, and the plan names all chosen
    implementations. Plugins that are broken here are not loaded again: one that hangs would do so in every process."""
    data = {field.name: getattr(boot, field.name) for field in fields(boot) if field.name != "registry"}
    return data | {"broken": [plugin.name for plugin in boot.registry.plugins if plugin.state == "broken"]}


def early_setup(boot: Boot) -> str:
    """:attr:`llmk.api.PlatformSpec.early_setup` of the chosen platform; empty for several ranks, and for ranks that
    a launcher starts, since the engine's process then runs no model itself."""
    if boot.plan.num_ranks > 1 or launcher_of(boot.plan):
        return ""
    specs = [platform.spec for platform in boot.registry.platforms]
    return next(spec.early_setup for spec in specs if spec.implementation == boot.plan.platform_implementation)


def unpack(packed: dict[str, Any]) -> Boot:
    """Restores the boot, with a registry of this process."""
    from llmk.kernel.registry import Registry
    from llmk.planning.boot import Boot

    data = dict(packed)
    rules = data["settings"].config.plugins
    left_out = rules.model_copy(update={"disable": (*rules.disable, *data.pop("broken"))})
    return Boot(registry=Registry.discover(left_out), **data)
