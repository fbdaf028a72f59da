"""Prompts with embeddings in place of tokens, through the whole engine: equal to tokens where the embeddings are those
of tokens, and to transformers where they are any."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rerun import Rerun
from safetensors.torch import save
from served import Served
from spread import make, tight
from threaded_ranks import ThreadedRanks

from llmk import LLM, SamplingParams
from llmk.api import RequestError
from llmk.engine import launch
from llmk.engine.device.graphs import StepShape
from llmk_testing.checkpoints import write_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=1)
PARAMS = [
    GREEDY,
    SamplingParams(seed=7, temperature=0.8, top_p=0.9, max_tokens=16, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=16, bad_word_ids=((5,), (17, 4)), min_tokens=3),
    SamplingParams(seed=9, min_p=0.05, n=2, max_tokens=12, ignore_eos=True),
]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-tied": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 24}),
    "granite": (
        "granite",
        {"embedding_multiplier": 12.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    ),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mamba2-biases": ("mamba2", {}),
}


def oracle(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    model.generation_config.eos_token_id = None
    return model


def table(folder: Path) -> torch.Tensor:
    """What a lookup returns: rows of the table, times a scale where the model has one."""
    model = oracle(folder)
    vocab = torch.arange(model.config.vocab_size)
    found: torch.Tensor = model.get_input_embeddings()(vocab).detach()
    return found


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(3, 380) for _ in range(length)] for length in (1, 40, 17, 33)]


def ways(tokens: list[int], rows: torch.Tensor) -> list[Any]:
    """A prompt as embeddings, and as runs of both."""
    cut = len(tokens) // 3
    if not cut:
        return [rows[tokens]]
    around = (rows[tokens[:cut]], tokens[cut:-cut], rows[tokens[-cut:]])
    return [rows[tokens], (tokens[:cut], rows[tokens[cut:]]), around]


def completions(llm: LLM, given: list[Any], params: list[SamplingParams]) -> list[Any]:
    return [[each.token_ids for each in result.outputs] for result in llm.generate(given, params, use_tqdm=False)]


def compare(llm: LLM, rows: torch.Tensor, *, preempted: bool = True) -> None:
    """Prompts of tokens, and the same as embeddings, all at once."""
    expected = completions(llm, prompts(), PARAMS)
    several = [ways(prompt, rows) for prompt in prompts()]
    given = [way for own in several for way in own]
    params = [param for own, param in zip(several, PARAMS, strict=True) for _ in own]
    found = iter(completions(llm, given, params))
    for own, tokens in zip(several, expected, strict=True):
        for _ in own:
            assert next(found) == tokens
    assert llm.stats.preemptions or not preempted


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = make(tmp_path_factory.mktemp("checkpoint"), "qwen3-tied-odd-vocabulary")
    return folder


def test_equals_tokens_chunked_and_preempted(qwen3: Path) -> None:
    rows = table(qwen3)
    with LLM(str(qwen3), **tight(qwen3.name)) as llm:
        compare(llm, rows)
        prompt = prompts()[3]
        (again,) = llm.generate([rows[prompt]], GREEDY, use_tqdm=False)
        (more,) = llm.generate([torch.cat((rows[prompt], rows[[5, 6, 7]]))], GREEDY, use_tqdm=False)
        assert again.prompt_token_ids == [391] * 33
        assert again.num_cached_tokens
        assert more.num_cached_tokens >= 32


def test_recorded_steps_replay_none_of_it(qwen3: Path) -> None:
    """A prompt's last token alone looks like one that decodes."""
    rows, graphs = table(qwen3), Rerun()
    with LLM(str(qwen3), **tight(qwen3.name)) as llm:
        runner: Any = llm.core.runner
        runner.record(graphs, [StepShape(n, n) for n in (1, 4)])
        prompt = prompts()[1][:25]  # chunks of 24
        (expected,) = completions(llm, [prompt], [GREEDY])
        before = graphs.replays
        assert completions(llm, [rows[prompt]], [GREEDY]) == [expected]
        assert graphs.replays - before == GREEDY.max_tokens - 1


def test_tokens_are_penalized_and_embeddings_not(qwen3: Path) -> None:
    rows, prompt = table(qwen3), prompts()[2]
    strong = SamplingParams(temperature=0, max_tokens=8, repetition_penalty=5.0, ignore_eos=True, logprobs=0)
    with LLM(str(qwen3), **tight(qwen3.name)) as llm:
        plain, given, mixed = completions(
            llm, [prompt, rows[prompt], (prompt[:9], rows[prompt[9:]])], [GREEDY, strong, strong]
        )
        assert given[0][0] == plain[0][0]  # nothing is there yet that could be penalized
        assert len(set(given[0])) == 8
        assert not {*mixed[0]} & {*prompt[:9]}


@pytest.mark.parametrize("how", ["speculators.prompt_lookup", "speculators.prompt_lookup_device"])
def test_drafts_are_of_tokens(qwen3: Path, how: str) -> None:
    rows = table(qwen3)
    rng = random.Random(2)
    pattern = [rng.randrange(3, 380) for _ in range(6)]
    prompt = (pattern * 6, rows[pattern * 2], pattern * 2)
    with LLM(str(qwen3), **tight(qwen3.name)) as llm:
        expected = completions(llm, [prompt, (rows[pattern], pattern)], [GREEDY, GREEDY])
    with LLM(str(qwen3), **tight(qwen3.name), **{"speculation.use": how}) as llm:
        assert completions(llm, [prompt, (rows[pattern], pattern)], [GREEDY, GREEDY]) == expected
        assert not llm.stats.speculator_failures


def test_a_model_that_takes_none_says_so(qwen3: Path) -> None:
    with LLM(str(qwen3), **tight(qwen3.name), **{"select.model.use": "models.transformers"}) as llm:
        with pytest.raises(RequestError, match=r"models\.transformers takes token ids alone"):
            llm.generate([torch.zeros(3, 64)], GREEDY, use_tqdm=False)
        assert completions(llm, [[4, 5]], [GREEDY])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_transformers(family: str, tmp_path: Path) -> None:
    model_type, overrides = FAMILIES[family]
    folder = make(tmp_path, family) if not overrides else write_checkpoint(tmp_path / family, model_type, **overrides)
    model = oracle(folder)
    rows = table(folder)
    generator = torch.Generator().manual_seed(3)
    given = [rows[prompt] + torch.randn(len(prompt), 64, generator=generator) * rows.std() for prompt in prompts()]
    with LLM(str(folder), **tight(family)) as llm:
        found = llm.generate(given, GREEDY, use_tqdm=False)
        compare(llm, rows, preempted=False)
    for embeddings, result in zip(given, found, strict=True):
        out = model.generate(
            inputs_embeds=embeddings[None], attention_mask=torch.ones(1, len(embeddings), dtype=torch.int64),
            max_new_tokens=16, do_sample=False, pad_token_id=0,
        )  # fmt: skip
        assert result.outputs[0].token_ids == out[0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 3), (2, 2)])
def test_ranks(qwen3: Path, tensor: int, pipeline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    with LLM(str(qwen3), **tight(qwen3.name), parallel={"tensor": tensor, "pipeline": pipeline}) as llm:
        compare(llm, table(qwen3))


@pytest.fixture(scope="module")
def server(qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With a limit that a small prompt exceeds."""
    log = tmp_path_factory.mktemp("server") / "log"
    args = [str(qwen3), "--port", "0", "--model.dtype", "float32", "--limits.prompt-embeds-bytes", "30000"]
    served = Served(log, *args)
    yield served
    served.close()


def sent(rows: torch.Tensor) -> str:
    return base64.b64encode(save({"prompt": rows})).decode()


@pytest.mark.slow
def test_served(server: Served, qwen3: Path) -> None:
    rows, body = table(qwen3), {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    status, expected = server.post("/v1/completions", {**body, "prompt": prompts()[2:]})
    assert status == 200
    given = {**body, "prompt": "", "prompt_embeds": [sent(rows[prompt]) for prompt in prompts()[2:]]}
    status, found = server.post("/v1/completions", given)
    assert status == 200
    assert [each["text"] for each in found["choices"]] == [each["text"] for each in expected["choices"]]
    assert found["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"] == 50
    killed = server.post("/v1/completions", {**body, "prompt_embeds": sent(rows[prompts()[2]]).replace("A", "!", 1)})
    assert killed[0] == 400
    assert "is not base64" in killed[1]["error"]["message"]
    too_many = {**body, "n": 3, "prompt_embeds": sent(rows[prompts()[1]])}
    status, error = server.post("/v1/completions", too_many)
    assert status == 400
    assert "limits.prompt_embeds_bytes" in error["error"]["message"]
