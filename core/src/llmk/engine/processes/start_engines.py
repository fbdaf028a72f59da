"""Starts the engines of a boot, each in a process of its own, under a supervisor."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmk.api import RouterContext
from llmk.engine.processes.client import EngineClient
from llmk.engine.processes.engine_process import ProcessClient
from llmk.engine.processes.replicas import Replicas
from llmk.engine.processes.standby import Standby
from llmk.engine.processes.supervisor import Supervisor
from llmk.engine.routing.guarded_router import GuardedRouter
from llmk.planning.choices.policies import router_of
from llmk.planning.packed_boot import early_setup, pack
from llmk.planning.replicas import share_of

if TYPE_CHECKING:
    from llmk.planning.boot import Boot

BUILDER = "llmk.engine.launch:build_packed"


async def start_engines(boot: Boot, spawned: ProcessClient) -> tuple[EngineClient, Boot]:
    """One engine, or as many replicas as are configured, and the boot with the plan that could be loaded there.
    ``spawned`` is the process of the first, whose device is being set up."""
    choice = router_of(boot.plan.choices)
    if choice is None:
        client: EngineClient = await start_engine(boot, spawned)
    else:
        rules, first = boot.settings.config.replicas, [spawned]
        router = GuardedRouter.load(choice, RouterContext(rules.max_load), rules.router_seconds)
        num_blocks = 0

        async def start(number: int) -> Supervisor:
            nonlocal num_blocks
            process = first.pop() if first else None
            supervisor = await start_engine(share_of(boot, number, num_blocks), process, standby=False)
            num_blocks = num_blocks or supervisor.info.num_blocks
            return supervisor

        client = await Replicas.start(rules.count, start, router, rules)
    plan = pickle.loads(client.info.pickled_plan)  # nosec B301 # our own engine wrote it
    return client, replace(boot, plan=plan)


async def start_engine(boot: Boot, spawned: ProcessClient | None = None, *, standby: bool = True) -> Supervisor:
    """An engine in its own process, at first in ``spawned``, whose device is being set up. Where other replicas
    go on meanwhile, no process stands by to replace it."""
    config, packed, first = boot.settings.config.engine, pack(boot), [spawned] if spawned else []
    options: dict[str, Any] = {"builder": BUILDER}
    options |= {"hang_seconds": config.hang_seconds, "plugin_seconds": config.plugin_seconds}
    next_one, distrusted = Standby(boot.plan, enabled=config.standby and standby), set[str]()

    async def start() -> ProcessClient:
        client = first.pop() if first else ProcessClient(next_one.take())
        setup = "" if client is spawned else early_setup(boot)
        await client.build(packed, **options, early_setup=setup, distrusted=distrusted)
        return client

    more: dict[str, Any] = {"standby": next_one, "distrusted": distrusted}
    return await Supervisor.start(start, restart_seconds=config.restart_seconds, **more)
