"""Requests for an engine on the paged device, and what holds of any policy under a load that is short of blocks."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from paged_device import make_core, run_alone

from llmk.api import SchedulingPolicy
from llmk.engine.core import EngineCore
from llmk.engine.wire.request import EngineRequest, RequestContext, TokenOutput
from llmk.engine.wire.sampling_params import SamplingParams


def request(id_: str, prompt: list[int], tenant: str = "", *, priority: int = 0, new: int = 4) -> EngineRequest:
    params, context = SamplingParams(max_tokens=new), RequestContext(tenant=tenant, priority=priority)
    return EngineRequest(id=id_, prompt_token_ids=prompt, params=params, context=context)


def drain(core: EngineCore, limit: int = 5000) -> list[TokenOutput]:
    outputs = []
    for _ in range(limit):
        if not core.has_work:
            assert core.scheduler.cache.num_free == core.scheduler.cache.num_blocks
            return outputs
        outputs += core.step().outputs
    raise AssertionError("the engine makes no progress")


def ends(outputs: list[TokenOutput]) -> list[str]:
    return [output.id for output in outputs if output.finish_reason]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests as (prompt tokens, new tokens), and limits under which not all of them fit."""

    lengths: list[tuple[int, int]]
    max_num_seqs: int
    budget: int
    num_blocks: int
    depth: int


def tight_loads() -> st.SearchStrategy[Load]:
    """Loads that make requests give way to one another."""
    return st.builds(
        Load,
        lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=2, max_size=10),
        max_num_seqs=st.integers(1, 4),
        budget=st.integers(1, 12),
        num_blocks=st.integers(8, 12),
        depth=st.integers(1, 2),
    )


def check_preemption_ends(policy: SchedulingPolicy, load: Load) -> None:
    """Steps are bounded by what there is to compute: by each end, only so many others may give way in between."""
    core = make_core(
        num_blocks=load.num_blocks,
        max_num_seqs=load.max_num_seqs,
        max_num_batched_tokens=load.budget,
        max_model_len=32,
        depth=load.depth,
        policy=policy,
    )
    for number, (length, new) in enumerate(load.lengths):
        core.add(request(str(number), [number] * length, str(number % 3), priority=number % 2, new=new))
    outputs = drain(core, limit=len(load.lengths) * (2 * load.max_num_seqs + 2) * 40)
    assert sorted(ends(outputs)) == sorted(str(number) for number in range(len(load.lengths)))
    assert core.stats.policy_failures == 0
    for number, (length, new) in enumerate(load.lengths):
        made = [token for output in outputs if output.id == str(number) for token in output.token_ids]
        assert made == run_alone([number] * length, new, limit=32)
