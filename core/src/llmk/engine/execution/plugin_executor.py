"""Runs steps with an executor of a plugin."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmk.api import EngineDead, ExecutorContext, ExecutorSpec, LlmkError, ModelExecutor, PluginError, Reason
from llmk.api.errors import describe
from llmk.engine.execution.executor import Executor
from llmk.engine.wire.failure import BROKEN_MODEL
from llmk.engine.wire.sampling_params import parameters
from llmk.engine.wire.step import Masks, StepPlan, StepResult
from llmk.kernel.loader import load_object
from llmk.planning.cache_groups import block_bytes, cache_groups
from llmk.planning.choices.executors import KIND, executor_of
from llmk.planning.memory import CachePlan, plan_cache

if TYPE_CHECKING:
    from llmk.api import PendingTokens
    from llmk.kernel.registry import Registered
    from llmk.planning.boot import Boot

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pending:
    """A step that the plugin's executor was issued. ``items`` are the numbers of its sampled work items."""

    step: int
    tokens: PendingTokens
    items: list[int]

    def is_done(self) -> bool:
        """Whether the plugin's executor says so."""
        return self.tokens.is_done()

    def result(self) -> StepResult:
        """Waits for its result. Raises PluginError for one that doesn't fit the step."""
        found = self.tokens.result()
        if len(found.token_ids) != len(self.items):
            what = f"{len(found.token_ids)} tokens of step {self.step}, in which {len(self.items)} are sampled"
            raise PluginError(f"the executor returned {what}", hint="fix the wheel of the executor")
        errors: dict[int, tuple[str, ...]] = {self.items[row]: BROKEN_MODEL for row in found.broken}
        tokens = [[token] for token in found.token_ids]
        return StepResult(step=self.step, tokens=tokens, errors=errors, num_broken=len(errors))


class PluginExecutor(Executor):
    """Hands steps to a plugin's executor. Make it with :meth:`start`."""

    def __init__(self, executor: ModelExecutor, id: str) -> None:
        self._executor, self._id = executor, id
        self.asynchronous = executor.asynchronous

    @classmethod
    def start(cls, boot: Boot) -> tuple[PluginExecutor, CachePlan]:
        """Makes the executor of the plan, which loads the weights, and has it allocate the cache.

        Raises:
            PluginError: it can't be imported, or raises something else than an LlmkError.
            NotEnoughMemory: the cache does not fit.
        """
        found = _spec(boot)
        make = load_object(found.spec.implementation, plugin=found.plugin, kind=KIND, id=found.spec.id)
        start = time.perf_counter()
        try:
            executor: ModelExecutor = make(_context(boot, found))
            logger.info("weights: %.2f s, by %s", time.perf_counter() - start, found.spec.id)
            specs = list(executor.cache_specs)
            (groups,) = cache_groups(boot, [specs])
            size, longest = block_bytes(specs, groups), boot.facts.max_model_len
            cache = plan_cache(boot.settings.config, longest, groups, size, executor.available())
            executor.allocate(cache.num_blocks, groups)
        except LlmkError:
            raise
        except Exception as error:
            what = f"{found.spec.id} of {found.plugin.wheel} can't start"
            raise PluginError(what, reasons=[Reason("executor_raised", KIND, describe(error))]) from error
        return cls(executor, found.spec.id), cache

    def submit(self, plan: StepPlan) -> _Pending:
        return _Pending(plan.step, self._executor.submit(plan), plan.sampled_work)

    def sample(self, masks: Masks) -> None:
        raise EngineDead(f"{self._id} was given masks, which no request that it takes has", hint="report this")

    def close(self) -> None:
        self._executor.close()


def lacks_of(boot: Boot) -> dict[str, Any]:
    """The plan's executor and the features of requests that it lacks, as
    :class:`~llmk.engine.wire.engine_info.EngineInfo` has them; empty where the engine itself runs the steps."""
    if executor_of(boot.plan) is None:
        return {}
    spec = _spec(boot).spec
    features = ("embeddings", *(parameter.name for parameter in parameters() if parameter.on_logits))
    return {"executor": spec.id, "lacks": tuple(name for name in features if name not in spec.knows)}


def _spec(boot: Boot) -> Registered[ExecutorSpec]:
    choice = executor_of(boot.plan)
    assert choice is not None
    return next(found for found in boot.registry.of(ExecutorSpec) if found.spec.id == choice.id)


def _context(boot: Boot, found: Registered[ExecutorSpec]) -> ExecutorContext:
    config = boot.settings.config
    return ExecutorContext(
        query=boot.executor_query,
        plan=boot.plan,
        checkpoint=boot.checkpoint,
        block_size=config.cache.block_size,
        max_model_len=boot.facts.max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        warm_up=config.engine.warm_up,
        options=config.plugin.get(found.plugin.name, {}),
    )
