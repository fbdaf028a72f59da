"""Builds an engine from a resolved boot: checks the wheels, loads the weights, sizes and allocates the cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from llmk.api import CacheSpec, LogitsProcessorSpec, Plan, Platform, PluginError, PolicyContext
from llmk.engine.batch import Batch
from llmk.engine.caches import Caches
from llmk.engine.client import EngineInfo
from llmk.engine.core import EngineCore, Executor
from llmk.engine.cost import CostModel
from llmk.engine.deadlines import Deadlines
from llmk.engine.depth import choose_depth, why_asynchronous
from llmk.engine.graphs import graph_sizes, why_not_recorded
from llmk.engine.groups import CacheGroup, block_bytes, cache_groups
from llmk.engine.memory import CachePlan, activation_bytes, check_context, check_weights, gib, plan_cache
from llmk.engine.plugin_calls import is_distrusted
from llmk.engine.policy import GuardedPolicy
from llmk.engine.processors import Processors
from llmk.engine.runner import Runner
from llmk.engine.scheduler import Scheduler
from llmk.engine.stage import StageRunner
from llmk.engine.step_limit import StepLimit
from llmk.engine.trace import OFF, Off
from llmk.engine.warmup import BLOCKS, WarmUp, compiles
from llmk.engine.weights import load_weights
from llmk.engine.workers import Workers
from llmk.kernel.loader import load_object
from llmk.nn.attention import page_bytes
from llmk.nn.build import Build
from llmk.nn.parallel import Parallel

if TYPE_CHECKING:
    from llmk.kernel.boot import Boot
    from llmk.nn.model import Model

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in this process, or this process's share of it."""

    model: Model
    build: Build
    platform: Platform

    @property
    def cache_specs(self) -> list[CacheSpec]:
        """Those of the model's layers."""
        return [spec for _, _, spec in self.model.cache_specs()]

    @property
    def shadow_bytes(self) -> int:
        """What shadows keep for each block of the cache."""
        backends = self.build.shadows.backends if self.build.shadows else {}
        return sum(page_bytes(backends[site]) for _, site, _ in self.model.cache_specs() if site in backends)


def build_core(boot: Boot, trace: Off = OFF) -> tuple[EngineCore, EngineInfo]:
    """Turns a boot into an engine that is ready to step, and is recorded by ``trace``.

    Raises:
        ConfigError: where the platform can't join the processes that the model is to be spread over.
        PluginError: where a wheel's version is not the plan's, or the scheduling policy can't be made.
        CheckpointError: where the weights don't fit the model.
        NotEnoughMemory: where weights or cache don't fit the device.
    """
    config, plan, facts = boot.settings.config, boot.plan, boot.facts
    max_model_len = facts.max_model_len
    context = PolicyContext(config.scheduler.weights, config.scheduler.max_num_batched_tokens)
    policy = GuardedPolicy.load(plan, context)
    executor, cache = start_executor(boot, trace)
    sizes = " + ".join(str(group.block_size) for group in cache.groups)
    logger.info("cache: %d blocks of %s tokens, %s, by %s", cache.num_blocks, sizes, gib(cache.total_bytes), cache.why)
    depth, why = choose_depth(config.engine.steps_in_flight, executor.asynchronous)
    logger.info("steps in flight: %d (%s)", depth, why)
    limits = config.scheduler
    cache_dtype = plan.dtype if config.cache.dtype == "auto" else config.cache.dtype
    scheduler = Scheduler(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=max_model_len,
        num_blocks=cache.num_blocks,
        groups=cache.groups,
        prefix_caching=config.cache.prefix_caching,
        pin_share=config.cache.pin_share,
        chunked_prefill=limits.chunked_prefill,
        policy=policy,
        deadlines=Deadlines(limits.queue_timeout, limits.request_timeout),
        step_limit=StepLimit(limits.max_slowdown),
        cost=CostModel(facts, dtype=plan.dtype, cache_dtype=cache_dtype, devices=plan.num_ranks),
    )
    info = EngineInfo(
        max_model_len=max_model_len,
        vocab_size=facts.vocab_size,
        block_size=scheduler.cache.block_size,
        num_blocks=cache.num_blocks,
        plan=plan.to_dict(),
        logits_processors=tuple(found.spec.id for found in boot.registry.of(LogitsProcessorSpec)),
    )
    return EngineCore(scheduler, executor, depth=depth, trace=trace), info


def start_executor(boot: Boot, trace: Off = OFF) -> tuple[Executor, CachePlan]:
    """What runs the steps, in this process or in several, and the size of its cache."""
    if boot.plan.num_ranks > 1:
        return Workers.start(boot)
    loaded = load_model(boot)
    (groups,) = cache_groups(boot, [loaded.cache_specs])
    size = block_bytes(loaded.cache_specs, groups)
    room, max_len = cache_room(boot, loaded), boot.facts.max_model_len
    cache = plan_cache(boot.settings.config, max_len, groups, size, room, loaded.shadow_bytes)
    runner = build_runner(boot, loaded, cache.num_blocks, groups, trace)
    record_graphs(boot, loaded.platform, runner)
    return runner, cache


def alone(platform: Platform) -> Parallel:
    """The place of a process that holds the whole model."""
    return Parallel()


def load_model(boot: Boot, rank: int = 0, join: Callable[[Platform], Parallel] = alone) -> LoadedModel:
    """Builds the model and loads its weights: those of the share that ``rank`` has among the processes that it meets by
    ``join``."""
    config, plan = boot.settings.config, boot.plan
    check_wheels(plan)
    platform: Platform = load_object(plan.platform_implementation)(plan.platform)
    neighbours = len(plan.ranks_beside(rank))
    threads = config.platform.threads
    platform.device.setup(rank, max(1, threads // neighbours) if threads else 0)
    device = platform.device.torch_device(rank)
    share, quantized = neighbours / plan.num_ranks, bool(plan.quantization)
    check_weights(boot.facts, plan.dtype, platform.memory.available(), share=share, quantized=quantized)
    kept = plan.dtype if config.cache.dtype == "auto" else config.cache.dtype
    check_context(boot.facts, kept, platform.memory.available(), share=share)
    dtype = getattr(torch, plan.dtype)
    where: dict[str, Any] = {"device": device, "parallel": join(platform), "max_model_len": boot.facts.max_model_len}
    build = Build(plan, dtype=dtype, load_object=load_object, checkpoint=boot.checkpoint, **where)
    model: Model = load_object(plan.model_implementation)(build, boot.checkpoint)
    how, seed = config.model.load_format, config.engine.seed
    start = time.perf_counter()
    read = load_weights(model, boot.checkpoint, dtype, progress=rank == 0, load_format=how, seed=seed)
    platform.device.synchronize()
    seconds = time.perf_counter() - start
    logger.info("weights: %.2f s%s", seconds, f", {gib(read)} at {read / seconds / 1e9:.1f} GB/s" if read else "")
    return LoadedModel(model, build, platform)


def build_runner(
    boot: Boot, loaded: LoadedModel, num_blocks: int, groups: Sequence[CacheGroup], trace: Off = OFF
) -> Runner:
    """Allocates the cache and the batch for a loaded model."""
    build, model = loaded.build, loaded.model
    caches = Caches.of(model, build, groups)
    batch = Batch(
        build,
        num_slots=boot.settings.config.scheduler.max_num_seqs,
        max_len=boot.facts.max_model_len,
        block_sizes=[group.block_size for group in groups],
        device=build.device,
    )
    laid_out = caches.allocate(num_blocks), caches.layers()
    how: dict[str, Any] = {"asynchronous": why_asynchronous(build.plan.platform), "trace": trace}
    if not build.parallel.is_last:
        return StageRunner(model, build, batch, *laid_out, **how)
    found = boot.registry.of(LogitsProcessorSpec)
    load = {each.spec.id: partial(load_object, each.spec.implementation, plugin=each.plugin) for each in found}
    load |= {id: partial(_refuse, id) for id in load if is_distrusted(id)}
    kind = Runner if build.parallel.is_first else StageRunner
    wheels = {each.spec.id: each.plugin.wheel for each in found}
    return kind(model, build, batch, *laid_out, Processors(load, boot.facts.vocab_size, wheels), **how)


def _refuse(id: str) -> Any:
    raise PluginError(
        f"{id} ended the engine too often, and is not called again", hint="mend its wheel, and restart the server"
    )


def cache_room(boot: Boot, loaded: LoadedModel, rank: int = 0) -> int:
    """Bytes that are free on the device now that all processes have loaded theirs, less those that steps need. Warms up
    to know them, where there is something to warm up; else they are estimated."""
    limits, needed = boot.settings.config.scheduler, None
    if boot.settings.config.engine.warm_up and compiles(boot.plan):
        (groups,) = cache_groups(boot, [loaded.cache_specs])
        runner = build_runner(boot, loaded, BLOCKS, groups)
        sizes, against = recordable(boot, loaded.platform)
        most = (limits.max_num_batched_tokens, limits.max_num_seqs, boot.facts.max_model_len)
        warm_up = WarmUp(runner, groups, *most, () if against else sizes)
        with loaded.build.shadows.in_every_step() if loaded.build.shadows else nullcontext():
            needed = warm_up.run(loaded.platform)
    if needed is None:
        needed = activation_bytes(boot.facts, limits.max_num_batched_tokens, limits.max_num_seqs)
    loaded.build.parallel.barrier()
    return max(0, loaded.platform.memory.available() - needed * len(boot.plan.ranks_beside(rank)))


def recordable(boot: Boot, platform: Platform) -> tuple[list[int], str]:
    """Numbers of requests for which steps that decode are to be recorded, and what speaks against it, if anything."""
    config, plan = boot.settings.config, boot.plan
    sizes = graph_sizes(config.scheduler.max_num_seqs)
    against = why_not_recorded(plan, sizes, config.engine.graphs)
    if not against and platform.graphs is None:
        against = f"{plan.platform.label} has none"
    if not against and plan.num_ranks > 1 and not (platform.collectives and platform.collectives.recordable):
        against = f"{plan.platform.label} can't record how processes exchange tensors"
    return sizes, against


def record_graphs(boot: Boot, platform: Platform, runner: Runner) -> None:
    """Records steps that decode, where nothing speaks against it; else the log says what does."""
    sizes, against = recordable(boot, platform)
    if against or platform.graphs is None:
        logger.info("graphs: none (%s)", against)
        return
    start = time.perf_counter()
    runner.record(platform.graphs, sizes)
    platform.device.synchronize()
    took = time.perf_counter() - start
    logger.info("graphs: steps of 1 to %d decoding requests, %d recorded in %.1f s", sizes[-1], len(sizes), took)


def check_wheels(plan: Plan) -> None:
    """A worker runs the wheels that its plan was made with, or not at all."""
    for name, version in plan.wheels:
        found = metadata.version(name)
        if found != version:
            raise PluginError(
                f"the plan was made with {name} {version}, this process has {found}",
                hint="start the server again, so that launcher and workers run the same wheels",
            )
