"""The engine with the JAX executor generates the CPU platform's tokens, and refuses by name what it can't do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmk.api import RequestError, SelectionError
from llmk.engine.llm import LLM
from llmk.engine.wire.sampling_params import SamplingParams
from llmk_testing.checkpoints import write_checkpoint

pytest.importorskip("jax", reason="JAX is not installed: pip install 'llmk-backends-tpu[jax]'")

LIMITS = {
    "model.dtype": "float32",
    "model.max_model_len": 160,
    "scheduler.max_num_seqs": 4,
    "scheduler.max_num_batched_tokens": 64,
}
"""Prompts of 90 tokens are computed in chunks."""
BLOCKS = 16
"""Of 16 tokens: not enough for four requests with their outputs."""
FEW = 11
"""Not enough for the first four, however long steps take."""
TPU = {"platform.use": "tpu", "plugin.tpu.emulate": True}
CPU = {"platform.use": "cpu"}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 32},
    "gemma2": {"head_dim": 16, "sliding_window": 40, "attn_logit_softcapping": 2.0},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    "demo": {},
}


def prompts() -> list[list[int]]:
    """Four that one step computes, and that need three blocks each in the end; then some that share their first 40
    tokens, and some that are computed in chunks."""
    draw = random.Random(5)
    together = [draw.choices(range(3, 350), k=15) for _ in range(4)]
    shared = draw.choices(range(3, 350), k=40)
    own = [draw.choices(range(3, 350), k=count) for count in (50, 3, 90, 1, 50, 17)]
    return [*together, *([*shared, *rest] if number % 2 == 0 else rest for number, rest in enumerate(own))]


def engine(folder: str, settings: dict[str, Any]) -> LLM:
    return LLM(folder, **{**LIMITS, **settings})


def tokens(llm: LLM, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts(), params, use_tqdm=False)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("tpu"), "llama"))


@pytest.fixture(scope="module")
def tpu(checkpoint: str) -> Iterator[LLM]:
    with engine(checkpoint, TPU | {"cache.num_blocks": BLOCKS}) as llm:
        yield llm


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODELS)
def test_tokens_are_those_of_the_cpu(model_type: str, tmp_path: Path) -> None:
    """With batches, prefix caching, prompts in chunks and preemption."""
    own = MODELS[model_type]
    blocks = FEW if model_type != "gemma2" else 20  # three groups of layers
    folder = "" if model_type == "demo" else str(write_checkpoint(tmp_path, model_type, **own))
    with engine(folder, CPU) as llm:
        expected = tokens(llm)
    with engine(folder, TPU | {"cache.num_blocks": blocks}) as llm:
        assert tokens(llm) == expected
        assert llm.stats.preemptions
        for _ in range(2):  # the second time, it is in the cache
            (again,) = llm.generate(prompts()[-1:], GREEDY, use_tqdm=False)
            assert again.outputs[0].token_ids == expected[-1]
        assert llm.stats.prefix_hit_tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "tensor"), [("llama", 2), ("gemma2", 2), ("mixtral", 4), ("qwen3_moe", 4), ("demo", 2)]
)
def test_tokens_of_several_devices_are_those_of_one(model_type: str, tensor: int, tmp_path: Path) -> None:
    """Each device has some of the heads, features of experts, and rows of the vocabulary; with four devices and two
    heads of keys, two have the same. Preemption and the prefix cache are the engine's, as with one."""
    own = MODELS[model_type] | {"num_attention_heads": 4, "num_key_value_heads": 2}
    folder = "" if model_type == "demo" else str(write_checkpoint(tmp_path, model_type, **own))
    blocks = FEW if model_type != "gemma2" else 20
    with engine(folder, CPU) as llm:
        expected = tokens(llm)
    with engine(folder, TPU | {"cache.num_blocks": blocks, "parallel.tensor": tensor}) as llm:
        assert tokens(llm) == expected
        assert llm.stats.preemptions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "tensor"), [("llama", 1), ("gemma2", 1), pytest.param("mixtral", 2, id="mixtral-on-two")]
)
def test_tokens_of_interpreted_kernels(model_type: str, tensor: int, tmp_path: Path) -> None:
    """What a TPU computes by kernels in Pallas, named as users name any kernel."""
    folder = str(write_checkpoint(tmp_path, model_type, **MODELS[model_type]))
    kernels = {"select.attention.use": "tpu.ragged_attention_interpreted"}
    if model_type == "mixtral":
        kernels["select.moe.use"] = "tpu.grouped_gemm_interpreted"
    with engine(folder, CPU) as llm:
        expected = tokens(llm)
    with engine(folder, TPU | {"cache.num_blocks": 20, "parallel.tensor": tensor} | kernels) as llm:
        assert tokens(llm) == expected


@pytest.mark.slow
def test_drawn_tokens_are_those_of_the_cpu(checkpoint: str, tpu: LLM) -> None:
    """They are drawn with the same random numbers, by seed and position."""
    params = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=7, max_tokens=24, ignore_eos=True)
    with engine(checkpoint, CPU) as llm:
        expected, greedy = tokens(llm, params), tokens(llm)
    assert expected != greedy
    assert tokens(tpu, params) == expected
    assert tokens(tpu) == greedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("logprobs", 2), ("presence_penalty", 0.5), ("repetition_penalty", 1.1), ("logit_bias", {3: 1.0})],
        *[("min_tokens", 4), ("allowed_token_ids", (3, 4)), ("bad_words", ("core",)), ("prompt_logprobs", 1)],
    ],
)
def test_requests_that_it_can_not_do(name: str, value: Any, tpu: LLM) -> None:
    with pytest.raises(RequestError, match=f"{name} can't be used here: tpu.jax, which runs the model") as caught:
        tpu.generate("x", SamplingParams(**{name: value}), use_tqdm=False)
    assert caught.value.param == name


def test_prompts_that_it_can_not_pool(tpu: LLM) -> None:
    with pytest.raises(RequestError, match="not pooled"):
        tpu.embed(["x"])


@pytest.mark.parametrize(
    ("model_type", "settings", "message"),
    [
        ("llama", {"model.load_format": "dummy"}, "does not know dummy_weights"),
        ("llama", {"engine.deterministic": True}, "does not know deterministic"),
        ("deepseek_v3", {}, "the JAX runtime can't build LatentAttention"),
        ("mamba2", {}, "the JAX runtime can't build ScanMixer"),
    ],
)
def test_models_and_settings_that_it_can_not_do(
    model_type: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    shape = {"num_heads": 4, "head_dim": 32, "n_groups": 2} if model_type == "mamba2" else {}
    folder = write_checkpoint(tmp_path, model_type, **shape)
    with pytest.raises(SelectionError) as caught:
        engine(str(folder), TPU | settings)
    assert message in " ".join(map(str, caught.value.reasons))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [("cpu.linear_torch", "which is not installed"), ("tpu.ragged_attention", "wanted mosaic")],
)
def test_kernels_that_it_does_not_have(kernel: str, message: str, checkpoint: str) -> None:
    """The executor has kernels of its own alone, and compiled ones need a TPU."""
    kind = "linear" if "linear" in kernel else "attention"
    with pytest.raises(SelectionError) as caught:
        engine(checkpoint, TPU | {f"select.{kind}.use": kernel})
    assert message in " ".join(map(str, (caught.value, *caught.value.reasons)))
