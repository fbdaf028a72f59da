"""How several replicas divide a machine: its devices, its CPUs, and the memory of a device that they share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from llmk.api import Host, PlatformFacts, Problem
from llmk.config import cpus
from llmk.planning.choices.launchers import launcher_of

if TYPE_CHECKING:
    from llmk.config import Config
    from llmk.planning.boot import Boot


def replica_problems(config: Config, platform: PlatformFacts) -> Iterator[Problem]:
    """Why a machine has no room for the configured replicas."""
    count, ranks = config.replicas.count, config.parallel.tensor * config.parallel.pipeline
    devices = platform.num_devices
    if devices and count > 1 and count * ranks > devices and not platform.shared_device:
        what = f"{count} replicas of {ranks} processes need a device each, and {platform.label} has {devices}"
        room = devices // ranks
        yield Problem("replicas.count", what, f"lower --replicas to {room}" if room else "lower parallel.tensor")


def share_of(boot: Boot, number: int, num_blocks: int = 0) -> Boot:
    """The boot of a replica: with devices of its own, or a share of the one that all use, of which CPUs are a part.

    ``num_blocks`` is the size of the cache of those before it, which it gets too; 0: it is the first, and gets a share
    of the memory that is free.
    """
    config, ranks = boot.settings.config, boot.plan.num_ranks
    count, devices = config.replicas.count, boot.platform_facts.num_devices
    if count == 1 or launcher_of(boot.plan) is not None:  # which has devices elsewhere
        return boot
    if not devices or count * ranks <= devices:
        return replace(boot, first_device=number * ranks)
    cache = {"memory_share": config.cache.memory_share / count, "memory_gib": config.cache.memory_gib / count}
    if num_blocks:
        cache = {"num_blocks": num_blocks}
    threads = max(1, config.platform.threads // count) if config.platform.threads else 0
    platform = config.platform.model_copy(update={"threads": threads})
    update = {"cache": config.cache.model_copy(update=cache), "platform": platform}
    settings = replace(boot.settings, config=config.model_copy(update=update))
    return replace(boot, settings=settings, cpus=cpus.share(number, count, cpus.in_order(cpus.allowed(), Host())))
