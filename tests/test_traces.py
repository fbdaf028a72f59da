"""Random traces on real models and reference kernels, one model for each kind of cache: whatever arrives when, is cut,
cached, aborted or preempted, every request ends once, with the tokens that it has alone, and nothing is left.

The scheduler alone meets many more traces in ``core/tests/engine/test_scheduler.py``, on a device without arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from equal_tokens import KINDS, checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from llmk.api import NotEnoughMemory
from llmk.config import load
from llmk.engine.core import EngineCore
from llmk.engine.launch import build_core
from llmk.engine.wire.request import EngineRequest, RequestContext, TokenOutput
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.boot import boot

MAX_LEN = 96
PREFIX = [7 + 3 * place % 331 for place in range(40)]

arrival = st.fixed_dictionaries(
    {
        "shared": st.integers(0, len(PREFIX)),
        "own": st.lists(st.integers(3, 380), min_size=1, max_size=30),
        "max_tokens": st.integers(1, 12),
        "seed": st.integers(0, 2),
        "greedy": st.booleans(),
        "priority": st.integers(0, 1),
        "salt": st.sampled_from(["", "", "a"]),
        "at": st.integers(0, 12),
        "abort_at": st.none() | st.none() | st.integers(0, 24),
    }
)
limits = st.fixed_dictionaries(
    {
        "scheduler.max_num_seqs": st.integers(1, 5),
        "scheduler.max_num_batched_tokens": st.integers(1, 48),
        "scheduler.chunked_prefill": st.just(True) | st.booleans(),
        "engine.steps_in_flight": st.integers(1, 2),
        "cache.prefix_caching": st.just(True) | st.booleans(),
        "cache.block_size": st.sampled_from([1, 4, 16]),
        "cache.state_block_size": st.sampled_from([4, 16]),
    }
)


def build(folder: Path, options: Mapping[str, Any]) -> EngineCore:
    common = {"model.path": str(folder), "model.dtype": "float32", "model.max_model_len": MAX_LEN}
    return build_core(boot(load({**common, **options}, environ={})))[0]


def tight(folder: Path, options: Mapping[str, Any], spare: int) -> EngineCore:
    """With ``spare`` blocks more than one request needs."""
    at_once = 1 if options["scheduler.chunked_prefill"] else MAX_LEN
    needed = build(folder, options).scheduler.cache.least_blocks(MAX_LEN, at_once)
    try:
        return build(folder, {**options, "cache.num_blocks": needed + spare})
    except NotEnoughMemory as error:
        raise AssertionError("what one request needs is too little") from error


def request(number: int, drawn: Mapping[str, Any]) -> EngineRequest:
    params = SamplingParams(
        max_tokens=drawn["max_tokens"], temperature=0.0 if drawn["greedy"] else 0.9, ignore_eos=True, logprobs=0
    )
    return EngineRequest(
        id=str(number),
        prompt_token_ids=PREFIX[: drawn["shared"]] + drawn["own"],
        params=params,
        seed=drawn["seed"],
        context=RequestContext(priority=drawn["priority"], cache_salt=drawn["salt"]),
    )


def run(core: EngineCore, arrivals: list[dict[str, Any]]) -> dict[str, list[TokenOutput]]:
    outputs: dict[str, list[TokenOutput]] = {str(number): [] for number in range(len(arrivals))}
    for step in range(4000):
        for number, drawn in enumerate(arrivals):
            if drawn["at"] == step:
                core.add(request(number, drawn))
            if drawn["abort_at"] == step and drawn["at"] <= step:
                core.abort([str(number)])
        if step > 24 and not core.has_work:
            return outputs
        for output in core.step().outputs:
            outputs[output.id].append(output)
    raise AssertionError("the engine makes no progress")


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EngineCore]:
    """A checkpoint, and an engine with room for everything, which serves one request at a time."""
    folder = checkpoint(request.param, tmp_path_factory.mktemp("kinds"))
    return folder, build(folder, {"cache.prefix_caching": False, "scheduler.max_num_seqs": 1})


@pytest.mark.slow
@settings(deadline=None, max_examples=12, derandomize=True)
@given(arrivals=st.lists(arrival, min_size=1, max_size=7), options=limits, spare=st.integers(0, 12))
def test_any_trace_comes_out_as_if_alone(
    model: tuple[Path, EngineCore], arrivals: list[dict[str, Any]], options: dict[str, Any], spare: int
) -> None:
    folder, alone = model
    if not options["scheduler.chunked_prefill"]:
        options = {**options, "scheduler.max_num_batched_tokens": MAX_LEN}
    core = tight(folder, options, spare)
    outputs = run(core, arrivals)
    assert core.scheduler.cache.num_free == core.scheduler.cache.num_blocks
    assert (core.stats.running, core.stats.waiting) == (0, 0)
    for number, drawn in enumerate(arrivals):
        (expected,) = run(alone, [{**drawn, "at": 0, "abort_at": None}]).values()
        found = outputs[str(number)]
        ends = [output.finish_reason for output in found if output.finish_reason]
        tokens = [token for output in found for token in output.token_ids]
        whole = [token for output in expected for token in output.token_ids]
        assert not any(output.error for output in found)
        if drawn["abort_at"] is None:
            assert ends == ["length"]
            assert tokens == whole
        else:
            assert len(ends) <= 1
            assert tokens == whole[: len(tokens)]
        pairs = zip(found, expected, strict=False)
        assert all(abs(a.logprobs[0].logprob - b.logprobs[0].logprob) < 5e-4 for a, b in pairs)
