"""How a boot reaches the engine's process, and what is done with it there."""

from __future__ import annotations

import gc
import logging
import pickle
import sys
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import psutil
from msgspec.structs import replace

from llmk.engine import logs
from llmk.engine.client import EngineInfo
from llmk.engine.shadows import shadowed
from llmk.engine.spawn import STANDBY

if TYPE_CHECKING:
    from llmk.engine.core import EngineCore
    from llmk.kernel.boot import Boot


logger = logging.getLogger(__name__)


def pack(boot: Boot) -> dict[str, Any]:
    """A boot as data. The registry stays: specs hold functions, and the plan names all that won. Plugins that are
    broken here needn't be tried again: one that hangs would do so in every process."""
    data = {field.name: getattr(boot, field.name) for field in fields(boot) if field.name != "registry"}
    return data | {"broken": [plugin.name for plugin in boot.registry.plugins if plugin.state == "broken"]}


def begins(boot: Boot) -> str:
    """What begins the device of an engine that runs its model itself, where the platform has that."""
    if boot.plan.num_ranks > 1:
        return ""
    specs = [platform.spec for platform in boot.registry.platforms]
    return next(spec.begin for spec in specs if spec.implementation == boot.plan.platform_implementation)


def unpack(packed: dict[str, Any]) -> Boot:
    """The boot again, with the registry of this process."""
    from llmk.kernel.boot import Boot
    from llmk.kernel.registry import Registry

    data = dict(packed)
    rules = data["settings"].config.plugins
    left_out = rules.model_copy(update={"disable": (*rules.disable, *data.pop("broken"))})
    return Boot(registry=Registry.discover(left_out), **data)


def build(packed: dict[str, Any]) -> tuple[EngineCore, EngineInfo]:
    """Builds the engine of a packed boot, by its plan. Only a winner that can't be imported here makes it resolve
    again.
    """
    from llmk.engine.launch import build_core
    from llmk.kernel.boot import verified

    server = packed["settings"].config.server
    logs.setup(server.log_level, server.log_format)
    boot = shadowed(verified(unpack(packed)))
    if STANDBY not in sys.argv:  # whose imports were done long ago
        logger.info("engine process: %.2f s of imports", time.time() - psutil.Process().create_time())
    core, info = build_core(boot)
    gc.collect()
    gc.freeze()  # what was built stays for good: collecting garbage needn't look at it again
    return core, replace(info, pickled_plan=pickle.dumps(boot.plan))
