"""The engine on this machine's accelerator, by torch alone: waits, overlap and times that only a real device has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from installed import installed

from llmk import LLM, SamplingParams
from llmk.engine.core import EngineCore
from llmk.engine.device import file_reader
from llmk.engine.device.trace import Trace
from llmk.engine.device.transfer import has_pinned_memory
from llmk.engine.wire.request import EngineRequest
from llmk_testing.checkpoints import write_checkpoint

FOUND = torch.accelerator.current_accelerator(check_available=True)
pytestmark = pytest.mark.skipif(FOUND is None, reason="torch finds no accelerator on this machine")
SPECS = """
import torch
from llmk.api import OK, PlatformFacts, PlatformSpec, Probe, hookimpl

FACTS = PlatformFacts(
    name="any", arch="any", device_type=str(torch.accelerator.current_accelerator()),
    features=frozenset({"asynchronous"}), dtypes=("float32", "bfloat16"),
)

@hookimpl
def llmk_platforms():
    return [PlatformSpec(id="any.any", name="any", implementation="any_specs:Any", rank=999,
                         probe=lambda host: Probe(OK, FACTS), known=(FACTS,))]

class Any:
    graphs = compiling = collectives = None
    def __init__(self, facts):
        self.facts = facts
        self.device = self.memory = self
    def torch_device(self, index):
        return torch.device(self.facts.device_type, index)
    def setup(self, index, threads=0):
        torch.accelerator.set_device_index(index)
    def synchronize(self):
        torch.accelerator.synchronize()
    def total(self):
        return 1 << 32
    available = total
    def measure(self, run):
        run()
"""
MIXED = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(seed=1, max_tokens=20, top_k=9, top_p=0.9, logprobs=2, ignore_eos=True),
    SamplingParams(seed=2, max_tokens=20, presence_penalty=0.5, min_tokens=4, bad_word_ids=((3, 4),)),
    SamplingParams(temperature=0, max_tokens=20, prompt_logprobs=1, allowed_token_ids=tuple(range(200))),
]
PROMPTS = [[(7 * number + 3 * at) % 380 for at in range(5 + 9 * number)] for number in range(8)]
PARAMS = [MIXED[number % 4] for number in range(8)]
HOST = 0.02


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny checkpoint, with the platform installed."""
    with installed(tmp_path_factory.mktemp("site"), "any", SPECS):
        yield write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")


def make(checkpoint: Path, **settings: Any) -> LLM:
    common = {"cache.num_blocks": 256, "scheduler.max_num_batched_tokens": 64}
    return LLM(str(checkpoint), dtype="float32", **{**common, **settings})


def core_of(llm: LLM) -> EngineCore:
    assert llm._core is not None
    return llm._core


def test_two_steps_are_in_flight_and_tokens_are_those_of_one(checkpoint: Path) -> None:
    tokens = []
    for settings, depth in (({}, 2), ({"engine.steps_in_flight": 1}, 1), ({"platform.use": "cpu"}, 1)):
        with make(checkpoint, **settings) as llm:
            assert core_of(llm).depth == depth
            outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
            tokens.append([output.outputs[0].token_ids for output in outputs])
    assert tokens[0] == tokens[1] == tokens[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first", [0, 3])
def test_weights_reach_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, first: int
) -> None:
    """All columns and some, in pieces that use each buffer many times over; what is issued next finds them there."""
    monkeypatch.setattr(file_reader, "NUM_THREADS", 2)
    values = torch.randn(4000, 1000)
    file = tmp_path / "values"
    file.write_bytes(values.numpy().tobytes())
    expected = values[:, first:].to(dtype)
    into = torch.zeros(expected.shape, dtype=dtype, device=FOUND)
    chunks = [
        file_reader.Chunk(file, 4000 * row + 4 * first, 4000, torch.float32, into[row : row + 10])
        for row in range(0, 4000, 10)
    ]
    with file_reader.FileReader() as reader:
        found = [into.clone() for _ in reader.read([("all", chunks)])]
    assert torch.equal(found[0].cpu(), expected)


@contextmanager
def waits_are(mode: str) -> Iterator[None]:
    """Until the end, what makes the host wait is an ``"error"``, or none (``"default"``)."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.skipif(str(FOUND) != "cuda", reason="torch tells of waits on one kind of accelerator only")
def test_a_step_is_submitted_without_a_wait(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the reference attention's, which says so of its ``prepare``."""
    with waits_are("error"), pytest.raises(RuntimeError, match="synchronizing"):
        torch.ones(1, device="cuda").item()
    with make(checkpoint) as llm:
        llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        runner: Any = core_of(llm).runner
        prepare, submit, steps = runner._prepare, core_of(llm)._submit, []

        def watched(plan: Any) -> Any:
            steps.append(plan.step)
            with waits_are("error"):
                return submit(plan)

        def unwatched(*args: Any) -> Any:
            with waits_are("default"):
                return prepare(*args)

        monkeypatch.setattr(core_of(llm), "_submit", watched)
        monkeypatch.setattr(runner, "_prepare", unwatched)
        llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert len(steps) > 20


def slowed(forward: Callable[..., Any], device: torch.device, seconds: float) -> Callable[..., Any]:
    """``forward`` on a device that has other work first, which takes about ``seconds``."""
    matrix = torch.ones(2048, 2048, device=device)

    def work(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    work(10)
    torch.accelerator.synchronize()
    start = time.monotonic()
    work(50)
    torch.accelerator.synchronize()
    times = round(50 * seconds / (time.monotonic() - start))

    def slow(*args: Any) -> Any:
        work(times)
        return forward(*args)

    return slow


@pytest.mark.parametrize("depth", [1, 2])
def test_the_host_works_while_the_device_does(checkpoint: Path, depth: int) -> None:
    with make(checkpoint, **{"engine.steps_in_flight": depth}) as llm:
        core, runner = core_of(llm), core_of(llm).runner
        runner._forward = slowed(runner._forward, runner.batch.device, 2 * HOST)  # type: ignore[attr-defined]
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        core.add(EngineRequest(id="a", prompt_token_ids=PROMPTS[0], params=params))
        took = []
        while core.has_work:
            start = time.monotonic()
            time.sleep(HOST)
            core.step()
            took.append(time.monotonic() - start)
        step = median(took[5:-5])
        print(f"{depth} in flight: {1e3 * step:.1f} ms, host {1e3 * HOST:.0f} ms, device {2e3 * HOST:.0f} ms")
        assert (step > 2.8 * HOST) if depth == 1 else (step < 2.5 * HOST)


def test_a_trace_has_the_devices_own_times(checkpoint: Path) -> None:
    from llmk.config import load
    from llmk.engine.launch import build_core
    from llmk.planning.boot import boot

    trace = Trace()
    core, _ = build_core(boot(load({"model.path": str(checkpoint), "cache.num_blocks": 64}, environ={})), trace)
    runner: Any = core.runner
    assert has_pinned_memory(runner.batch.device)
    runner._forward = slowed(runner._forward, runner.batch.device, HOST)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    core.add(EngineRequest(id="a", prompt_token_ids=PROMPTS[0], params=params))
    trace.clear()
    while core.has_work:
        core.step()
    device = trace.device()
    assert len(device) == 20
    assert 0.7 * HOST < median(span.seconds for span in device) < 2 * HOST
    assert all(a.end <= b.start + 20_000 for a, b in pairwise(device)), "steps follow one another on the device"
    waits = [span for span in trace.host() if span.name == "wait"]
    assert all(wait.end > step.end - 1_000_000 for wait, step in zip(waits, device, strict=False)), "one time scale"
    summary = trace.summary()
    print("\n".join(summary.lines()))
    assert summary.busy_share is not None
    assert 0.8 < summary.busy_share <= 1
