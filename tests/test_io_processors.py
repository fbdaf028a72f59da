"""IO processors of plugins in the engine and the server: what their requests get, how they fail, and what is left."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from installed import installed
from served import Served, until

from llmk import LLM, RequestContext, SamplingParams
from llmk.api import PluginError, RequestError
from llmk.config import load
from llmk.engine.async_llm import AsyncLLM
from llmk_testing.checkpoints import write_checkpoint

SPECS = """
    from llmk.api import IOProcessorSpec, hookimpl, no

    @hookimpl
    def llmk_io_processors():
        where = "probes_processor:"
        return [
            IOProcessorSpec(id="probes.probe", name="probe", implementation=where + "Probe", summary="Tells all."),
            IOProcessorSpec(id="probes.never", name="never", implementation=where + "Never",
                            supports=lambda checkpoint: no("moon", wanted="a full moon")),
            IOProcessorSpec(id="probes.absent", name="absent", implementation=where + "Absent"),
            IOProcessorSpec(id="probes.twin1", name="twin", implementation=where + "Probe"),
            IOProcessorSpec(id="probes.twin2", name="twin", implementation=where + "Probe"),
        ]
    """
PROCESSOR = """
    import os, sys, threading, time, weakref
    from llmk.api import IOPrompt, RequestError

    living = weakref.WeakSet()

    class Probe:
        '''{"prompts": [...], "returns": ..., "fail": {stage: "plugin" | "client"}, ...} to all that came of it.'''
        def __init__(self, context):
            self.context = context

        def open(self, body):
            return ProbeRequest(body)

    class ProbeRequest:
        def __init__(self, body):
            living.add(self)
            self.fail, self.pieces, self.thread = body.get("fail", {}), [], threading.get_ident()
            self.step("open")
            prompts, returns = body["prompts"], body.get("returns", "hidden")
            sampling = body.get("sampling", {})
            self.prompts = [IOPrompt(prompt=p, returns=returns, param=f"prompts[{i}]", sampling=sampling)
                            for i, p in enumerate(prompts)]

        def step(self, stage):
            assert self.thread == threading.get_ident(), "one thread makes all calls"
            if self.fail.get(stage) == "plugin":
                raise ValueError(f"no luck in {stage}")
            if self.fail.get(stage) == "client":
                raise RequestError(f"bad in {stage}", param="fail")
            if self.fail.get(stage) == "exit":
                sys.exit(3)
            if self.fail.get(stage) == "end":
                os._exit(9)
            while self.fail.get(stage) == "loop":
                pass
            if self.fail.get(stage) == "slow":
                time.sleep(0.3)

        def take(self, output):
            self.step("take")
            hidden = None if output.hidden is None else output.hidden.tolist()
            self.pieces.append({"prompt": output.prompt, "start": output.start, "tokens": list(output.token_ids),
                                "hidden": hidden, "logprobs": list(output.logprobs), "text": output.text,
                                "end": output.finish_reason})

        def answer(self):
            self.step("answer")
            return {"pieces": self.pieces, "odd": object()} if self.fail.get("json") else {"pieces": self.pieces}
    """
PROMPTS = [list(range(5, 28)), [40, 41, 42], [17]]
STAGES = ("open", "take", "answer")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the path where the wheel is installed."""
    modules = {"probes_processor": dedent(PROCESSOR)}
    with installed(tmp_path_factory.mktemp("site"), "probes", dedent(SPECS), **modules) as folder:
        yield folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def make(folder: Path, **settings: Any) -> LLM:
    return LLM(str(folder), dtype="float32", **{"cache.num_blocks": 64, "cache.block_size": 4, **settings})


@pytest.fixture(scope="module")
def llm(folder: Path, site: Path) -> Iterator[LLM]:
    with make(folder) as llm:
        yield llm


def joined(answer: Any) -> list[torch.Tensor]:
    """Hidden states of each prompt; each token's must be there once, in order."""
    found: dict[int, list[Any]] = {}
    for piece in answer["pieces"]:
        rows = found.setdefault(piece["prompt"], [])
        assert piece["start"] == len(rows)
        assert len(piece["tokens"]) == len(piece["hidden"])
        rows += piece["hidden"]
    assert [piece["end"] for piece in answer["pieces"]].count("stop") == len(found)
    return [torch.tensor(found[prompt]) for prompt in sorted(found)]


def texts(answer: tuple[int, Any]) -> dict[int, str]:
    """Text of each prompt's answer, whatever pieces it came in."""
    status, body = answer
    assert status == 200, body
    found: dict[int, str] = {}
    for piece in body["pieces"]:
        found[piece["prompt"]] = found.get(piece["prompt"], "") + piece["text"]
    return found


def expected(oracle: Any, prompts: list[list[int]] = PROMPTS) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [oracle.model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]


def check_hidden(answer: Any, oracle: Any, prompts: list[list[int]] = PROMPTS) -> None:
    for got, wanted in zip(joined(answer), expected(oracle, prompts), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


def living() -> int:
    module: Any = sys.modules["probes_processor"]
    gc.collect()
    return len(module.living)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 7},
    {"max_num_batched_tokens": 7, "steps_in_flight": 2},
    {"chunked_prefill": False},
    {"cache.num_blocks": 8, "max_num_batched_tokens": 3, "max_model_len": 28},
    {"prefix_caching": False},
]


@pytest.mark.slow
@pytest.mark.hook("llmk_io_processors")
@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_hidden_states_equal_transformers(folder: Path, site: Path, oracle: Any, settings: dict[str, Any]) -> None:
    with make(folder, **settings) as llm:
        for _ in range(2):
            check_hidden(llm.process("probe", {"prompts": PROMPTS}), oracle)
        last = llm.process("probe", {"prompts": PROMPTS, "returns": "last_hidden"})
        assert [piece["start"] for piece in last["pieces"]] == [len(PROMPTS[p["prompt"]]) - 1 for p in last["pieces"]]
        for piece in last["pieces"]:
            wanted = expected(oracle)[piece["prompt"]][-1:]
            torch.testing.assert_close(torch.tensor(piece["hidden"]), wanted, atol=1e-4, rtol=1e-4)
        assert llm.stats.generated_tokens == 0, "nothing is sampled"
        assert llm.stats.used_blocks == 0
        assert not llm.core.runner.reader._prompts  # type: ignore[attr-defined]


def test_log_probabilities_and_text_are_those_of_generate(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    plain = llm.generate(PROMPTS, params, use_tqdm=False)
    sampling = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}
    told = llm.process("probe", {"prompts": PROMPTS, "returns": "text", "sampling": sampling})["pieces"]
    for at, output in enumerate(plain):
        mine = [piece for piece in told if piece["prompt"] == at]
        assert [piece["start"] for piece in mine] == list(range(len(PROMPTS[at]), len(PROMPTS[at]) + 6))
        assert [token for piece in mine for token in piece["tokens"]] == output.outputs[0].token_ids
        assert "".join(piece["text"] for piece in mine) == output.outputs[0].text
        assert [piece["end"] for piece in mine] == [None] * 5 + ["length"]
    scored = llm.generate(PROMPTS, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    generated = llm.stats.generated_tokens
    told = llm.process("probe", {"prompts": PROMPTS, "returns": "logprobs"})["pieces"]
    assert llm.stats.generated_tokens == generated
    for piece in told:
        wanted = [entry and entry.logprob for entry in scored[piece["prompt"]].prompt_logprobs or ()]
        assert piece["tokens"] == PROMPTS[piece["prompt"]]
        assert piece["logprobs"][0] is None
        assert piece["logprobs"][1:] == pytest.approx(wanted[1:], abs=1e-5)


def test_preemption_repeats_nothing(folder: Path, site: Path, oracle: Any) -> None:
    """A generation takes the blocks of prompts that are being computed; they come back, and go on after what they had
    told."""
    settings = {"cache.num_blocks": 12, "max_num_batched_tokens": 4, "max_model_len": 40}
    with make(folder, **settings) as llm:
        core, prompts = llm.core, [list(range(50 + i, 90 + i - 8)) for i in range(3)]
        run = llm._io.open("probe", {"prompts": prompts}, llm._input_processor, RequestContext("probe"))
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        for sequence in (*llm._input_processor.sequences([7], params, RequestContext("long")), *run.sequences):
            core.add(sequence)
        parts: dict[str, list[Any]] = {}
        for step in range(400):
            for output in core.step().outputs:
                assert not output.error
                if output.hidden is not None:
                    parts.setdefault(output.id, []).append(output.hidden)
            if step in (6, 9, 14):
                running = [one for one in core.scheduler.running if one.request.returns == "hidden"]
                core.scheduler.live.preempt(running[-1])
            if not core.has_work:
                break
        assert core.stats.preemptions >= 3
        for sequence, wanted in zip(run.sequences, expected(oracle, prompts), strict=True):
            told = parts[sequence.id]
            assert [part.start for part in told] == [sum(p.num for p in told[:i]) for i in range(len(told))]
            rows = torch.frombuffer(bytearray(b"".join(part.data for part in told)), dtype=torch.float32)
            torch.testing.assert_close(rows.view(wanted.shape), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"parallel.tensor": 2}, {"parallel.pipeline": 2}], ids=str)
def test_hidden_states_of_a_model_that_is_spread(folder: Path, site: Path, oracle: Any, settings: Any) -> None:
    with make(folder, max_num_batched_tokens=7, **settings) as llm:
        check_hidden(llm.process("probe", {"prompts": PROMPTS}), oracle)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_what_a_stage_raises_fails_its_request_alone(llm: LLM, oracle: Any, stage: str) -> None:
    with pytest.raises(PluginError, match=rf"probes\.probe of probes 1\.0 failed: ValueError: no luck in {stage}"):
        llm.process("probe", {"prompts": PROMPTS, "fail": {stage: "plugin"}})
    with pytest.raises(RequestError, match=f"bad in {stage}") as caught:
        llm.process("probe", {"prompts": PROMPTS, "fail": {stage: "client"}})
    assert caught.value.param == "fail"
    del caught
    assert not llm.core.has_work
    assert living() == 0
    check_hidden(llm.process("probe", {"prompts": PROMPTS}), oracle)
    assert living() == 0


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ({"prompts": []}, PluginError, "no prompt"),
        ({"prompts": [[5], [10**6]]}, RequestError, "token 1000000"),
        ({"prompts": [[]]}, RequestError, "no tokens"),
        ({"prompts": [list(range(256))]}, RequestError, "context"),
        ({"prompts": [None]}, PluginError, "TypeError"),
        ({"prompts": [["a"]]}, PluginError, "ValueError"),
        ({"prompts": PROMPTS, "returns": "words"}, PluginError, "returns = 'words'"),
        ({"prompts": PROMPTS, "sampling": {"seed": 1}}, PluginError, "sampling is given"),
        ({"prompts": PROMPTS, "returns": "text", "sampling": {"n": 2}}, PluginError, "sampling names n"),
        ({"prompts": PROMPTS, "returns": "text", "sampling": {"seed": "x"}}, PluginError, "ValidationError"),
        ({"prompts": PROMPTS, "returns": "text", "sampling": {"top_p": 2.0}}, RequestError, "top_p must be"),
        ({"prompts": PROMPTS, "fail": {"json": 1}}, PluginError, "Encoding objects of type object"),
    ],
)
def test_what_the_engine_cant_do_is_told(llm: LLM, body: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        llm.process("probe", body)
    if kind is RequestError:
        wanted = "top_p" if "sampling" in body else f"prompts[{len(body['prompts']) - 1}]"
        assert caught.value.param == wanted
    assert not llm.core.has_work


def test_names(llm: LLM) -> None:
    assert llm.process("probes.twin2", {"prompts": [[5]]})["pieces"]
    for name, words in {
        "twin": "several IO processors are called 'twin'",
        "none": r"no IO processor 'none' \(installed: .*probes\.probe",
        "never": r"probes\.never does not serve tiny[0-9]+: .*full moon",
    }.items():
        with pytest.raises(RequestError, match=words):
            llm.process(name, {})
    with pytest.raises(PluginError, match=r"probes_processor:Absent of probes 1\.0, .* can't be loaded"):
        llm.process("absent", {})


@pytest.mark.slow
def test_requests_at_once_dont_mix_and_leave_nothing(folder: Path, site: Path, oracle: Any) -> None:
    asyncio.run(run_at_once(folder, oracle))


async def run_at_once(folder: Path, oracle: Any) -> None:
    settings = {"model.path": str(folder), "model.dtype": "float32", "scheduler.max_num_batched_tokens": 16}
    settings |= {"cache.num_blocks": 64, "scheduler.max_waiting": 10, "scheduler.max_num_seqs": 6}
    engine = await AsyncLLM.start(load(settings, environ={}), in_process=True)
    try:
        bodies = [{"prompts": [[5 + i] * (3 + i)]} for i in range(4)]
        bodies.append({"prompts": PROMPTS, "fail": {"take": "plugin"}})
        work = [engine.process("probe", body, RequestContext(f"r{i}")) for i, body in enumerate(bodies)]
        *answers, failed = await asyncio.gather(*work, return_exceptions=True)
        assert isinstance(failed, PluginError)
        for body, answer in zip(bodies, answers, strict=False):
            assert isinstance(answer, bytes)
            check_hidden(json.loads(answer), oracle, body["prompts"])
        with pytest.raises(RequestError, match="comes to 17 sequences; no more than 16"):
            await engine.process("probe", {"prompts": [[5]] * 17}, RequestContext("many"))
        long = {"prompts": PROMPTS[:1], "returns": "text", "sampling": {"max_tokens": 200, "ignore_eos": True}}
        leaving = asyncio.create_task(engine.process("probe", long, RequestContext("leaving")))
        while not engine.stats.generated_tokens:
            await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        while engine.stats.running:
            await asyncio.sleep(0.01)
        assert engine.stats.generated_tokens < 200
        assert not engine._router._requests
        assert not engine._router._streams
        del failed, answers, work, leaving
        assert living() == 0
    finally:
        await engine.close()


@pytest.mark.slow
def test_over_http(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    with closing(Served(tmp_path / "log", "--port", "0")) as served:
        status, listed = served.get("/v1/io")
        assert status == 200
        found = {entry["id"]: entry for entry in json.loads(listed)["data"]}
        assert found["probes.probe"]["supported"]
        assert found["probes.probe"]["wheel"] == "probes 1.0"
        assert "full moon" in found["probes.never"]["reasons"][0]
        status, answer = served.post("/v1/io/probe", {"prompts": ["a few words", [5, 6]]})
        assert status == 200, answer
        assert len(joined(answer)) == 2
        for body, wanted, code in (
            ({"prompts": [[5], []]}, 400, "invalid_value"),
            ({"prompts": [[5]], "fail": {"open": "client"}}, 400, "invalid_value"),
            ({"prompts": [[5]], "fail": {"answer": "plugin"}}, 500, "plugin_error"),
            ({"prompts": [[5]], "fail": {"json": 1}}, 500, "plugin_error"),
            ([5], 400, "invalid_request_error"),
            ({"prompts": [[5]] * 1025}, 400, "invalid_request_error"),
            ({"prompts": [[5] * 600_000] * 2}, 400, "invalid_request_error"),
            ({"prompts": ["a few words " * 500_000]}, 400, "context_length_exceeded"),
            ({"model": "another", "prompts": [[5]]}, 404, "model_not_found"),
        ):
            status, answer = served.post("/v1/io/probe", body)
            assert (status, answer["error"]["code"]) == (wanted, code), answer
        assert served.post("/v1/io/none", {})[0] == 404
        sampling = {"max_tokens": 2000, "ignore_eos": True}
        with pytest.raises(TimeoutError):
            served.post("/v1/io/probe", {"prompts": [[5]], "returns": "text", "sampling": sampling}, timeout=0.4)
        until(lambda: served.metric("llmk_num_requests_running") == 0, what="the engine went on without a client")
        assert 'path="/v1/io/{name}",status="499"' in served.get("/metrics")[1]
        assert served.post("/v1/io/probe", {"prompts": [[5]]})[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "told"),
    [("loop", "did not return within 2 s (server.plugin_seconds)"), ("end", "exit code 9"), ("exit", "SystemExit")],
)
def test_one_that_misbehaves_over_http_fails_its_request_alone(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, told: str
) -> None:
    """A request of the same processor that is under way is run again; one of another processor isn't held up."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    served = Served(tmp_path / "log", "--port", "0", "--server.plugin-seconds", "2")
    with closing(served), ThreadPoolExecutor() as pool:
        body = {"prompts": [[5, 6, 7], [8]], "returns": "text", "sampling": {"temperature": 0, "max_tokens": 20}}
        wanted = texts(served.post("/v1/io/probe", body))
        assert texts(served.post("/v1/io/probes.twin1", body)) == wanted
        others = [pool.submit(served.post, "/v1/io/probe", {**body, "fail": {"open": "slow"}}) for _ in range(2)]
        bad = pool.submit(served.post, "/v1/io/probe", {**body, "fail": {"take": how}})
        while not bad.done():
            assert texts(served.post("/v1/io/probes.twin1", body, timeout=30)) == wanted
            assert served.get("/health", timeout=10)[0] == 200
        status, answer = bad.result()
        assert (status, answer["error"]["code"]) == (500, "plugin_error")
        assert "probes.probe of probes 1.0" in answer["error"]["message"]
        assert told in answer["error"]["message"]
        assert [texts(other.result()) for other in others] == [wanted] * 2
        assert texts(served.post("/v1/io/probe", body)) == wanted
