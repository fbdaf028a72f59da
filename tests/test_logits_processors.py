"""Logits processors of an installed wheel, through the whole engine: alone, in company, failing, over HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from installed import installed
from msgspec.structs import replace
from served import Served

from llmk import LLM, RequestContext, SamplingParams
from llmk.api import PluginError, RequestError
from llmk_testing.checkpoints import write_checkpoint

SPECS = """
from llmk.api import LogitsProcessorSpec, hookimpl

@hookimpl
def llmk_logits_processors():
    names = {
        "ladder": "Ladder", "fragile": "Fragile", "misshapen": "Misshapen", "missing": "Missing", "quits": "Quits",
        "nan": "NotNumbers", "inf": "Infinite", "none": "Nothing", "formless": "Formless",
    }
    return [
        LogitsProcessorSpec(id=f"rungs.{name}", implementation=f"rungs_processors:{kind}")
        for name, kind in names.items()
    ]
"""
PROCESSORS = """
import torch
from llmk.api import RequestError

class Ladder:
    '''After token t comes t + step, whatever the model thinks.'''
    instances = []
    calls = []

    def __init__(self, batch):
        self.batch, self.steps = batch, {}
        self.instances.append(self)

    def enter(self, slot, request):
        if not isinstance(request.parameters.get("step"), int):
            raise RequestError("step must be a whole number", param="logits_processors.rungs.ladder.step")
        self.steps[slot] = request.parameters["step"]

    def leave(self, slot):
        del self.steps[slot]

    def apply(self, logits, rows):
        self.calls.append(tuple(rows.slots))
        last = self.batch.tokens[rows.index, rows.lengths - 1].long()
        step = torch.tensor([self.steps[slot] for slot in rows.slots])
        out = torch.full_like(logits, -50.0)
        return out.scatter_(1, ((last + step) % self.batch.vocab_size)[:, None], 50.0)

class Fragile(Ladder):
    def apply(self, logits, rows):
        logits.fill_(0.0)
        raise ValueError("rung broken")

class Misshapen(Ladder):
    def apply(self, logits, rows):
        return logits[:, :3]

class Quits(Ladder):
    def apply(self, logits, rows):
        raise SystemExit(3)

class NotNumbers(Ladder):
    value = float("nan")

    def apply(self, logits, rows):
        logits[:, 7] = self.value
        return logits

class Infinite(NotNumbers):
    value = float("inf")

class Nothing(Ladder):
    def apply(self, logits, rows):
        return logits.fill_(float("-inf"))

class Formless:
    def __init__(self, batch):
        pass

    def enter(self, slot, request):
        pass
"""
PROMPTS = [[5, 9], [17], [40, 41, 42]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the path where the wheel is installed."""
    modules = {"rungs_processors": dedent(PROCESSORS)}
    with installed(tmp_path_factory.mktemp("site"), "rungs", dedent(SPECS), **modules) as folder:
        yield folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")


@pytest.fixture(scope="module")
def llm(folder: Path, site: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", **{"cache.num_blocks": 64, "cache.block_size": 4}) as llm:
        yield llm


def climbing(step: int, name: str = "ladder", **options: Any) -> SamplingParams:
    processors = {f"rungs.{name}": {"step": step}}
    return SamplingParams(**{"seed": 1, "max_tokens": 12, "ignore_eos": True, **options}, logits_processors=processors)


def ladder(prompt: list[int], step: int, vocab: int, count: int = 12) -> list[int]:
    return [(prompt[-1] + step * i) % vocab for i in range(1, count + 1)]


@pytest.mark.hook("llmk_logits_processors")
def test_requests_of_one_batch_share_the_processor(llm: LLM) -> None:
    params = [climbing(3), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), climbing(7, temperature=0)]
    plain = llm.generate(PROMPTS[1], params[1], use_tqdm=False)[0].outputs[0].token_ids
    assert "rungs_processors" not in sys.modules, "what no request names is not imported"
    outputs = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    vocab = llm.info.vocab_size
    assert outputs == [ladder(PROMPTS[0], 3, vocab), plain, ladder(PROMPTS[2], 7, vocab)]
    kind = sys.modules["rungs_processors"].Ladder
    assert len(kind.instances) == 1
    assert {len(slots) for slots in kind.calls} == {2}, "one call for all its requests"
    assert not kind.instances[0].steps, "state is dropped when the request ends"
    calls = len(kind.calls)
    llm.generate(PROMPTS[1], params[1], use_tqdm=False)
    assert len(kind.calls) == calls, "nothing is called for a request that names none"


def test_bans_hold_over_a_processor(llm: LLM) -> None:
    (output,) = llm.generate([10], climbing(1, bad_word_ids=((11,),), max_tokens=1), use_tqdm=False)
    assert output.outputs[0].token_ids != [11]


def test_state_comes_back_after_preemption(folder: Path, site: Path) -> None:
    settings = {"cache.num_blocks": 16, "cache.block_size": 4, "max_num_seqs": 8, "max_model_len": 64}
    with LLM(str(folder), dtype="float32", **settings) as llm:
        params = [climbing(i + 1, max_tokens=20) for i in range(8)]
        outputs = llm.generate([[20 + i] for i in range(8)], params, use_tqdm=False)
        assert llm._core is not None
        assert llm._core.stats.preemptions
        for i, output in enumerate(outputs):
            assert output.outputs[0].token_ids == ladder([20 + i], i + 1, llm.info.vocab_size, 20)


def run(llm: LLM, params: dict[str, SamplingParams]) -> dict[str, tuple[list[int], str, str]]:
    """Tokens, error and code of requests that run together."""
    core = llm._core
    assert core is not None
    for name, one in params.items():
        for request in llm._input_processor.sequences(PROMPTS[0], one, RequestContext(name)):
            core.add(request)
    found: dict[str, tuple[list[int], str, str]] = {name: ([], "", "") for name in params}
    while core.has_work:
        for output in core.step().outputs:
            name = output.id.partition("/")[0]
            found[name] = (found[name][0] + output.token_ids, output.error, output.error_code)
    assert core.stats.used_blocks == 0
    return found


def test_a_processor_that_raises_fails_its_own_requests_only(llm: LLM) -> None:
    params = {
        "plain": SamplingParams(seed=1, max_tokens=12, ignore_eos=True),
        "good": climbing(2),
        "one": climbing(1, "fragile"),
        "two": climbing(1, "fragile"),
        "narrow": climbing(1, "misshapen"),
        "absent": climbing(1, "missing"),
        "quits": climbing(1, "quits"),
        "nan": climbing(1, "nan", temperature=0),
        "inf": climbing(1, "inf"),
        "none": climbing(1, "none", top_k=3),
        "formless": climbing(1, "formless"),
        "wrong": SamplingParams(logits_processors={"rungs.ladder": {"step": "two"}}),
    }
    alone = run(llm, {"plain": params["plain"]})["plain"]
    before = llm.stats.broken_logits
    found = run(llm, params)
    assert found["plain"] == alone
    assert llm.stats.broken_logits == before + 3
    assert found["good"][0] == ladder(PROMPTS[0], 2, llm.info.vocab_size)
    for name, words in {
        "one": "rungs.fragile of rungs 1.0 failed: ValueError: rung broken",
        "two": "rungs.fragile of rungs 1.0 failed: ValueError: rung broken",
        "narrow": "rungs.misshapen of rungs 1.0 failed: TypeError: apply returned torch.float32 (1, 3)",
        "absent": "rungs_processors:Missing of rungs 1.0, the implementation of rungs.missing, can't be loaded",
        "quits": "rungs.quits of rungs 1.0 failed: SystemExit: 3",
        "nan": "the logits processor rungs.nan of rungs 1.0 returned logits that are NaN or infinite",
        "inf": "the logits processor rungs.inf of rungs 1.0 returned logits that are NaN or infinite",
        "none": "the logits processor rungs.none of rungs 1.0 left no token that may be sampled",
        "formless": "found no leave(slot); no apply(logits, rows)",
        "wrong": "step must be a whole number",
    }.items():
        tokens, error, code = found[name]
        assert not tokens
        assert words in error
        assert code == (RequestError.code if name == "wrong" else PluginError.code)
    assert not any(instance.steps for instance in sys.modules["rungs_processors"].Ladder.instances)


STAGES = ("sampler.update", "scorer.update", "batch.apply", "batch.lay_out", "model.forward", "sampler._draw")


@pytest.mark.parametrize("stage", STAGES)
def test_wherever_a_step_fails_the_next_ones_find_clean_slots(
    llm: LLM, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that fails is the one that should have told the runner of two requests that left their slots."""
    core = llm._core
    assert core is not None
    monkeypatch.setattr(core.scheduler, "max_issued_tokens", 8)
    plain = SamplingParams(seed=3, max_tokens=8, ignore_eos=True)
    alone = run(llm, {"plain": plain})["plain"]
    for name, prompt, params in (
        ("left", [7, 8], climbing(1)),
        ("scored", [9] * 30, replace(plain, prompt_logprobs=1)),
        ("doomed", [5, 6], plain),
    ):
        for request in llm._input_processor.sequences(prompt, params, RequestContext(name)):
            core.add(request)
        if name == "scored":
            core.step()
            core.abort(["left/0", "scored/0"])
    part, _, name = stage.partition(".")

    def broken(*args: Any) -> Any:
        raise ValueError("no luck")

    bound = {"batch.apply": "_apply", "batch.lay_out": "_lay_out", "model.forward": "_forward"}.get(stage)
    with monkeypatch.context() as patch:
        patch.setattr(*((core.runner, bound) if bound else (getattr(core.runner, part), name)), broken)
        outputs = core.step().outputs
    assert [(output.id, output.error) for output in outputs] == [("doomed/0", "ValueError: no luck")]
    found = run(llm, {"plain": plain, "again": plain, "third": plain})
    assert found == {"plain": alone, "again": alone, "third": alone}
    assert not core.runner.scorer._prompts
    assert not core.runner.sampler._processors.active


def test_unknown_names_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"'rungs.lader' \(installed: .*rungs.ladder") as caught:
        llm.generate("x", SamplingParams(logits_processors={"rungs.lader": {}}), use_tqdm=False)
    assert caught.value.param == "logits_processors"


def test_the_field_at_fault_reaches_the_caller(llm: LLM) -> None:
    with pytest.raises(RequestError, match="step must be a whole number") as caught:
        llm.generate("x", SamplingParams(logits_processors={"rungs.ladder": {"step": "two"}}), use_tqdm=False)
    assert caught.value.param == "logits_processors.rungs.ladder.step"


@pytest.mark.slow
def test_over_http(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    with closing(Served(tmp_path / "log", "--port", "0")) as served:

        def post(**body: Any) -> tuple[int, Any]:
            return served.post("/v1/completions", {"prompt": [5], "max_tokens": 4, **body})

        status, answer = post(logits_processors={"rungs.ladder": {"step": 2}}, logprobs=0, echo=True)
        assert status == 200
        logprobs = answer["choices"][0]["logprobs"]
        assert len(logprobs["tokens"]) == 5
        assert logprobs["token_logprobs"][0] is None
        assert answer["choices"][0]["text"].startswith(logprobs["tokens"][0])
        for processors, wanted in (
            ({"rungs.lad": {}}, 400),
            ({"rungs.ladder": {}}, 400),
            ({"rungs.fragile": {"step": 1}}, 500),
        ):
            status, answer = post(logits_processors=processors)
            assert status == wanted, answer
            assert answer["error"]["message"]
