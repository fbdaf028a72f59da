"""Models that several ranks hold between them answer as one process does. The ranks are threads here; those that are
processes are tested in ``test_parallel_processes.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from spread import FAMILIES, answers, check, make, tight
from threaded_ranks import ThreadedRanks

from llmk import LLM, SamplingParams
from llmk.api import Plan, RecurrentCache, sharded
from llmk.config import load
from llmk.engine import launch
from llmk.engine.device import file_reader
from llmk.engine.execution.build import load_model
from llmk.nn import Linear
from llmk.nn.moe import Experts
from llmk.nn.parallel import Parallel
from llmk.planning.boot import boot
from llmk_cpu.platform import CPUDevice
from llmk_testing.checkpoints import write_checkpoint

SHAPES = [(2, 1), (1, 2), (2, 2), (1, 3), (4, 1)]
"""Ranks that cut layers, and stages."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint, and what one process answers."""
    folder = make(tmp_path_factory.mktemp("checkpoint"), request.param)
    with LLM(str(folder), **tight(folder.name)) as llm:
        return folder, answers(llm)


@pytest.mark.slow
@pytest.mark.parametrize(("tensor", "pipeline"), SHAPES)
def test_same_answers(family: tuple[Path, Any], tensor: int, pipeline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, expected = family
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with LLM(str(folder), **tight(folder.name), parallel={"tensor": tensor, "pipeline": pipeline}) as llm:
        check(answers(llm), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["seed_oss", "hyperclovax"])
def test_layers_of_transformers_modules_are_cut(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path / kind, kind, head_dim=16)
    with LLM(str(folder), **tight(kind)) as llm:
        expected = answers(llm)
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with LLM(str(folder), **tight(kind), parallel={"tensor": 2}) as llm:
        assert llm.boot.plan.model == "models.transformers"
        check(answers(llm), expected)


@pytest.mark.parametrize(
    ("family", "tensor", "pipeline"),
    [
        *((family, 2, 1) for family in ("mixtral", "gemma2", "deepseek-v2-biases")),
        ("mixtral", 1, 3),
        ("mixtral", 2, 2),
    ],
    indirect=["family"],
)
def test_recorded_steps_of_ranks(
    family: tuple[Path, Any], tensor: int, pipeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = family
    monkeypatch.setattr(ThreadedRanks, "sizes", (1, 3, 6))
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with LLM(str(folder), **tight(folder.name), parallel={"tensor": tensor, "pipeline": pipeline}) as llm:
        check(answers(llm), expected)
        ranks: Any = llm._core.runner
    # Closed, as one rank answers for all of them, and another may have been on its way through the last step.
    replays = [graphs.replays for graphs in ranks.graphs]
    calls = [each.build.parallel.num_calls for each in ranks.loaded]
    assert replays[0] > 10
    assert len(set(replays)) == 1
    assert all(len(set(calls[first : first + tensor])) == 1 for first in range(0, len(calls), tensor))


@pytest.fixture
def mixtral(tmp_path: Path) -> Any:
    """A boot for two stages of two ranks."""
    flags = {"model.path": str(make(tmp_path, "mixtral")), "parallel.tensor": 2, "parallel.pipeline": 2}
    return boot(load({**flags, "platform.threads": 2}, environ={}))


def place(plan: Plan, rank: int) -> Parallel:
    """A rank's, without the others."""
    return Parallel(rank % plan.tensor, plan.tensor, rank // plan.tensor, plan.pipeline)


def test_each_rank_reads_its_share_of_the_file(mixtral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    fill = file_reader._fill

    def counting(chunk: file_reader.Chunk, into: torch.Tensor, streams: Any) -> None:
        read[-1] += chunk.num_bytes
        fill(chunk, into, streams)

    monkeypatch.setattr(file_reader, "NUM_THREADS", 1)
    monkeypatch.setattr(file_reader, "_fill", counting)
    for rank in range(4):
        read.append(0)
        load_model(mixtral, rank, lambda _, rank=rank: place(mixtral.plan, rank))
    whole = mixtral.facts.num_parameters * 4
    assert whole <= sum(read) <= 1.02 * whole  # norms and routers are read by two
    assert max(read) < 0.4 * whole  # three layers make two stages


def test_ranks_on_one_device_share_its_threads(mixtral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(CPUDevice, "setup", lambda self, index, threads: seen.append((index, threads)))
    for rank in range(4):
        load_model(mixtral, rank, lambda _, rank=rank: place(mixtral.plan, rank))
    assert seen == [(rank, 1) for rank in range(4)]


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_have_the_shapes_that_were_planned_for(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every product, of the experts, and of what is kept."""
    made: list[tuple[str, Any]] = []
    make_linear = Linear.__init__

    def noting(self: Linear, *args: Any, site: str, **options: Any) -> None:
        make_linear(self, *args, site=site, **options)
        made.append((site, self.parameters[0]._storage().shape))

    monkeypatch.setattr(Linear, "__init__", noting)
    flags = {
        "model.path": str(make(tmp_path, family)),
        "parallel.tensor": 2,
        "parallel.pipeline": 2,
        "select.moe.prefer": ["reference.fused_moe"],
    }
    booted = boot(load({**flags, "model.dtype": "float32"}, environ={}))
    model: Any = load_model(booted, 3, lambda _: place(booted.plan, 3)).model
    assert {site for site, _ in made} | {"lm_head"} == {site.site for site in booted.facts.linear}
    for site, shape in [*made, ("lm_head", model.head.weight.shape)]:
        query: Any = booted.plan.choice("linear", site).query
        assert shape == (query.out_features, query.in_features), site
    for site in booted.facts.moe:
        experts: Any = booted.plan.choice("moe", site.site).query
        down = [layer.weights["down"] for layer in model.weights if isinstance(layer, Experts) and layer.here]
        assert down[-1].shape[-1] == experts.intermediate_size
    kept = {name: spec for _, name, spec in model.cache_specs()}
    for state in sharded(booted.facts, 2).recurrent:
        assert kept[state.site] == RecurrentCache.of(state.tensors, state.inputs)


def test_a_stage_takes_over_a_residual_of_another_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second stage takes over what is float32 from then on, the third what is already."""
    folder = str(make(tmp_path, "mamba2-biases"))

    def tokens(**parallel: int) -> list[list[int]]:
        with LLM(folder, dtype="bfloat16", max_model_len=80, parallel=parallel) as llm:
            params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
            return [output.outputs[0].token_ids for output in llm.generate([[5, 6, 7], [8] * 30], params, False)]

    expected = tokens()
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    assert tokens(pipeline=3) == expected
