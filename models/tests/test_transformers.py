"""The transformers backend: equal logits on the paged cache, and clear refusals where it can't be right."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llmk import LLM, SamplingParams
from llmk.api import CheckpointError, SelectionError, UnknownArchitecture, UnsupportedOption
from llmk.config import load
from llmk.planning.boot import boot
from llmk_models.specs import llmk_models
from llmk_models.transformers_examples import TRANSFORMERS
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.comparing import relative_error
from llmk_testing.model import ModelHarness
from llmk_testing.model_example import transformers_logits
from llmk_testing.suites import cases

SERVE_SO = {"select.model.use": "models.transformers", "cache.block_size": 8}
PROMPT = random.Random(5).choices(range(3, 380), k=60)


SPEC = next(spec for spec in llmk_models() if spec.id == "models.transformers")


@pytest.mark.slow
@pytest.mark.parametrize("name", [example.name for example in TRANSFORMERS])
def test_conforms(name: str) -> None:
    """But for what its modules can't: not all are cut, and they multiply as torch sees fit."""
    own = [case for case in cases("model", SPEC, Bench.open("cpu")) if case.name.startswith(f"{name}: ")]
    results = [Result.of(case) for case in own]
    assert [result for result in results if result.outcome == "failed"] == []
    cut = [result for result in results if "tensor parallel" in result.name and result.outcome == "passed"]
    only_first = name == TRANSFORMERS[0].name  # has the case of options, which its oracle can't be written with
    assert [result.outcome for result in results].count("skipped") == 11 + only_first - len(cut)


def test_serves_unclaimed_architectures(make_checkpoint: Callable[..., Path]) -> None:
    harness = ModelHarness.of(make_checkpoint("seed_oss"))
    assert harness.boot.plan.model == "models.transformers"
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(harness.boot.checkpoint.path)
    assert harness.boot.facts.num_parameters == sum(parameter.numel() for parameter in model.parameters())


def test_is_as_exact_as_transformers_in_bf16(make_checkpoint: Callable[..., Path]) -> None:
    checkpoint = make_checkpoint("seed_oss", dtype="bfloat16")
    exact = transformers_logits(checkpoint, PROMPT, torch.float32)
    theirs = relative_error(transformers_logits(checkpoint, PROMPT, torch.bfloat16), exact)
    ours = relative_error(ModelHarness.of(checkpoint, {"model.dtype": "bfloat16"}).step([("a", PROMPT)])[0], exact)
    assert ours < 1.25 * theirs


def test_dummy_weights_come_from_the_seed(make_checkpoint: Callable[..., Path]) -> None:
    checkpoint = make_checkpoint("seed_oss")
    logits = [
        ModelHarness.of(checkpoint, {"model.load_format": "dummy", "engine.seed": seed}).step([("a", PROMPT[:4])])[0]
        for seed in (1, 1, 2)
    ]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


@pytest.mark.parametrize(
    ("model_type", "overrides", "reason"),
    [
        ("mamba", {}, "it keeps a recurrent state"),
        ("qwen3_next", {}, "it has layers of linear attention, which has a recurrent state"),
        ("deepseek_v32", {}, "indexed attention"),
        ("falcon", {"alibi": True}, "ALiBi"),
    ],
)
def test_refuses_before_loading(
    model_type: str, overrides: dict[str, Any], reason: str, make_checkpoint: Callable[..., Path]
) -> None:
    with pytest.raises(UnknownArchitecture, match=reason):
        ModelHarness.of(make_checkpoint(model_type, **overrides), SERVE_SO)


_LATENT = {"kv_lora_rank": 24, "q_lora_rank": 28, "qk_nope_head_dim": 20, "qk_rope_head_dim": 8, "v_head_dim": 12}


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [
        ("opt", {"ffn_dim": 112, "word_embed_proj_dim": 64, "num_key_value_heads": 4, "first_k_dense_replace": 1}),
        ("gpt_bigcode", {}),
        ("granite_swa", {"sliding_window": 24, "head_dim": 16}),
        ("minicpm3", {**_LATENT, "num_key_value_heads": 4, "first_k_dense_replace": 1}),
    ],
    ids=["scale", "one key head", "sinks", "latent"],
)
def test_what_the_config_does_not_say(
    model_type: str, overrides: dict[str, Any], make_checkpoint: Callable[..., Path]
) -> None:
    """OPT scales queries itself; GPT-BigCode has one key head; all heads of Granite SWA have sinks; the modules of
    latent attention hand on keys and values of all heads, of unlike widths."""
    folder = make_checkpoint(model_type, **overrides)
    harness = ModelHarness.of(folder, SERVE_SO)
    found = torch.cat([harness.step([("a", PROMPT[:41])])[0], harness.step([("a", PROMPT[41:])])[0]])
    assert relative_error(found, transformers_logits(folder, PROMPT, torch.float32)) < 2e-5


def test_refuses_what_bypasses_the_attention_interface(make_checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match="bypasses the attention interface"):
        ModelHarness.of(make_checkpoint("falcon"), SERVE_SO)


def test_refuses_attention_that_differs_from_the_config(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """The modules of another class have sinks, under no key that says so."""
    checkpoint = make_checkpoint("jetmoe", kv_channels=16, num_experts_per_tok=3)
    with pytest.raises(CheckpointError, match=r"layer 0 .*: query heads 6, not \d"):
        ModelHarness.of(checkpoint, SERVE_SO)


@pytest.mark.parametrize("model_type", ["seed_oss", "phi3", "llama"])
def test_longrope_has_short_factors_by_default_and_long_ones_where_more_is_served(
    model_type: str, make_checkpoint: Callable[..., Path]
) -> None:
    """Here and in the native families, a text's result is that of transformers for the text alone, with any other
    requests."""
    factors = [1.0 + 0.1 * i for i in range(8)]
    rope = {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": [2 * factor for factor in factors],
        "original_max_position_embeddings": 128,
        "rope_theta": 10000.0,
    }
    own = {"head_dim": 16} if model_type == "seed_oss" else {}
    checkpoint = make_checkpoint(model_type, rope_parameters=rope, original_max_position_embeddings=128, **own)
    harness = ModelHarness.of(checkpoint)
    assert harness.boot.facts.max_model_len == 128
    assert any("LongRoPE" in notice for notice in harness.boot.registry.notices)
    expected = transformers_logits(checkpoint, PROMPT, torch.float32)
    assert relative_error(harness.step([("whole", PROMPT)])[0], expected) < 2e-5
    harness = ModelHarness.of(checkpoint, {"model.max_model_len": 256})
    long = PROMPT * 3
    short_with_long, found = harness.step([("short", PROMPT), ("long", long)])
    assert relative_error(found, transformers_logits(checkpoint, long, torch.float32)) < 2e-5
    alone = ModelHarness.of(checkpoint, {"model.max_model_len": 256}).step([("short", PROMPT)])[0]
    assert relative_error(short_with_long, alone) < 2e-5
    assert relative_error(alone, expected) > 1e-3


def test_dynamic_rope_is_not_updated_in_recorded_steps(make_checkpoint: Callable[..., Path]) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    checkpoint = make_checkpoint("seed_oss", rope_parameters=rope, head_dim=16)
    expected = transformers_logits(checkpoint, PROMPT, torch.float32)
    assert relative_error(ModelHarness.of(checkpoint, SERVE_SO).step([("whole", PROMPT)])[0], expected) < 2e-5
    with LLM(str(checkpoint), dtype="float32", select={"model": {"use": "models.transformers"}}) as llm:
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    assert output.outputs[0].token_ids[0] == expected[-1].argmax()


def test_an_architecture_that_transformers_lacks(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(make_checkpoint("seed_oss"), tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": ["NovelForCausalLM"], "model_type": "novel"})
    )
    with pytest.raises(CheckpointError, match="no implementation of NovelForCausalLM"):
        ModelHarness.of(folder)


def test_missing_tensors_are_named(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(make_checkpoint("seed_oss"), tmp_path / "copy")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 tensors: model\.norm\.weight"):
        ModelHarness.of(folder)


def test_is_refused_where_results_must_not_depend_on_the_batch(make_checkpoint: Callable[..., Path]) -> None:
    """Its modules multiply as torch sees fit, by no kernel of the plan."""
    for settings in ({}, SERVE_SO):
        with pytest.raises(SelectionError, match=r"models\.transformers") as caught:
            ModelHarness.of(make_checkpoint("seed_oss"), {**settings, "engine.deterministic": True})
        assert [reason.code for reason in caught.value.reasons] == ["not_deterministic"]


def test_an_option_that_the_native_family_lacks_is_served_and_said(make_checkpoint: Callable[..., Path]) -> None:
    """Unless the native one is named, or transformers can't either."""
    folder = make_checkpoint("llama", hidden_act="gelu_new")
    planned = boot(load({"model.path": str(folder)}), verify=False)
    assert planned.plan.model == "models.transformers"
    (notice,) = (each for each in planned.plan.warnings if "gelu_new" in each)
    assert "models.transformers serves the model" in notice
    with pytest.raises(UnsupportedOption, match="gelu_new"):
        boot(load({"model.path": str(folder), "select.model.use": "models.dense"}), verify=False)


def test_an_option_that_nothing_serves_is_refused_with_both_reasons(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(
        make_checkpoint("mamba2", num_heads=8, head_dim=16, n_groups=1, state_size=24), tmp_path / "m"
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu_new"}))
    with pytest.raises(UnsupportedOption, match="gelu_new") as refused:
        boot(load({"model.path": str(folder)}), verify=False)
    assert "models.transformers can't serve it either" in refused.value.hint


EXPERTS = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}


def experts_of(harness: ModelHarness) -> list[bool]:
    """Of each layer's experts, whether they are llmk's."""
    from llmk_models.transformers_moe import ExpertsModule, is_experts

    modules = harness.model._decoder.modules()
    return [isinstance(each, ExpertsModule) for each in modules if isinstance(each, ExpertsModule) or is_experts(each)]


@pytest.mark.parametrize(
    ("model_type", "own"),
    [
        ("afmoe", {"num_dense_layers": 1}),
        ("mixtral", {"num_experts_per_tok": 1}),
        ("granitemoe_swa", {}),
        ("qwen2_moe", {"hidden_act": "gelu_pytorch_tanh", "norm_topk_prob": False, "decoder_sparse_step": 2}),
        (
            "deepseek_v3",
            {
                "n_routed_experts": 8,
                "n_group": 2,
                "topk_group": 1,
                "num_key_value_heads": 4,
                "first_k_dense_replace": 1,
            },
        ),
    ],
)
def test_experts_are_computed_by_llmk(
    model_type: str, own: dict[str, Any], make_checkpoint: Callable[..., Path]
) -> None:
    checkpoint = make_checkpoint(model_type, **EXPERTS | own)
    harness = ModelHarness.of(checkpoint, SERVE_SO)
    replaced = experts_of(harness)
    assert replaced == [True] * len(replaced)
    assert sum(site.count for site in harness.boot.facts.moe) == len(replaced) > 0
    exact = transformers_logits(checkpoint, PROMPT, torch.float32)
    assert relative_error(harness.step([("a", PROMPT)])[0], exact) < 2e-5


def test_experts_whose_number_the_router_does_not_take_from_the_config_stay(
    make_checkpoint: Callable[..., Path],
) -> None:
    checkpoint = make_checkpoint("phimoe", **EXPERTS)
    harness = ModelHarness.of(checkpoint, SERVE_SO)
    assert experts_of(harness) == [False] * 3, "its router takes two experts, no matter what the config says"
    exact = transformers_logits(checkpoint, PROMPT, torch.float32)
    assert relative_error(harness.step([("a", PROMPT)])[0], exact) < 2e-5
    with pytest.raises(CheckpointError, match=r"take 2 experts of .* for each token, not 3"):
        ModelHarness.of(checkpoint, SERVE_SO | {"model.quantization": "int8"})


def test_experts_with_biases_stay(make_checkpoint: Callable[..., Path]) -> None:
    sizes = {"head_dim": 16, "num_local_experts": 4, "sliding_window": 24}
    harness = ModelHarness.of(make_checkpoint("gpt_oss", **sizes), SERVE_SO)
    assert experts_of(harness) == [False] * 3


def test_experts_are_quantized(make_checkpoint: Callable[..., Path]) -> None:
    checkpoint = make_checkpoint("afmoe", num_dense_layers=1, **EXPERTS)
    exact = transformers_logits(checkpoint, PROMPT, torch.float32)
    harness = ModelHarness.of(checkpoint, SERVE_SO | {"model.quantization": "int8"})
    assert all(experts_of(harness))
    (site,) = harness.boot.facts.moe
    assert site.weight_format == "int8_channel"
    error = relative_error(harness.step([("a", PROMPT)])[0], exact)
    assert 1e-4 < error < 0.1
