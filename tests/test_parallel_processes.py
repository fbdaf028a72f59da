"""The executor of several processes: the same answers over gloo, and what it makes of failures and ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file, save_file
from served import until
from spread import answers, check, make, tight

from llmk import LLM, SamplingParams
from llmk.api import CheckpointError, EngineDead, LlmkError
from llmk.engine.processes import child_process as child
from llmk.engine.processes.ranks.multiprocess_executor import MultiProcessExecutor
from llmk.engine.processes.ranks.worker_messages import Run
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.step import StepPlan, Work

pytestmark = pytest.mark.slow_file

LONG = EngineRequest(
    id="long", prompt_token_ids=[5, 6, 7], params=SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
)


class Engine:
    """A model over several processes, and what there is to see of them."""

    def __init__(self, folder: Path, tensor: int, pipeline: int, *, bind: bool = False) -> None:
        parallel = {"tensor": tensor, "pipeline": pipeline, "bind": bind}
        self.llm = LLM(str(folder), **tight(folder.name), parallel=parallel)
        core: Any = self.llm._core
        self.core = core
        self.workers: MultiProcessExecutor = core.runner
        self.processes = [psutil.Process(pid) for pid in self.workers.pids]

    def running(self) -> int:
        """Processes that have not ended."""
        return sum(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in self.processes)

    def next_plan(self) -> StepPlan:
        """A step's plan, for a request that has far to go."""
        if not self.core.has_work:
            self.core.add(LONG)
        plan = self.core.scheduler.schedule()
        assert plan is not None
        return plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint")


@pytest.fixture
def start() -> Iterator[Any]:
    engines: list[Engine] = []

    def started(*args: Any, **options: Any) -> Engine:
        engines.append(Engine(*args, **options))
        return engines[-1]

    yield started
    for engine in engines:
        engine.llm.close()
        assert not engine.running()


def alone(folder: Path) -> Any:
    with LLM(str(folder), **tight(folder.name)) as llm:
        return answers(llm)


def nonsense(step: int) -> StepPlan:
    """A plan that a runner raises on, before it exchanges anything: no slot has that number. It is given blocks, since
    kernels take slots as they are."""
    return StepPlan(step=step, work=[Work(slot=1 << 20, before=0, num_tokens=1, sample=True, new_blocks=[[0]])])


@pytest.mark.slow
def test_ranks_that_cut_layers(folder: Path, start: Any) -> None:
    checkpoint = make(folder, "qwen3-tied-odd-vocabulary")
    engine = start(checkpoint, 2, 1, bind=True)
    engine.core.depth = 2
    check(answers(engine.llm), alone(checkpoint))
    bound = [process.cpu_affinity() for process in engine.processes]
    assert sorted(bound[0] + bound[1]) == sorted(os.sched_getaffinity(0)) or os.cpu_count() == 1
    connections = [each for process in engine.processes for each in process.net_connections("inet")]
    assert {each.laddr.ip for each in connections} == {"127.0.0.1"}
    listening = [each.laddr for each in connections if each.status == psutil.CONN_LISTEN]
    assert len(listening) == 2, "one port for each process"
    with ExitStack() as stack:
        for address in listening:
            for junk in (b"", bytes(8), os.urandom(4096)):
                stack.enter_context(socket.create_connection(address)).sendall(junk)
        check(answers(engine.llm), alone(checkpoint))
    refused_alike(engine)
    killed_beside_one_that_waits(engine)


def refused_alike(engine: Engine) -> None:
    """A step that fails in all ranks alike is that step's failure alone, whatever comes right behind it."""
    pending = engine.workers.submit(nonsense(1000)), engine.workers.submit(StepPlan(step=1001))
    with pytest.raises(LlmkError, match="IndexError: ") as caught:
        pending[0].result()
    assert not isinstance(caught.value, EngineDead)
    assert pending[1].result().step == 1001
    assert engine.running() == 2


def killed_beside_one_that_waits(engine: Engine) -> None:
    """The end of a rank is noticed while another waits for it in a collective."""
    engine.processes[1].suspend()
    pending = engine.workers.submit(engine.next_plan())
    time.sleep(0.2)
    begin = time.monotonic()
    engine.processes[1].kill()
    with pytest.raises(EngineDead, match=r"process 1 \(stage 0, tensor rank 1\) was killed by SIGKILL"):
        pending.result()
    assert time.monotonic() - begin < 1
    until(lambda: engine.running() == 0, timeout=1)
    for _ in range(2):
        with pytest.raises(EngineDead, match="was killed by SIGKILL"):
            engine.workers.submit(nonsense(1002))


@pytest.mark.slow
def test_stages(folder: Path, start: Any) -> None:
    checkpoint = make(folder, "gemma2")
    engine = start(checkpoint, 1, 2)
    engine.core.depth = 2
    check(answers(engine.llm), alone(checkpoint))
    assert engine.core.answers()
    ranks = engine.workers.take_ranks()
    assert [(rank.rank, rank.node) for rank in ranks] == [(0, ""), (1, "")]
    assert ranks[0].steps == ranks[1].steps > 10
    assert all(rank.step_seconds > 0 and rank.processor_seconds > 0 for rank in ranks)
    assert all(rank.resident_bytes > 1 << 20 for rank in ranks)
    assert engine.workers.take_ranks() == []
    engine.processes[0].kill()
    until(lambda: engine.running() == 0, timeout=1)  # nobody asked for anything
    with pytest.raises(EngineDead, match=r"process 0 \(stage 0, tensor rank 0\) was killed by SIGKILL"):
        engine.core.answers()


def test_a_rank_that_is_stopped_is_noticed_while_nobody_asks(
    folder: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine does not answer for it; what is stopped for long is ended."""
    engine = start(make(folder, "qwen3-tied-odd-vocabulary"), 2, 1)
    assert engine.core.answers()
    engine.processes[1].suspend()
    assert not engine.core.answers()
    assert not engine.core.answers()
    engine.processes[1].resume()
    until(lambda: engine.core.answers())
    assert engine.running() == 2
    monkeypatch.setattr(child, "STOPPED_SECONDS", 1.0)
    engine.processes[1].suspend()
    until(lambda: engine.running() == 0)
    with pytest.raises(EngineDead, match=r"tensor rank 1\) was stopped \(SIGSTOP\) for \d s, and was killed"):
        engine.core.answers()


@pytest.mark.slow
def test_stages_of_ranks_that_cut_layers(folder: Path, start: Any) -> None:
    checkpoint = make(folder, "qwen3-next-one-kv-head")
    engine = start(checkpoint, 2, 2)
    check(answers(engine.llm), alone(checkpoint))
    failed_beside_one_that_waits(engine)


def failed_beside_one_that_waits(engine: Engine) -> None:
    """Where one rank failed and others wait for it, nothing can go on."""
    plan = engine.next_plan()
    encode = engine.workers._encoder.encode
    for rank, commands in enumerate(engine.workers._sockets.commands):
        commands.send(encode(Run(nonsense(plan.step) if rank == 2 else plan)))
    begin = time.monotonic()
    with pytest.raises(EngineDead, match=r"process 2 \(stage 1, tensor rank 0\) failed in step \d+.*IndexError: ") as e:
        engine.workers.result(plan.step)
    assert isinstance(e.value.__cause__, LlmkError)
    assert time.monotonic() - begin < 1
    until(lambda: engine.running() == 0, timeout=1)


def test_what_fails_at_start_arrives_as_itself(folder: Path) -> None:
    checkpoint = make(folder, "llama-biases")
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    children = len(psutil.Process().children())
    with pytest.raises(CheckpointError, match=r"lacks 1 of the tensors .*layers\.2\.mlp\.up_proj\.weight"):
        LLM(str(checkpoint), **tight(checkpoint.name), parallel={"tensor": 2})
    assert len(psutil.Process().children()) == children


@pytest.mark.slow
def test_no_process_outlives_the_engine(folder: Path) -> None:
    """Nor do its files, however it ends."""
    checkpoint = make(folder, "mistral-one-kv-head")
    script = (
        "import sys, time; from llmk import LLM\n"
        f"llm = LLM({str(checkpoint)!r}, parallel={{'tensor': 2}})\n"
        "workers = llm._core.runner; print(*workers.pids, workers._sockets.folder, flush=True); time.sleep(600)"
    )
    engine = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    *pids, private = engine.stdout.readline().split()
    os.kill(engine.pid, signal.SIGKILL)
    engine.communicate()
    until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids), timeout=5)
    assert not Path(private).exists()
