"""Builds an engine from a resolved boot: checks the wheels, loads the weights, sizes and allocates the cache."""

from __future__ import annotations

import logging
from functools import partial
from importlib import metadata
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from llmk.api import LogitsProcessorSpec, Plan, Platform, PluginError, PolicyContext
from llmk.engine.batch import Batch
from llmk.engine.client import EngineInfo
from llmk.engine.core import EngineCore
from llmk.engine.cost import CostModel
from llmk.engine.deadlines import Deadlines
from llmk.engine.depth import choose_depth, why_asynchronous
from llmk.engine.memory import CachePlan, check_weights, gib, plan_cache
from llmk.engine.policy import GuardedPolicy
from llmk.engine.processors import Processors
from llmk.engine.runner import CachedLayer, Runner
from llmk.engine.scheduler import Scheduler
from llmk.engine.trace import OFF, Off
from llmk.engine.weights import load_weights
from llmk.kernel.loader import load_object
from llmk.nn.build import Build

if TYPE_CHECKING:
    from llmk.kernel.boot import Boot
    from llmk.nn.model import Model

logger = logging.getLogger(__name__)


def build_core(boot: Boot, trace: Off = OFF) -> tuple[EngineCore, EngineInfo]:
    """Turns a boot into an engine that is ready to step, and is recorded by ``trace``.

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
    cache = plan_cache(config, max_model_len, block_bytes(model, build), platform.memory.available())
    logger.info("cache: %d blocks of %d tokens, %s, by %s", cache.num_blocks, config.cache.block_size,
                gib(cache.total_bytes), cache.why)  # fmt: skip
    processors = {
        found.spec.id: partial(load_object, found.spec.implementation, plugin=found.plugin)
        for found in boot.registry.of(LogitsProcessorSpec)
    }
    runner = build_runner(
        model, build, config, cache, max_model_len, device, Processors(processors, facts.vocab_size), trace
    )
    depth, why = choose_depth(config.engine.steps_in_flight, runner.asynchronous)
    logger.info("steps in flight: %d (%s)", depth, why)
    limits = config.scheduler
    cache_dtype = plan.dtype if config.cache.dtype == "auto" else config.cache.dtype
    scheduler = Scheduler(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=max_model_len,
        num_blocks=cache.num_blocks,
        block_size=config.cache.block_size,
        prefix_caching=config.cache.prefix_caching,
        chunked_prefill=limits.chunked_prefill,
        policy=GuardedPolicy.load(plan, PolicyContext(limits.weights, limits.max_num_batched_tokens)),
        deadlines=Deadlines(limits.queue_timeout, limits.request_timeout),
        cost=CostModel(facts, dtype=plan.dtype, cache_dtype=cache_dtype),
    )
    info = EngineInfo(
        max_model_len=max_model_len,
        vocab_size=facts.vocab_size,
        block_size=config.cache.block_size,
        num_blocks=cache.num_blocks,
        plan=plan.to_dict(),
        logits_processors=tuple(processors),
    )
    return EngineCore(scheduler, runner, depth=depth, trace=trace), info


def build_runner(
    model: Model,
    build: Build,
    config: Any,
    cache: CachePlan,
    max_model_len: int,
    device: torch.device,
    processors: Processors | None = None,
    trace: Off = OFF,
) -> Runner:
    """Allocates the cache and the batch for a loaded model."""
    specs = model.cache_specs()
    caches = [_allocate(build, site, cache.num_blocks, device) for _, site, _ in specs]
    batch = Batch(
        build,
        num_slots=config.scheduler.max_num_seqs,
        max_len=max_model_len,
        block_size=config.cache.block_size,
        num_groups=1,
        device=device,
    )
    layers = [CachedLayer(0, build.attention(site)) for _, site, _ in specs]
    asynchronous = why_asynchronous(build.plan.platform)
    return Runner(model, build, batch, caches, layers, processors, asynchronous=asynchronous, trace=trace)


def block_bytes(model: Model, build: Build) -> int:
    """Bytes that one block takes over all layers, by the layouts that the attention backends state."""
    total = 0
    for _, site, _ in model.cache_specs():
        layout = build.attention(site).cache_layout(1)
        total += prod(layout.shape) * getattr(torch, layout.dtype).itemsize
    return total


def check_wheels(plan: Plan) -> None:
    """A worker runs the wheels that its plan was made with, or not at all."""
    for name, version in plan.wheels:
        found = metadata.version(name)
        if found != version:
            raise PluginError(
                f"the plan was made with {name} {version}, this process has {found}",
                hint="start the server again, so that launcher and workers run the same wheels",
            )


def _allocate(build: Build, site: str, num_blocks: int, device: torch.device) -> torch.Tensor:
    layout = build.attention(site).cache_layout(num_blocks)
    return torch.zeros(layout.shape, dtype=getattr(torch, layout.dtype), device=device)
