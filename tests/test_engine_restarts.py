"""``llmk serve`` while its engine is killed, hangs, kills itself, or can't be started again."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from installed import install
from safetensors.torch import save
from served import LLMK, Served, until

from llmk import AsyncLLM, RequestContext, SamplingParams
from llmk.api import EngineDead
from llmk.config import load
from llmk.engine import launch
from llmk.engine.core import EngineCore
from llmk_testing.checkpoints import write_checkpoint

pytestmark = pytest.mark.slow_file

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}
EMBEDDINGS = base64.b64encode(save({"x": torch.linspace(0, 900, 20 * 256).sin().view(20, 256)})).decode()
"""Of the demo model's size."""
LONG = {"prompt": "One day", "ignore_eos": True, "max_tokens": 120, "stream_options": {"include_usage": True}}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {**LONG, "temperature": 0}),
    "sampled": (COMPLETIONS, {**LONG, "temperature": 1, "seed": 7, "top_p": 0.9, "frequency_penalty": 0.5}),
    "n": (COMPLETIONS, {**LONG, "temperature": 1, "seed": 3, "n": 3}),
    "logprobs": (COMPLETIONS, {**LONG, "temperature": 0, "logprobs": 2, "echo": True}),
    "embeddings": (COMPLETIONS, {**LONG, "prompt": "", "prompt_embeds": EMBEDDINGS, "temperature": 0}),
    "least": (COMPLETIONS, {**LONG, "prompt": "Once", "ignore_eos": False, "min_tokens": 60, "temperature": 0}),
    "thinking": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "What is 17 + 25?"}],
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": True},
        },
    ),
    "tool": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
            "tools": [WEATHER],
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
}

SLOW_RESTARTS = ("--no-engine.standby",)
"""So that an outage takes long enough to be looked at."""


class Asking(threading.Thread):
    """A streaming request in the background."""

    def __init__(self, served: Served, path: str, body: dict[str, Any]) -> None:
        super().__init__()
        self._served, self._path, self._body = served, path, body
        self.events: list[Any] = []
        self.problem: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            for event in self._served.stream(self._path, self._body):
                self.events.append(event)
        except Exception as error:
            self.problem = error

    def ended(self) -> list[Any]:
        """All that came."""
        self.join(120)
        assert not self.is_alive(), f"no end after {self.events[-2:]}"
        return self.events


def folded(events: list[Any]) -> dict[Any, Any]:
    """What the pieces of an answer come to, and whatever else must be equal in two of them."""
    whole: dict[Any, Any] = {}
    for event in events:
        assert "error" not in event, event
        if event.get("usage"):
            whole["tokens"] = event["usage"]["prompt_tokens"], event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            for name, value in _pieces(choice):
                key = choice["index"], name
                whole[key] = value if key not in whole else whole[key] + value
    return whole


def _pieces(choice: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    delta = choice.get("delta", {})
    for name in ("content", "reasoning_content"):
        yield name, delta.get(name) or ""
    for call in delta.get("tool_calls") or ():
        yield from ((name, value or "") for name, value in call["function"].items())
    yield "text", choice.get("text", "")
    yield "end", [choice["finish_reason"]] if choice.get("finish_reason") else []
    if choice.get("logprobs"):
        yield "tokens", choice["logprobs"]["tokens"]
        yield "logprobs", choice["logprobs"]["token_logprobs"]


def assert_same(one: dict[Any, Any], other: dict[Any, Any]) -> None:
    logprobs = [whole.pop((0, "logprobs"), []) for whole in (one, other)]
    assert one == other
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)


def engine_of(served: Served) -> psutil.Process:
    until(lambda: served.engine() is not None, what="there is no engine")
    engine = served.engine()
    assert engine is not None
    return engine


def health(served: Served) -> tuple[int, Any]:
    status, body = served.get("/health")
    return status, json.loads(body)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts servers on free ports and ends them after the test."""
    servers: list[Served] = []

    def started(*args: str, env: dict[str, str] | None = None) -> Served:
        log = tmp_path / f"log{len(servers)}"
        servers.append(Served(log, "--port", "0", "--model.dtype", "float32", "--engine.standby", *args, env=env))
        return servers[-1]

    yield started
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """In float32: when a sequence goes on, its cache is computed anew by other products than before, which in a
    narrower dtype round differently.
    """
    log = tmp_path_factory.mktemp("restarts") / "log"
    server = Served(log, "--port", "0", "--model.dtype", "float32", "--engine.hang-seconds", "4", *SLOW_RESTARTS)
    yield server
    server.close()


@pytest.fixture(scope="module")
def undisturbed(served: Served) -> dict[str, dict[Any, Any]]:
    """What comes of the requests when nothing happens."""
    whole = {name: folded(list(served.stream(path, body))) for name, (path, body) in REQUESTS.items()}
    assert whole["tool"][0, "arguments"] == '{"city": "Paris"}'
    text = whole["greedy"][0, "text"]
    stop = max((text[at : at + 4] for at in range(len(text) - 4)), key=text.index)
    body = {**REQUESTS["greedy"][1], "stop": [stop]}
    REQUESTS["stop"] = COMPLETIONS, body
    whole["stop"] = folded(list(served.stream(COMPLETIONS, body)))
    assert whole["stop"][0, "text"] == text[: text.index(stop)]
    return whole


@pytest.mark.slow
def test_streams_go_on_when_the_engine_is_killed(served: Served, undisturbed: dict[str, dict[Any, Any]]) -> None:
    """Every kind of answer, each in the midst: a tool call has begun when the engine goes."""
    plan, restarts = served.get("/v1/plan"), served.metric("llmk_engine_restarts_total")
    asking = {name: Asking(served, *request) for name, request in REQUESTS.items()}
    until(lambda: "tool_calls" in json.dumps(asking["tool"].events), what="no tool call begins")
    going_on = {name for name, one in asking.items() if one.is_alive()}
    killed = time.monotonic()
    engine_of(served).kill()
    until(lambda: served.metric("llmk_engine_up") == 0)
    assert time.monotonic() - killed < 2
    status, body = health(served)
    assert (status, body["error"]["code"]) == (503, "engine_dead")
    assert body["restarting"]["cause"] == "the engine's process was killed by SIGKILL"
    assert set(body["restarting"]) == {"since", "cause", "attempts"}
    asking["late"] = Asking(served, *REQUESTS["greedy"])
    for name, one in asking.items():
        assert_same(folded(one.ended()), dict(undisturbed["greedy" if name == "late" else name]))
    assert going_on >= {"greedy", "sampled", "n", "logprobs", "stop", "tool"}
    assert health(served) == (200, {"status": "ok"})
    assert served.metric("llmk_engine_restarts_total") == restarts + 1
    assert served.metric("llmk_sequences_retried_total") >= 7
    assert served.get("/v1/plan") == plan
    assert "its plan is" not in served.log.read_text()


def test_a_new_engine_may_be_killed_too(served: Served, undisturbed: dict[str, dict[Any, Any]]) -> None:
    """While it starts, and when it has just begun; then each sequence is let in alone."""
    asking = {name: Asking(served, *REQUESTS[name]) for name in ("greedy", "sampled", "n", "stop")}
    until(lambda: all(one.events for one in asking.values()))
    for _ in range(2):
        engine = engine_of(served)
        engine.kill()
        until(lambda engine=engine: served.engine() not in (None, engine))
    until(lambda: health(served)[0] == 200)
    engine_of(served).kill()
    for name, one in asking.items():
        assert_same(folded(one.ended()), dict(undisturbed[name]))


@pytest.mark.slow
@pytest.mark.parametrize("speculator", ["prompt_lookup", "prompt_lookup_device"])
def test_requests_with_drafts_go_on(
    start: Callable[..., Served], undisturbed: dict[str, dict[Any, Any]], speculator: str
) -> None:
    served = start("--speculation.use", speculator)
    asking = {name: Asking(served, *REQUESTS[name]) for name in ("greedy", "sampled", "n", "stop", "tool")}
    until(lambda: all(one.events for one in asking.values()))
    engine_of(served).kill()
    for name, one in asking.items():
        assert_same(folded(one.ended()), dict(undisturbed[name]))


@pytest.mark.slow
def test_an_engine_that_hangs_is_replaced(served: Served, undisturbed: dict[str, dict[Any, Any]]) -> None:
    asking = Asking(served, *REQUESTS["greedy"])
    until(lambda: bool(asking.events))
    engine_of(served).suspend()
    until(lambda: health(served)[0] == 503)
    assert_same(folded(asking.ended()), dict(undisturbed["greedy"]))
    assert "did not answer for 4 s (engine.hang_seconds) and was killed" in served.log.read_text()


def test_requests_that_leave_in_the_meantime_leave_nothing(
    served: Served, undisturbed: dict[str, dict[Any, Any]]
) -> None:
    until(lambda: health(served)[0] == 200)
    tasks = served.metric("llmk_frontend_tasks")
    streams = [served.stream(*REQUESTS["greedy"]) for _ in range(4)]
    for stream in streams:
        next(stream)
    engine_of(served).kill()
    for stream in streams[:2]:
        stream.close()
    until(lambda: served.metric("llmk_num_requests_waiting") == 2)
    until(lambda: health(served)[0] == 200)
    for stream in streams[2:]:
        stream.close()
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used"):
        until(lambda gauge=gauge: served.metric(f"llmk_{gauge}") == 0)
    until(lambda: served.metric("llmk_frontend_tasks") == tasks)


def test_a_server_that_shuts_down_waits_for_its_engine_to_come_back(
    start: Callable[..., Served], undisturbed: dict[str, dict[Any, Any]]
) -> None:
    served = start(*SLOW_RESTARTS)
    asking = Asking(served, *REQUESTS["greedy"])
    until(lambda: bool(asking.events))
    engine_of(served).kill()
    until(lambda: health(served)[0] == 503)
    served.process.terminate()
    assert_same(folded(asking.ended()), dict(undisturbed["greedy"]))
    assert served.wait() == 0


def test_a_server_that_has_no_time_shuts_down_without_an_engine(start: Callable[..., Served]) -> None:
    served = start("--server.drain-seconds", "0.2", *SLOW_RESTARTS)
    asking = Asking(served, *REQUESTS["greedy"])
    until(lambda: bool(asking.events))
    engine_of(served).kill()
    until(lambda: health(served)[0] == 503)
    until(lambda: bool(served.children()))
    children = served.children()
    served.process.terminate()
    assert served.wait(20) == 0
    assert asking.ended()[-1]["error"]["code"] == "shutting_down"
    until(lambda: not any(child.is_running() for child in children), what="the engine outlives its server")


@pytest.mark.slow
def test_an_engine_that_can_not_be_started_again(start: Callable[..., Served], tmp_path: Path) -> None:
    """Its requests fail with the cause, new ones are refused at once; once it can be started, all is well."""
    model = write_checkpoint(tmp_path / "model", "qwen3")
    served = start("--engine.restart-seconds", "1", "--max-num-seqs", "1", str(model))
    asked = {"prompt": "A small core", "temperature": 0, "max_tokens": 200, "ignore_eos": True}
    asking = [Asking(served, COMPLETIONS, asked) for _ in range(6)]  # of which the first may end before the engine
    until(lambda: any(one.events for one in asking))
    shutil.move(model / "model.safetensors", tmp_path / "weights")
    engine_of(served).kill()
    ended = [json.dumps(one.ended()) + str(one.problem) for one in asking]
    failed = ["engine_dead" in each or "503" in each for each in ended]
    assert failed[-1], ended
    assert all(has or '"length"' in each for has, each in zip(failed, ended, strict=True)), ended
    status, answer = served.post(COMPLETIONS, asked, timeout=10)
    assert (status, answer["error"]["code"], answer["error"]["type"]) == (503, "engine_dead", "server_error")
    until(lambda: health(served)[1]["restarting"]["attempts"] > 1)
    cause = "the engine's process was killed by SIGKILL; no other one started: CheckpointError"
    assert health(served)[1]["restarting"]["cause"].startswith(cause)
    assert served.get("/v1/models")[0] == 200
    shutil.move(tmp_path / "weights", model / "model.safetensors")
    until(lambda: health(served)[0] == 200, timeout=60)
    assert served.post(COMPLETIONS, asked)[0] == 200
    shutil.move(model / "model.safetensors", tmp_path / "weights")
    engine_of(served).kill()
    until(lambda: health(served)[0] == 503)
    served.process.terminate()
    assert served.wait(20) == 0


def test_an_engine_in_this_process_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the first one is freed: there may be memory for one only."""
    build_core, models = launch.build_core, []

    def build(boot: Any) -> Any:
        assert all(model() is None for model in models)
        core, info = build_core(boot)
        runner: Any = core.runner
        if not models:
            submit = runner.submit
            runner.submit = lambda plan: _die() if plan.step == 5 else submit(plan)
            core = EngineCore(core.scheduler, runner, depth=core.depth)  # which binds what the runner is now
        models.append(weakref.ref(runner.model))
        return core, info

    def _die() -> Any:
        raise EngineDead("a worker is gone")

    async def answer(llm: AsyncLLM) -> list[int]:
        params = SamplingParams(max_tokens=12, seed=3, ignore_eos=True)
        return [
            token async for delta in llm.generate([5, 6, 7], params, RequestContext("a")) for token in delta.token_ids
        ]

    async def main() -> tuple[list[int], list[int]]:
        settings = load({"model.path": str(write_checkpoint(tmp_path / "model", "qwen3")), "cache.num_blocks": 16})
        llm = await AsyncLLM.start(settings, in_process=True)
        answers = await answer(llm), await answer(llm)
        assert llm.stats.restarts == 1
        await llm.close()
        return answers

    monkeypatch.setattr(launch, "build_core", build)
    first, second = asyncio.run(main())
    assert len(models) == 2
    assert first == second
    assert len(first) == 12


SPECS = """
from llmk.api import LogitsProcessorSpec, PolicySpec, hookimpl

@hookimpl
def llmk_logits_processors():
    names = {"exit": "Exit", "loop": "Loop", "loop_enter": "LoopEnter", "crash": "Crash"}
    return [LogitsProcessorSpec(id=f"traps.{n}", implementation=f"traps_plugins:{k}") for n, k in names.items()]

@hookimpl
def llmk_scheduling_policies():
    names = {"policy_loop": "PolicyLoop", "policy_exit": "PolicyExit"}
    return [PolicySpec(id=f"traps.{n}", name=n, implementation=f"traps_plugins:{k}") for n, k in names.items()]
"""
PLUGINS = """
import os
import signal
import time

def loop():
    end = time.time() + 60
    while time.time() < end:
        pass

class Exit:
    def __init__(self, batch):
        pass

    def enter(self, slot, request):
        pass

    def leave(self, slot):
        pass

    def apply(self, logits, rows):
        os._exit(7)

class Loop(Exit):
    def apply(self, logits, rows):
        loop()

class LoopEnter(Exit):
    def enter(self, slot, request):
        loop()

    def apply(self, logits, rows):
        return logits

class Crash(Exit):
    def apply(self, logits, rows):
        os.kill(os.getpid(), signal.SIGSEGV)

class PolicyLoop:
    calls = 0

    def __init__(self, context):
        pass

    def computed(self, request, num_tokens):
        PolicyLoop.calls += 1
        if PolicyLoop.calls > 5:
            self.end()

    def end(self):
        loop()

class PolicyExit(PolicyLoop):
    def end(self):
        os._exit(7)
"""


@pytest.fixture
def with_traps(tmp_path: Path) -> dict[str, str]:
    """An environment in which a wheel is installed whose plugins end the process, or never return."""
    site = install(tmp_path / "site", "traps", SPECS, traps_plugins=PLUGINS)
    return {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}


ENDS = {
    "exit": "was running when the engine's process ended with exit code 7",
    "crash": "was running when the engine's process was killed by SIGSEGV",
    "loop": r"did not return for 1 s \(engine.plugin_seconds\), and the engine's process was killed",
    "loop_enter": r"did not return for 1 s \(engine.plugin_seconds\), and the engine's process was killed",
}


@pytest.mark.slow
def test_a_logits_processor_that_ends_the_engine_fails_its_request_alone(
    start: Callable[..., Served], undisturbed: dict[str, dict[Any, Any]], with_traps: dict[str, str]
) -> None:
    """Others go on after one restart for each, and what ended it is named."""
    served = start("--engine.plugin-seconds", "1", env=with_traps)
    for number, (name, words) in enumerate(ENDS.items()):
        asking = {name: Asking(served, *REQUESTS[name]) for name in ("greedy", "sampled", "n")}
        until(lambda asking=asking: all(one.events for one in asking.values()))
        body = {"prompt": "One", "max_tokens": 4, "logits_processors": {f"traps.{name}": {}}}
        status, answer = served.post(COMPLETIONS, body, timeout=120)
        assert (status, answer["error"]["code"]) == (500, "plugin_error")
        assert re.fullmatch(rf"the logits processor traps\.{name} of traps 1\.0 {words}", answer["error"]["message"])
        for name, one in asking.items():
            assert_same(folded(one.ended()), dict(undisturbed[name]))
        assert served.metric("llmk_engine_restarts_total") == number + 1


@pytest.mark.slow
def test_a_logits_processor_that_ends_engines_again_and_again_is_not_called_any_more(
    start: Callable[..., Served], with_traps: dict[str, str]
) -> None:
    served = start(env=with_traps)
    body = {"prompt": "One", "max_tokens": 4, "logits_processors": {"traps.exit": {}}}
    for _ in range(3):
        status, answer = served.post(COMPLETIONS, body, timeout=120)
        assert (status, answer["error"]["code"]) == (500, "plugin_error")
    status, answer = served.post(COMPLETIONS, body, timeout=120)
    assert (status, answer["error"]["code"]) == (500, "plugin_error")
    assert "traps.exit ended the engine too often, and is not called again" in answer["error"]["message"]
    assert served.metric("llmk_engine_restarts_total") == 3
    assert served.post(COMPLETIONS, {"prompt": "One", "max_tokens": 2})[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["policy_loop", "policy_exit"])
def test_a_policy_that_ends_the_engine_is_replaced_and_fails_nobody(
    start: Callable[..., Served], undisturbed: dict[str, dict[Any, Any]], with_traps: dict[str, str], policy: str
) -> None:
    use = ("--set", f"select.policy.use=traps.{policy}")
    served = start("--engine.plugin-seconds", "1", *use, env=with_traps)
    asking = {name: Asking(served, *REQUESTS[name]) for name in ("greedy", "sampled", "n")}
    for name, one in asking.items():
        assert_same(folded(one.ended()), dict(undisturbed[name]))
    assert served.metric("llmk_engine_restarts_total") == 1
    assert served.metric("llmk_scheduling_policy_failures_total") == 1
    told = f"the scheduling policy traps.{policy} of traps 1.0 is not called again until the server is restarted"
    assert told in served.log.read_text()


@pytest.mark.slow
def test_with_several_processes_it_is_the_same(start: Callable[..., Served], with_traps: dict[str, str]) -> None:
    """The code then runs in each rank's process."""
    served = start("--engine.plugin-seconds", "1", "--parallel.tensor", "2", env=with_traps)
    for number, name in enumerate(("loop", "exit")):
        asking = Asking(served, *REQUESTS["greedy"])
        until(lambda asking=asking: bool(asking.events))
        body = {"prompt": "One", "max_tokens": 4, "logits_processors": {f"traps.{name}": {}}}
        status, answer = served.post(COMPLETIONS, body, timeout=120)
        assert (status, answer["error"]["code"]) == (500, "plugin_error")
        assert answer["error"]["message"].startswith(f"the logits processor traps.{name} of traps 1.0 ")
        assert folded(asking.ended())[0, "end"] == ["length"]
        assert served.metric("llmk_engine_restarts_total") == number + 1


def test_the_next_engine_is_ready_before_the_first_dies(
    start: Callable[..., Served], undisturbed: dict[str, dict[Any, Any]]
) -> None:
    """It has its imports done, becomes the engine, and has a successor in turn; none outlives the server."""
    served = start()
    for _ in range(2):
        until(lambda: served.standby() is not None, what="no process stands by")
        standby, engine = served.standby(), engine_of(served)
        assert standby is not None
        asking = Asking(served, *REQUESTS["greedy"])
        until(lambda asking=asking: bool(asking.events))
        engine.kill()
        assert_same(folded(asking.ended()), dict(undisturbed["greedy"]))
        assert engine_of(served) == standby
    until(lambda: served.standby() is not None, what="no process stands by")
    children = served.children()
    served.process.terminate()
    assert served.wait() == 0
    until(lambda: not any(child.is_running() for child in children), what="a process outlives its server")
    assert "Traceback" not in served.log.read_text()


def test_in_bfloat16_answers_are_the_same_where_that_is_asked_for(start: Callable[..., Served]) -> None:
    served = start("--model.dtype", "bfloat16", "--engine.deterministic")
    asked = {
        "prompt": "One day",
        "max_tokens": 120,
        "ignore_eos": True,
        "temperature": 1,
        "n": 3,
        "seed": 3,
        "logprobs": 0,
    }
    whole = folded(list(served.stream(COMPLETIONS, asked)))
    asking = Asking(served, COMPLETIONS, asked)
    until(lambda: len(asking.events) > 40)
    engine_of(served).kill()
    assert folded(asking.ended()) == whole
    assert served.metric("llmk_sequences_retried_total") == 3


def test_a_standby_that_died_is_not_missed(start: Callable[..., Served]) -> None:
    served = start()
    until(lambda: served.standby() is not None, what="no process stands by")
    standby = served.standby()
    assert standby is not None
    standby.kill()
    engine_of(served).kill()
    until(lambda: served.metric("llmk_engine_restarts_total") == 1)
    assert served.post(COMPLETIONS, {"prompt": "One", "max_tokens": 2})[0] == 200


def test_a_plan_has_one_fingerprint_in_every_process() -> None:
    found = set()
    for seed in ("1", "2"):
        command = [*LLMK, "explain", "demo", "--json"]
        done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        found.add(json.loads(done.stdout)["fingerprint"])
    assert len(found) == 1
