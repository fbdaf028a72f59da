"""Builds an engine from a resolved boot: the scheduler, and what runs its steps."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import sys
import time
from typing import TYPE_CHECKING, Any

import psutil
from msgspec.structs import replace

from llmk.api import LogitsProcessorSpec, PolicyContext
from llmk.config import logs
from llmk.engine.cache.block_log import logged_group
from llmk.engine.core import EngineCore
from llmk.engine.device.heap import find_trim
from llmk.engine.device.trace import NULL_TRACE, NullTrace
from llmk.engine.execution.build import build_runner, cache_room, load_model, record_graphs
from llmk.engine.execution.executor import Executor
from llmk.engine.execution.plugin_executor import PluginExecutor, lacks_of
from llmk.engine.processes.spawn import STANDBY
from llmk.engine.scheduling.async_scheduling import choose_depth
from llmk.engine.scheduling.deadlines import Deadlines
from llmk.engine.scheduling.drafting import Drafting
from llmk.engine.scheduling.guarded_policy import GuardedPolicy
from llmk.engine.scheduling.prompt_limit import PromptLimit
from llmk.engine.scheduling.scheduler import Scheduler
from llmk.engine.scheduling.step_limit import StepLimit
from llmk.engine.text.grammars import GrammarStarter, kinds_of
from llmk.engine.text.pooler import head_of
from llmk.engine.wire.cost import CostModel
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.prompt import EmbeddingFormat
from llmk.planning.boot import verified
from llmk.planning.cache_groups import block_bytes, cache_groups
from llmk.planning.choices.executors import executor_of
from llmk.planning.choices.launchers import launcher_of
from llmk.planning.memory import CachePlan, gib, plan_cache
from llmk.planning.packed_boot import unpack
from llmk.planning.shadows import shadowed

if TYPE_CHECKING:
    from llmk.planning.boot import Boot

logger = logging.getLogger(__name__)


def build_core(boot: Boot, trace: NullTrace = NULL_TRACE) -> tuple[EngineCore, EngineInfo]:
    """Turns a boot into an engine that is ready to step, and is recorded by ``trace``.

    Raises:
        ConfigError: where the platform can't join the processes that the model is to be spread over, or the model
            can't be used with drafts.
        PluginError: where a wheel's version is not the plan's, or the scheduling policy or speculator can't be made.
        CheckpointError: where the weights don't fit the model.
        NotEnoughMemory: where weights or cache don't fit the device.
    """
    config, plan, facts = boot.settings.config, boot.plan, boot.facts
    max_model_len = facts.max_model_len
    context = PolicyContext(config.scheduler.weights, config.scheduler.max_num_batched_tokens)
    policy = GuardedPolicy.load(plan, context)
    drafting = Drafting.load(boot)
    executor, cache = start_executor(boot, trace)
    sizes = " + ".join(str(group.block_size) for group in cache.groups)
    logger.info("cache: %d blocks of %s tokens, %s, by %s", cache.num_blocks, sizes, gib(cache.total_bytes), cache.why)
    depth, why = choose_depth(config.engine.steps_in_flight, executor.asynchronous, plan.pipeline)
    logger.info("steps in flight: %d (%s)", depth, why)
    limits = config.scheduler
    cache_dtype = plan.dtype if config.cache.dtype == "auto" else config.cache.dtype
    cost = CostModel(
        facts, dtype=plan.dtype, cache_dtype=cache_dtype, weight_bits=plan.weight_bits, devices=plan.num_ranks
    )
    scheduler = Scheduler(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=max_model_len,
        num_blocks=cache.num_blocks,
        groups=cache.groups,
        prefix_caching=config.cache.prefix_caching,
        pin_share=config.cache.pin_share,
        tenant_pin_share=config.cache.tenant_pin_share,
        chunked_prefill=limits.chunked_prefill,
        policy=policy,
        deadlines=Deadlines(limits.queue_timeout, limits.request_timeout),
        step_limit=StepLimit(limits.max_slowdown),
        prompt_limit=PromptLimit(limits.target_inter_token_ms / 1e3, cost.prompt),
        cost=cost,
        vocab_size=facts.vocab_size,
        drafting=drafting,
        stages=plan.pipeline,
    )
    if config.replicas.count > 1 or config.events.endpoint:
        scheduler.cache.keep_log()
    info = EngineInfo(
        max_model_len=max_model_len,
        vocab_size=facts.vocab_size,
        block_size=scheduler.cache.block_size,
        num_blocks=cache.num_blocks,
        shared_block_size=cache.groups[logged_group(cache.groups)].block_size,
        plan=plan.to_dict(),
        logits_processors=tuple(found.spec.id for found in boot.registry.of(LogitsProcessorSpec)),
        grammars=kinds_of(boot),
        embeddings=embedding_format(boot),
        head=head_of(boot.pooling),
        **lacks_of(boot),
    )
    return EngineCore(scheduler, executor, depth=depth, grammars=GrammarStarter(boot), trace=trace), info


def embedding_format(boot: Boot) -> EmbeddingFormat:
    """What embeddings in prompts must be like."""
    taken = boot.facts.takes_embeddings and "embeddings" not in lacks_of(boot).get("lacks", ())
    size = boot.facts.hidden_size if taken else 0
    return EmbeddingFormat(model=boot.facts.model, size=size, dtype=boot.plan.dtype)


def start_executor(boot: Boot, trace: NullTrace = NULL_TRACE) -> tuple[Executor, CachePlan]:
    """What runs the steps, in this process, in several, or a plugin's, and the size of its cache."""
    if executor_of(boot.plan) is not None:
        return PluginExecutor.start(boot)
    if boot.plan.num_ranks > 1 or launcher_of(boot.plan) is not None:
        from llmk.engine.processes.ranks.multiprocess_executor import MultiProcessExecutor

        return MultiProcessExecutor.start(boot)
    loaded = load_model(boot)
    (groups,) = cache_groups(boot, [loaded.cache_specs])
    size = block_bytes(loaded.cache_specs, groups)
    room, max_len = cache_room(boot, loaded), boot.facts.max_model_len
    cache = plan_cache(boot.settings.config, max_len, groups, size, room, loaded.shadow_bytes)
    runner = build_runner(boot, loaded, cache.num_blocks, groups, trace)
    record_graphs(boot, loaded.platform, runner)
    return runner, cache


def build_packed(packed: dict[str, Any]) -> tuple[EngineCore, EngineInfo]:
    """Builds the engine of a packed boot, by its plan. Only a winner that can't be imported here makes it resolve
    again.
    """
    server = packed["settings"].config.server
    logs.setup(server.log_level, server.log_format)
    boot = shadowed(verified(unpack(packed)))
    if boot.cpus:
        os.sched_setaffinity(0, boot.cpus)
    if STANDBY not in sys.argv:  # whose imports were done long ago
        logger.info("engine process: %.2f s of imports", time.time() - psutil.Process().create_time())
    core, info = build_core(boot)
    gc.collect()
    if trim := find_trim():
        trim()  # what the warm-up took would else stay with this process
    gc.freeze()  # what was built stays for good: collecting garbage needn't look at it again
    return core, replace(info, pickled_plan=pickle.dumps(boot.plan))
