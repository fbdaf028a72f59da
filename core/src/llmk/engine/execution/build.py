"""Builds what runs steps on one device: loads the weights, sizes and allocates the cache, records graphs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from llmk.api import CacheSpec, LogitsProcessor, LogitsProcessorSpec, Plan, Platform, PluginError
from llmk.engine.device.batch import Batch
from llmk.engine.device.graphs import (
    ADAPTERS,
    StepShape,
    decoding_shapes,
    is_first,
    mixed_shapes,
    verifying_shapes,
    why_not_recorded,
)
from llmk.engine.device.heap import find_trim
from llmk.engine.device.trace import NULL_TRACE, NullTrace
from llmk.engine.execution.adapters import load_adapters, place_adapters
from llmk.engine.execution.cache_tensors import CacheTensors
from llmk.engine.execution.runner import Runner
from llmk.engine.execution.stage_runner import StageRunner
from llmk.engine.execution.warmup import BLOCKS, WarmUp, compiles
from llmk.engine.execution.weights import load_weights
from llmk.engine.sampling.logits_processors import LogitsProcessors
from llmk.engine.scheduling.async_scheduling import why_asynchronous
from llmk.engine.wire.plugin_calls import is_distrusted
from llmk.kernel.loader import load_object
from llmk.nn.attention import page_bytes
from llmk.nn.build import Build
from llmk.nn.parallel import Parallel
from llmk.planning.cache_groups import CacheGroup, cache_groups
from llmk.planning.choices.speculation import device_speculator, head_speculator, speculation_of
from llmk.planning.memory import activation_bytes, check_context, check_weights, gib, tail_bytes, tail_sizes

if TYPE_CHECKING:
    from llmk.kernel.registry import Registered
    from llmk.nn.model import Model
    from llmk.planning.boot import Boot

logger = logging.getLogger(__name__)

_POSITION_ROWS = 512
"""Rows of a table of rotations that are made at a time, in a third of a millisecond."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in this process, or this process's share of it."""

    model: Model
    build: Build
    platform: Platform
    in_files: int = 0
    """Bytes of weights that lie in files (:class:`~llmk.engine.execution.weights.Loaded`)."""

    @property
    def cache_specs(self) -> list[CacheSpec]:
        """Those of the model's layers."""
        return [spec for _, _, spec in self.model.cache_specs()]

    @property
    def shadow_bytes(self) -> int:
        """What shadows keep for each block of the cache."""
        backends = self.build.shadows.backends if self.build.shadows else {}
        return sum(page_bytes(backends[site]) for _, site, _ in self.model.cache_specs() if site in backends)


def alone(platform: Platform) -> Parallel:
    """The place of a process that holds the whole model."""
    return Parallel()


def load_model(
    boot: Boot,
    rank: int = 0,
    join: Callable[[Platform], Parallel] = alone,
    *,
    index: int | None = None,
    num_sharing: int | None = None,
) -> LoadedModel:
    """Builds the model and loads its weights: those of the share that ``rank`` has among the processes that it meets by
    ``join``. It is put on device ``index`` of this machine, which ``num_sharing`` ranks use; ``None``: as the plan
    spreads ranks over the devices of one machine."""
    config, plan = boot.settings.config, boot.plan
    check_wheels(plan)
    platform: Platform = boot.load("platform")(plan.platform)
    neighbours = len(plan.ranks_on_same_device(rank)) if num_sharing is None else num_sharing
    index = boot.first_device + rank if index is None else index
    threads = config.platform.threads
    platform.device.setup(index, max(1, threads // neighbours) if threads else 0)
    device = platform.device.torch_device(index)
    share = neighbours / plan.num_ranks
    available = platform.memory.available()
    check_weights(boot.facts, plan.dtype, available, share=share, weight_bits=plan.weight_bits)
    kept = plan.dtype if config.cache.dtype == "auto" else config.cache.dtype
    check_context(boot.facts, kept, available, share=share)
    dtype = getattr(torch, plan.dtype)
    where: dict[str, Any] = {"device": device, "parallel": join(platform), "max_model_len": boot.facts.max_model_len}
    where |= {"position_rows": _POSITION_ROWS, "graphs": platform.graphs}
    build = Build(plan, dtype=dtype, load_object=load_object, checkpoint=boot.checkpoint, **where)
    model: Model = boot.load("model")(build, boot.checkpoint)
    adapters = place_adapters(boot.adapters, build)
    how: dict[str, Any] = {"load_format": config.model.load_format, "seed": config.engine.seed}
    how["methods"] = build.methods.values() if rank == 0 else ()
    start = time.perf_counter()
    read, in_files = load_weights(model, boot.checkpoint, dtype, progress=rank == 0, **how)
    load_adapters(adapters, build)
    platform.device.synchronize()
    if trim := find_trim():
        trim()  # what weights were converted from would else stay with this process
    seconds = time.perf_counter() - start
    logger.info("weights: %.2f s%s", seconds, f", {gib(read)} at {read / seconds / 1e9:.1f} GB/s" if read else "")
    return LoadedModel(model, build, platform, in_files)


def build_runner(
    boot: Boot, loaded: LoadedModel, num_blocks: int, groups: Sequence[CacheGroup], trace: NullTrace = NULL_TRACE
) -> Runner:
    """Allocates the cache and the batch for a loaded model."""
    build, model, tails = loaded.build, loaded.model, tail_sizes(boot)
    caches = CacheTensors.of(model, build, groups, tails)
    batch = Batch(
        build,
        num_slots=boot.settings.config.scheduler.max_num_seqs,
        max_len=boot.facts.max_model_len,
        block_sizes=[group.block_size for group in groups],
        device=build.device,
        speculator=device_speculator(boot),
        vocab_size=boot.facts.vocab_size,
        adapters=bool(boot.adapters),
        tails=all(tails),
    )
    laid_out = caches.allocate(num_blocks), caches.layers()
    options: dict[str, Any] = {"asynchronous": why_asynchronous(build.plan.platform), "trace": trace}
    if not build.parallel.is_last:
        return StageRunner(model, build, batch, *laid_out, **options)
    found = boot.registry.of(LogitsProcessorSpec)
    load = {each.spec.id: partial(_load_processor, each) for each in found}
    load |= {id: partial(_refuse, id) for id in load if is_distrusted(id)}
    kind = Runner if build.parallel.is_first else StageRunner
    wheels = {each.spec.id: each.plugin.wheel for each in found}
    runner = kind(model, build, batch, *laid_out, LogitsProcessors(load, boot.facts.vocab_size, wheels), **options)
    if (speculator := head_speculator(boot)) is not None:
        runner.draft_by_heads(speculator)
    return runner


def _load_processor(found: Registered[LogitsProcessorSpec]) -> type[LogitsProcessor]:
    id, plugin = found.spec.id, found.plugin
    processor: type[LogitsProcessor] = load_object(
        found.spec.implementation, plugin=plugin, kind="logits_processor", id=id
    )
    return processor


def _refuse(id: str) -> Any:
    raise PluginError(
        f"{id} ended the engine too often, and is not called again", hint="fix its wheel, and restart the server"
    )


def cache_room(boot: Boot, loaded: LoadedModel, num_sharing: int = 1) -> int:
    """Bytes that are free on the device now that all processes have loaded theirs, less those that steps need of the
    ``num_sharing`` ranks on it. Warms up to know them, where there is something to warm up; else they are
    estimated."""
    limits, needed = boot.settings.config.scheduler, None
    if boot.settings.config.engine.warm_up and compiles(boot.plan):
        (groups,) = cache_groups(boot, [loaded.cache_specs])
        runner = build_runner(boot, loaded, BLOCKS, groups)
        recordings = recordable(boot, loaded.platform)
        most = (limits.max_num_batched_tokens, limits.max_num_seqs, boot.facts.max_model_len)
        warm_up = WarmUp(runner, groups, *most, recordings.first + recordings.later)
        with loaded.build.shadows.compare_every_step() if loaded.build.shadows else nullcontext():
            needed = warm_up.run(loaded.platform)
    if needed is None:
        needed = activation_bytes(boot.facts, limits.max_num_batched_tokens, limits.max_num_seqs)
    needed += tail_bytes(loaded.cache_specs, *tail_sizes(boot)) + loaded.in_files
    loaded.build.parallel.barrier()
    return max(0, loaded.platform.memory.available() - needed * num_sharing)


@dataclass(frozen=True, slots=True)
class Recordings:
    """Which steps are to be recorded: those that decode, that verify drafts, and some with prompts, before the first
    request; the others with prompts once there is time. ``against`` is what speaks against all of them, if anything."""

    first: list[StepShape] = field(default_factory=list)
    later: list[StepShape] = field(default_factory=list)
    against: str = ""


def recordable(boot: Boot, platform: Platform) -> Recordings:
    """Which steps are to be recorded."""
    config, plan = boot.settings.config, boot.plan
    most, most_tokens = config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens
    on_demand = 0 if platform.graphs is None else platform.graphs.on_demand
    first = [StepShape(count, count) for count in range(1, 1 + min(most, on_demand))] or decoding_shapes(most)
    against = why_not_recorded(plan, first, config.engine.graphs)
    if not against and platform.graphs is None:
        against = f"{plan.platform.label} has none"
    if not against and plan.num_ranks > 1 and not (platform.collectives and platform.collectives.recordable):
        against = f"{plan.platform.label} can't record how processes exchange tensors"
    if against:
        return Recordings(against=against)
    if plan.pipeline > 1 or on_demand:
        return Recordings(_with_variants(boot, first))  # how long others take to issue was not measured over stages
    if speculation_of(plan) is not None:
        first += _unless_refused(plan, "that verify drafts", verifying_shapes(most, config.speculation.num_drafts))
    mixed = _unless_refused(plan, "with prompts", mixed_shapes(most, most_tokens))
    first += [shape for shape in mixed if is_first(shape)]
    later = [shape for shape in mixed if not is_first(shape)]
    return Recordings(_with_variants(boot, first), _with_variants(boot, later))


def _with_variants(boot: Boot, shapes: list[StepShape]) -> list[StepShape]:
    variants = [frozenset[str](), *([ADAPTERS] if boot.adapters else [])]
    return [shape._replace(variant=one) for shape in shapes for one in variants]


def _unless_refused(plan: Plan, which: str, shapes: list[StepShape]) -> list[StepShape]:
    if refused := why_not_recorded(plan, shapes):
        logger.info("graphs: none of steps %s (%s)", which, refused)
        return []
    return shapes


def record_graphs(boot: Boot, platform: Platform, runner: Runner) -> None:
    """Records steps, where nothing speaks against it; else the log says what does."""
    recordings = recordable(boot, platform)
    if recordings.against or platform.graphs is None:
        logger.info("graphs: none (%s)", recordings.against)
        return
    start = time.perf_counter()
    runner.record(platform.graphs, recordings.first, recordings.later)
    platform.device.synchronize()
    took, most = time.perf_counter() - start, max(shape.requests for shape in recordings.first)
    how = "each when it first runs" if platform.graphs.on_demand else f"{len(recordings.first)} in {took:.1f} s"
    now = f"steps of 1 to {most} decoding requests, recorded {how}"
    longest = max((shape.tokens for shape in recordings.later), default=0)
    later = f"; of up to {longest} tokens with prompts, {len(recordings.later)} to be recorded while idle"
    logger.info("graphs: %s%s", now, later if longest else "")


def check_wheels(plan: Plan) -> None:
    """A worker runs the wheels that its plan was made with, or not at all."""
    for name, version in plan.wheels:
        found = metadata.version(name)
        if found != version:
            raise PluginError(
                f"the plan was made with {name} {version}, this process has {found}",
                hint="start the server again, so that launcher and workers run the same wheels",
            )
