"""The synchronous front end over the paged device, and how its settings are named."""

from __future__ import annotations

from types import SimpleNamespace

import fakes
import pytest
from paged_device import run_alone

import llmk.engine.launch
import llmk.planning.boot
from llmk import LLM, SamplingParams
from llmk.api import ConfigError, LlmkError, RequestError
from llmk.config import load
from llmk.engine.llm import dotted

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools[0].name }}{% endif %}{{ extra }}"


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes an LLM whose engine is the paged device. Settings are read and checked as always."""
    folder = fakes.write_checkpoint(
        tmp_path / "model",
        tokenizer_config={"eos_token": "</s>", "chat_template": TEMPLATE},
        generation_config={"do_sample": False},
    )
    monkeypatch.chdir(tmp_path)

    def boot(settings):
        checkpoint = fakes.read_checkpoint(settings.config.model.path)
        return SimpleNamespace(settings=settings, checkpoint=checkpoint, adapters=())

    def make(**options):
        monkeypatch.setattr(llmk.planning.boot, "boot", boot)
        monkeypatch.setattr(llmk.engine.launch, "build_core", lambda boot: fakes.build(options))
        return LLM(str(folder), seed=3)

    return make


def test_outputs_stand_in_the_order_of_prompts(make):
    with make(num_blocks=64, max_num_seqs=3) as llm:
        prompts = [[number, 7] for number in range(9)]
        params = [SamplingParams(max_tokens=number + 1, seed=0) for number in range(9)]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        for prompt, sp, output in zip(prompts, params, outputs, strict=True):
            (completion,) = output.outputs
            assert output.prompt is None
            assert output.prompt_token_ids == prompt
            assert completion.token_ids == run_alone(prompt, sp.max_tokens, limit=64, stops=llm.tokenizer.eos_token_ids)
            assert completion.finish_reason in ("length", "stop")
        assert llm._core.stats.used_blocks == 0


def test_one_prompt_needs_no_list(make):
    with make() as llm:
        for prompt in ("The lazy dog", llm.tokenizer.encode("The lazy dog")):
            (output,) = llm.generate(prompt, SamplingParams(max_tokens=3, n=2, logprobs=0), use_tqdm=False)
            assert output.prompt_token_ids == llm.tokenizer.encode("The lazy dog")
            assert [c.index for c in output.outputs] == [0, 1]
            assert all(len(c.logprobs) == len(c.token_ids) == 3 for c in output.outputs)
        assert llm.generate([], use_tqdm=False) == []
        assert output.num_cached_tokens > 0


def test_defaults_are_the_checkpoints(make):
    with make() as llm:
        assert llm.default_params.greedy


def test_progress_is_shown_unless_turned_off(make, capsys):
    with make() as llm:
        llm.generate([[1], [2]], SamplingParams(max_tokens=2))
        assert "2/2" in capsys.readouterr().err
        llm.generate([[1], [2]], SamplingParams(max_tokens=2), use_tqdm=False)
        assert capsys.readouterr().err == ""


def test_conversations(make):
    with make() as llm:
        params = SamplingParams(max_tokens=1)
        hi, yo = [{"role": "user", "content": "hi"}], [{"role": "user", "content": "yo"}]
        (output,) = llm.chat(hi, params, use_tqdm=False, tools=[{"name": "f"}], extra="!")
        assert output.prompt == "hif!"
        assert [o.prompt for o in llm.chat([hi, yo], params, use_tqdm=False)] == ["hi", "yo"]


def test_a_stop_string_ends_a_completion(make):
    with make() as llm:
        params = SamplingParams(max_tokens=40, seed=0, ignore_eos=True)
        whole = llm.generate([1], params, use_tqdm=False)[0].outputs[0].text
        stop = whole[8:11]
        params = SamplingParams(max_tokens=40, seed=0, ignore_eos=True, stop=(stop,))
        (completion,) = llm.generate([1], params, use_tqdm=False)[0].outputs
        assert completion.text == whole[: whole.index(stop)]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
        assert llm._core.stats.used_blocks == 0


def test_errors_leave_the_engine_empty(make):
    with make(trouble="raise") as llm:
        with pytest.raises(LlmkError, match="ValueError: the step is broken"):
            llm.generate([[1], [2]], use_tqdm=False)
        assert not llm._core.has_work
        with pytest.raises(RequestError, match="2 prompts and 1 sampling"):
            llm.generate([[1], [2]], [SamplingParams()])
    with pytest.raises(LlmkError, match="was closed"):
        llm.generate([[1]], use_tqdm=False)


def test_settings_by_section_path_and_name():
    settings = {
        "dtype": "float32",
        "max_num_seqs": 8,
        "cache": {"num_blocks": 64},
        "cache.block_size": 4,
        "select": {"attention": {"use": "x.y"}},
    }
    flags = dict(dotted(settings))
    assert flags == {
        "model.dtype": "float32",
        "scheduler.max_num_seqs": 8,
        "cache.num_blocks": 64,
        "cache.block_size": 4,
        "select.attention.use": "x.y",
    }
    config = load(flags, environ={}).config
    assert (config.cache.num_blocks, config.select.attention.use) == (64, "x.y")


def test_an_unknown_setting_is_refused():
    with pytest.raises(ConfigError, match="num_block"):
        load(dict(dotted({"num_block": 3})), environ={})
