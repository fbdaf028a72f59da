"""Builds an engine from a resolved boot: checks the wheels, loads the weights, sizes and allocates the cache."""

from __future__ import annotations

import logging
from functools import partial
from importlib import metadata
from math import lcm
from typing import TYPE_CHECKING, Any

import torch

from llmk.api import AttentionQuery, LogitsProcessorSpec, Plan, Platform, PluginError, PolicyContext
from llmk.engine.batch import Batch
from llmk.engine.caches import Caches
from llmk.engine.client import EngineInfo
from llmk.engine.core import EngineCore
from llmk.engine.deadlines import Deadlines
from llmk.engine.memory import check_weights, gib, plan_cache
from llmk.engine.policy import GuardedPolicy
from llmk.engine.processors import Processors
from llmk.engine.runner import Runner
from llmk.engine.scheduler import Scheduler
from llmk.engine.weights import load_weights
from llmk.kernel.loader import load_object
from llmk.nn.build import Build

if TYPE_CHECKING:
    from llmk.kernel.boot import Boot
    from llmk.nn.model import Model

logger = logging.getLogger(__name__)


def build_core(boot: Boot) -> tuple[EngineCore, EngineInfo]:
    """Turns a boot into an engine that is ready to step.

    Raises:
        PluginError: where a wheel's version is not the plan's, or the scheduling policy can't be made.
        CheckpointError: where the weights don't fit the model.
        NotEnoughMemory: where weights or cache don't fit the device.
    """
    config, plan, facts = boot.settings.config, boot.plan, boot.facts
    check_wheels(plan)
    platform: Platform = load_object(plan.platform_implementation)(plan.platform)
    platform.device.setup(0, config.platform.threads)
    device = platform.device.torch_device(0)
    check_weights(facts, plan.dtype, platform.memory.available())
    dtype = getattr(torch, plan.dtype)
    build = Build(plan, dtype=dtype, device=device, load_object=load_object)
    model: Model = load_object(plan.model_implementation)(build, boot.checkpoint)
    load_weights(model, boot.checkpoint, dtype, load_format=config.model.load_format, seed=config.engine.seed)
    platform.device.synchronize()

    max_model_len = facts.max_model_len
    caches = Caches.of(model, build, state_block_size=state_block_size(build, config, max_model_len))
    cache = plan_cache(config, max_model_len, caches.groups, caches.block_bytes, platform.memory.available())
    sizes = " + ".join(str(group.block_size) for group in caches.groups)
    logger.info("cache: %d blocks of %s tokens, %s, by %s", cache.num_blocks, sizes, gib(cache.total_bytes), cache.why)
    processors = {
        found.spec.id: partial(load_object, found.spec.implementation, plugin=found.plugin)
        for found in boot.registry.of(LogitsProcessorSpec)
    }
    batch = Batch(
        build,
        num_slots=config.scheduler.max_num_seqs,
        max_len=max_model_len,
        block_sizes=[group.block_size for group in caches.groups],
        device=device,
    )
    rows = Processors(processors, facts.vocab_size)
    runner = Runner(model, build, batch, caches.allocate(cache.num_blocks), caches.layers(), rows)
    limits = config.scheduler
    scheduler = Scheduler(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=max_model_len,
        num_blocks=cache.num_blocks,
        groups=caches.groups,
        prefix_caching=config.cache.prefix_caching,
        pin_share=config.cache.pin_share,
        chunked_prefill=limits.chunked_prefill,
        policy=GuardedPolicy.load(plan, PolicyContext(limits.weights, limits.max_num_batched_tokens)),
        deadlines=Deadlines(limits.queue_timeout, limits.request_timeout),
    )
    info = EngineInfo(
        max_model_len=max_model_len,
        vocab_size=facts.vocab_size,
        block_size=scheduler.cache.block_size,
        num_blocks=cache.num_blocks,
        plan=plan.to_dict(),
        logits_processors=tuple(processors),
    )
    return EngineCore(scheduler, runner), info


def state_block_size(build: Build, config: Any, max_model_len: int) -> int:
    """Tokens between two snapshots of recurrent state: a multiple of every attention site's block size, so that
    prefixes can end where all groups have something; without prefix caching, more than any sequence has.
    """
    if not config.cache.prefix_caching:
        return max_model_len + 1
    queries = (choice.query for choice in build.plan.choices)
    unit = lcm(*(query.block_size for query in queries if isinstance(query, AttentionQuery)))
    return -(-int(config.cache.state_block_size) // unit) * unit


def check_wheels(plan: Plan) -> None:
    """A worker runs the wheels that its plan was made with, or not at all."""
    for name, version in plan.wheels:
        found = metadata.version(name)
        if found != version:
            raise PluginError(
                f"the plan was made with {name} {version}, this process has {found}",
                hint="start the server again, so that launcher and workers run the same wheels",
            )
