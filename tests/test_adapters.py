"""Adapters: three of them and none in one batch give what PEFT's merged models give, in every mode of the engine."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft_adapters import NEW_TOKENS, Answers, change_config, greedy, write_adapter
from rerun import Rerun
from safetensors.torch import load_file, save_file
from threaded_ranks import ThreadedRanks

from llmk import LLM, SamplingParams
from llmk.api import PluginError, RequestError
from llmk.engine import launch
from llmk.engine.device.graphs import ADAPTERS, PLAIN, StepShape
from llmk.nn import Builder, Linear
from llmk.nn.adapted_linear import AdaptedLinear
from llmk.reference import adapters as reference
from llmk.tree import GatedMLP
from llmk_testing.checkpoints import write_checkpoint

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
DENSE = {
    "all": {"r": 6, "lora_alpha": 9, "target_modules": [*ATTENTION, "gate_proj", "up_proj", "down_proj"]},
    "some": {"r": 4, "lora_alpha": 16, "use_rslora": True, "target_modules": ["q_proj", "v_proj", "up_proj"]},
    "last": {
        "r": 2, "lora_alpha": 5, "target_modules": r".*layers\.\d+\.(mlp\.down_proj|self_attn\.(k|o)_proj)",
        "rank_pattern": {"down_proj": 7}, "alpha_pattern": {"1.self_attn.k_proj": 11},
    },
}  # fmt: skip
OF_ATTENTION = {
    "all": {"r": 6, "lora_alpha": 9, "target_modules": ATTENTION},
    "some": {"r": 4, "target_modules": ["q_proj"], "exclude_modules": r".*\.1\..*"},
    "last": {"r": 2, "lora_alpha": 5, "target_modules": ["o_proj", "k_proj"], "layers_to_transform": [0, 2]},
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 32}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, dict[str, Any]]]] = {
    "llama": ("llama", {}, DENSE),
    "qwen2": ("qwen2", {}, {**DENSE, "all": {"r": 3, "target_modules": "all-linear"}}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 24}, DENSE),
    "qwen3_moe": ("qwen3_moe", EXPERTS, OF_ATTENTION),
}
ENGINES: dict[str, dict[str, Any]] = {
    "plain": {"cache": {"prefix_caching": False}},
    "kernel-by-kernel": {"engine": {"graphs": False}},
    "chunked-prefix-cache-preempting": {
        "max_model_len": 128,
        "cache": {"prefix_caching": True, "block_size": 4, "num_blocks": 50},
        "scheduler": {"max_num_batched_tokens": 24, "max_num_seqs": 8},
    },
    "deterministic": {"engine": {"deterministic": True}, "scheduler": {"max_num_batched_tokens": 40}},
}
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)


def prompts() -> list[list[int]]:
    """Awkward lengths."""
    rng = random.Random(11)
    return [[rng.randrange(3, 380) for _ in range(length)] for length in (1, 7, 33)]


class Adapted:
    """A checkpoint with three adapters; ``expected`` is by adapter, with "" for none."""

    def __init__(self, folder: Path, model_type: str, overrides: dict[str, Any], adapters: dict[str, Any]) -> None:
        self.base = write_checkpoint(folder / "base", model_type, **overrides)
        self.adapters = {
            name: str(write_adapter(folder / name, self.base, seed=seed, **options))
            for seed, (name, options) in enumerate(adapters.items())
        }

    @cache  # noqa: B019
    def expected(self, name: str) -> Answers:
        return greedy(self.base, Path(self.adapters[name]) if name else None, prompts())

    def check(self, llm: LLM, names: list[str]) -> None:
        """All prompts with each of ``names``, in one batch."""
        jobs = [(number, name) for number in range(len(prompts())) for name in names]
        given = [prompts()[number] for number, _ in jobs]
        results = llm.generate(given, GREEDY, use_tqdm=False, adapter=[name for _, name in jobs])
        for (number, name), result in zip(jobs, results, strict=True):
            tokens, logprobs = self.expected(name)[number]
            assert result.outputs[0].token_ids == tokens, f"{name or 'none'}, prompt {number}"
            found = [entry.logprob for entry in result.outputs[0].logprobs]
            assert found == pytest.approx(logprobs, abs=1e-4)


@pytest.fixture(scope="module", params=MODELS)
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp(request.param), *MODELS[request.param])


@pytest.mark.parametrize(
    "engine", [name if name == "plain" else pytest.param(name, marks=pytest.mark.slow) for name in ENGINES]
)
def test_three_adapters_and_none_in_one_batch(adapted: Adapted, engine: str) -> None:
    first = [adapted.expected(name)[2][1][0] for name in ("", *adapted.adapters)]
    assert all(abs(one - other) > 0.01 for one, other in combinations(first, 2)), "adapters must differ"
    with LLM(str(adapted.base), dtype="float32", adapters=adapted.adapters, **ENGINES[engine]) as llm:
        for names in (["all", "", "some", "last"], [""], ["last"], ["", "all"]):
            adapted.check(llm, names)


LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "q_lora_rank": 28, "kv_lora_rank": 24, "qk_nope_head_dim": 20, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
    "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
}  # fmt: skip
OTHERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "deepseek_v2": (LATENT, ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]),
    "mamba2": ({"num_heads": 4, "head_dim": 32, "n_groups": 2, "state_size": 16, "expand": 2}, ["in_proj"]),
    "mixtral": ({"num_local_experts": 4, "num_experts_per_tok": 2}, ATTENTION),
}


@pytest.mark.parametrize("model_type", OTHERS)
def test_other_layers(model_type: str, tmp_path: Path) -> None:
    """Compressed queries and latent vectors, scans, attention next to experts."""
    overrides, targets = OTHERS[model_type]
    one = Adapted(tmp_path, model_type, overrides, {"all": {"r": 4, "target_modules": targets}})
    with LLM(str(one.base), dtype="float32", adapters=one.adapters) as llm:
        one.check(llm, ["all", ""])


def test_a_packed_layer_may_have_one_adapter(llama: Adapted, tmp_path: Path) -> None:
    """As of models that train it packed: one first matrix for queries, keys and values."""
    apart = write_adapter(tmp_path / "apart", llama.base, seed=5, r=3, target_modules=["q_proj", "k_proj", "v_proj"])
    stored = load_file(apart / "adapter_model.safetensors")
    packed = {}
    for layer in range(3):
        stem = f"base_model.model.model.layers.{layer}.self_attn."
        a = stored[f"{stem}q_proj.lora_A.weight"]
        for name in "kv":
            stored[f"{stem}{name}_proj.lora_A.weight"] = a.clone()
        packed[f"{stem}qkv_proj.lora_A.weight"] = a
        packed[f"{stem}qkv_proj.lora_B.weight"] = torch.cat([stored[f"{stem}{n}_proj.lora_B.weight"] for n in "qkv"])
    save_file(stored, apart / "adapter_model.safetensors", {"format": "pt"})
    whole = shutil.copytree(apart, tmp_path / "whole")
    save_file(packed, whole / "adapter_model.safetensors")
    change_config(whole, target_modules=["qkv_proj"])
    expected = greedy(llama.base, apart, prompts())
    with LLM(str(llama.base), dtype="float32", adapters={"apart": str(apart), "whole": str(whole)}) as llm:
        for name in ("apart", "whole"):
            results = llm.generate(prompts(), GREEDY, use_tqdm=False, adapter=name)
            assert [result.outputs[0].token_ids for result in results] == [tokens for tokens, _ in expected]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("llama"), *MODELS["llama"])


@pytest.fixture(scope="module")
def engine(llama: Adapted) -> Iterator[LLM]:
    with LLM(str(llama.base), dtype="float32", adapters=llama.adapters) as llm:
        yield llm


EVERYBODY = ["all", "", "some", "last"]


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2), (4, 1)])
def test_ranks_cut_adapters_as_they_cut_layers(
    llama: Adapted, tensor: int, pipeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 ranks share 2 heads of keys and values."""
    monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
    parallel = {"tensor": tensor, "pipeline": pipeline}
    with LLM(str(llama.base), dtype="float32", adapters=llama.adapters, parallel=parallel) as llm:
        llama.check(llm, EVERYBODY)


def test_recorded_steps(llama: Adapted) -> None:
    """Steps with adapters replay other recordings than steps without."""
    sizes = [(1, 1), (4, 4), (16, 16), (64, 16)]
    graphs = Rerun()
    with LLM(str(llama.base), dtype="float32", adapters=llama.adapters) as llm:
        runner: Any = llm.core.runner
        runner.record(graphs, [StepShape(*size, variant=each) for size in sizes for each in (PLAIN, ADAPTERS)])
        found: list[frozenset[str]] = []
        decode, find = runner._graphs.decode, runner._graphs.find
        runner._decode = lambda slots, variant: found.append(variant) or decode(slots, variant)
        runner._graphs.find = lambda *size: found.append(size[-1]) or find(*size)
        llama.check(llm, EVERYBODY)
        assert set(found) == {ADAPTERS}
        found.clear()
        llama.check(llm, [""])
        assert set(found) == {PLAIN}
    assert graphs.replays > 10


def test_drafts(llama: Adapted) -> None:
    options = {"speculation": {"use": "prompt_lookup", "num_drafts": 3}}
    with LLM(str(llama.base), dtype="float32", adapters=llama.adapters, **options) as llm:
        llama.check(llm, EVERYBODY)


def test_quantized_layers(llama: Adapted, tmp_path: Path) -> None:
    """What PEFT gives for the weights that the quantized ones stand for."""
    options: dict[str, Any] = {"dtype": "float32", "model.quantization": "fp8"}
    base = shutil.copytree(llama.base, tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    with LLM(str(llama.base), **options) as llm:
        layers = [layer for layer in llm.core.runner.build.layers if isinstance(layer, Linear)]
        for layer in layers:
            whole = layer(torch.eye(layer.in_features)).T
            for name, rows in zip(layer._prefixes, whole.split(layer._rows), strict=True):
                assert not torch.equal(weights[f"{name}.weight"], rows)
                weights[f"{name}.weight"] = rows.contiguous()
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    with LLM(str(llama.base), **options, adapters=llama.adapters) as llm:
        for name in EVERYBODY:
            results = llm.generate(prompts(), GREEDY, use_tqdm=False, adapter=name)
            expected = greedy(base, Path(llama.adapters[name]) if name else None, prompts())
            for result, (tokens, logprobs) in zip(results, expected, strict=True):
                assert result.outputs[0].token_ids == tokens
                found = [entry.logprob for entry in result.outputs[0].logprobs]
                assert found == pytest.approx(logprobs, abs=1e-3)


def test_adapters_share_no_prefix(llama: Adapted) -> None:
    params = SamplingParams(temperature=0, max_tokens=1)
    with LLM(str(llama.base), dtype="float32", adapters=llama.adapters, **{"cache.block_size": 4}) as llm:

        def cached(adapter: str) -> int:
            return llm.generate([prompts()[2]], params, use_tqdm=False, adapter=adapter)[0].num_cached_tokens

        assert [cached(name) for name in ("", "all", "some", "", "all", "some")] == [0, 0, 0, 32, 32, 32]


def test_nothing_is_paid_without_adapters(llama: Adapted, engine: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """None configured: the same plan, and no tensor. None in a step: the op is not run."""
    with LLM(str(llama.base), dtype="float32") as llm:
        runner: Any = llm.core.runner
        assert runner.batch.adapters is None
        choices = llm.boot.plan.choices
        assert not [choice.site for choice in choices if "adapters" in choice.site]
        assert {choice.op for choice in choices} >= {"add_rms_norm_linear", "add_rms_norm_gate_up_silu"}
    calls: list[int] = []
    add = reference._add
    monkeypatch.setattr(reference, "_add", lambda *args: calls.append(1) or add(*args))
    llama.check(engine, [""])
    assert not calls
    llama.check(engine, ["last"])
    assert calls


def test_layers_without_adapters_stay_fused(llama: Adapted) -> None:
    with LLM(str(llama.base), dtype="float32", adapters={"some": llama.adapters["some"]}) as llm:
        sites = {choice.site: choice.op for choice in llm.boot.plan.choices}
    assert sites["qkv.adapters"] == sites["gate_up.adapters"] == "add_adapters"
    assert sites["gate_up_silu"] == "silu_and_mul"
    assert "out.adapters" not in sites
    assert "norm_qkv" not in sites


def test_no_op_may_take_a_layer_with_adapters(engine: LLM) -> None:
    layers = engine.core.runner.build.layers
    layer = next(layer for layer in layers if isinstance(layer, AdaptedLinear))
    with pytest.raises(PluginError, match="GatedMLP at 'mlp' computes a linear layer that has adapters"):
        Builder.kernel(SimpleNamespace(), GatedMLP.of("mlp", 8, 8), layer)


def test_an_adapter_that_there_is_not(engine: LLM) -> None:
    with pytest.raises(RequestError, match=r"no adapter 'other' \(configured: all, some, last\)"):
        engine.generate(["a"], adapter="other")
    with pytest.raises(RequestError, match="2 prompts and 1 adapters"):
        engine.generate(["a", "b"], adapter=["all"])
