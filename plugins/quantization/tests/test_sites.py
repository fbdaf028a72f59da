"""Checkpoints whose modules have different formats match plain ones of the same numbers, whole and sharded; lists that
can't be followed are refused with the modules that they concern."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored import FP8, stored
from test_stored import answers
from threaded_ranks import ThreadedRanks
from torch import Tensor
from transformers.quantizers.quantizers_utils import should_convert_module

from llmk.api import Checkpoint, CheckpointError, LinearQuery, MoEQuery, Plan
from llmk.engine import launch
from llmk.planning import formats
from llmk.reference.quantize import quantize_fp8_block, quantize_fp8_channel, quantize_int8_channel
from llmk_models.examples import LATENT
from llmk_quantization.examples import MODELS as DENSE_AND_EXPERTS
from llmk_quantization.examples import SIZES, compressed, multiplied, packed_int4, unpacked_int4
from llmk_quantization.modules import group_finder, named, unconverted, unmatched
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.model import ModelHarness

WHOLE_BLOCKS = LATENT | {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256}
WHOLE_BLOCKS |= {"q_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64}
WHOLE_BLOCKS |= {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "num_hidden_layers": 2}
"""Sizes with which packed and sharded projections consist of whole blocks of fp8."""
MODELS = {
    **DENSE_AND_EXPERTS,
    "latent": ("deepseek_v2", {**LATENT, "num_hidden_layers": 2}),
    "published fp8": ("deepseek_v3", WHOLE_BLOCKS),
}
Scheme = tuple[Callable[[Tensor], dict[str, Tensor]], Callable[[dict[str, Tensor]], Tensor]]
"""Quantizes a weight to the stored tensors; dequantizes these."""


def scaled(quantize: Callable[[Tensor], dict[str, Tensor]], scale: str = "weight_scale") -> Scheme:
    def store(weight: Tensor) -> dict[str, Tensor]:
        parts = quantize(weight)
        return {"weight": parts["weight"], scale: parts["weight_scale"]}

    return store, lambda parts: multiplied(parts["weight"], parts[scale])


BLOCK = scaled(quantize_fp8_block, "weight_scale_inv")
CHANNEL, INT8 = scaled(quantize_fp8_channel), scaled(quantize_int8_channel)
INT4: Scheme = (partial(packed_int4, symmetric=False), unpacked_int4)
FP8_BLOCK = FP8 | {"weight_block_size": [128, 128]}


def group(*targets: str, stored: str = "float-quantized", **weights: Any) -> dict[str, Any]:
    (only,) = compressed(stored, **weights)["config_groups"].values()
    return only | {"targets": list(targets), "format": stored}


def groups(*each: dict[str, Any], ignore: tuple[str, ...] = ()) -> dict[str, Any]:
    named = {f"group_{i}": one for i, one in enumerate(each)}
    method = {"quant_method": "compressed-tensors", "format": "mixed-precision"}
    return {**method, "config_groups": named, "ignore": ["lm_head", *ignore]}


def fp8_group(*targets: str) -> dict[str, Any]:
    return group(*targets, strategy="channel")


def int4_group(*targets: str) -> dict[str, Any]:
    options: dict[str, Any] = {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}
    return group(*targets, stored="pack-quantized", type="int", **options)


def int8_group(*targets: str) -> dict[str, Any]:
    return group(*targets, stored="int-quantized", type="int", strategy="channel")


@dataclass(frozen=True)
class Mix:
    """A ``quantization_config``, what its lists mean (the first scheme whose regular expression matches a module; none:
    plain), and the formats of sites that follow."""

    config: Mapping[str, Any]
    schemes: tuple[tuple[str, Scheme | None], ...]
    formats: Mapping[str, str]
    model: str = "dense"


def dense(**changes: str) -> dict[str, str]:
    return {"qkv": "plain", "out": "plain", "gate_up": "plain", "down": "plain", "lm_head": "plain"} | changes


BY_LAYER = {"gate_up.fp8_block": "fp8_block", "gate_up.plain": "plain"}
MIXES = {
    "fp8, names and parts of names": Mix(
        FP8_BLOCK
        | {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp", "model.layers.1.self_attn.o_proj", "down_proj"]},
        ((r"layers\.0\.mlp|layers\.1\.self_attn\.o_proj|down_proj", None), ("", BLOCK)),
        {"qkv": "fp8_block", "out.fp8_block": "fp8_block", "out.plain": "plain", "down": "plain", "lm_head": "plain"}
        | BY_LAYER,
    ),
    "fp8, regular expressions": Mix(
        FP8_BLOCK
        | {"modules_to_not_convert": [r"model\.layers\.\d+\.self_attn", r"model.layers.[1-3].mlp.(gate|up)_proj"]},
        ((r"self_attn|layers\.1\.mlp\.(gate|up)_proj", None), ("", BLOCK)),
        {"qkv": "plain", "out": "plain", "down": "fp8_block", "lm_head": "plain"} | BY_LAYER,
    ),
    "compressed, ignored": Mix(
        groups(fp8_group("Linear"), ignore=("re:.*self_attn.*", "model.layers.1.mlp.down_proj")),
        ((r"self_attn|layers\.1\.mlp\.down_proj", None), ("", CHANNEL)),
        {"qkv": "plain", "out": "plain", "gate_up": "fp8_channel", "lm_head": "plain"}
        | {"down.fp8_channel": "fp8_channel", "down.plain": "plain"},
    ),
    "compressed, fp8 attention and int4 MLP": Mix(
        groups(
            fp8_group("re:.*self_attn.*"),
            int4_group("Linear"),
            int8_group("model.layers.0.mlp.down_proj"),
            ignore=("re:.*layers.1.mlp.(gate|up)_proj",),
        ),
        (
            ("self_attn", CHANNEL),
            (r"layers\.0\.mlp\.down_proj", INT8),
            (r"layers\.1\.mlp\.(gate|up)_proj", None),
            ("", INT4),
        ),
        {"qkv": "fp8_channel", "out": "fp8_channel", "lm_head": "plain"}
        | {"gate_up.int4_group": "int4_group", "gate_up.plain": "plain"}
        | {"down.int8_channel": "int8_channel", "down.int4_group": "int4_group"},
    ),
    "compressed, int4 experts": Mix(
        groups(int4_group("re:.*mlp.experts.*")),
        (("self_attn", None), ("", INT4)),
        {"qkv": "plain", "out": "plain", "moe.router": "plain", "moe": "int4_group", "lm_head": "plain"},
        "experts",
    ),
    "fp8, experts of one layer": Mix(
        FP8_BLOCK | {"modules_to_not_convert": ["model.layers.1.mlp", "re"]},
        ((r"layers\.1\.mlp", None), ("", BLOCK)),
        {"qkv": "fp8_block", "out": "fp8_block", "moe.router": "plain", "lm_head": "plain"}
        | {"moe.fp8_block": "fp8_block", "moe.plain": "plain"},
        "experts",
    ),
    "compressed, latent attention": Mix(
        groups(fp8_group("Linear"), ignore=("model.layers.0.self_attn.kv_b_proj", "re:.*shared_experts.*")),
        ((r"layers\.0\.self_attn\.kv_b_proj|shared_experts", None), ("", CHANNEL)),
        {"latent_down": "fp8_channel", "latent_q": "fp8_channel", "out": "fp8_channel", "moe": "fp8_channel"}
        | {"latent_up.plain": "plain", "latent_up.fp8_channel": "fp8_channel", "lm_head": "plain"}
        | {"shared_gate_up": "plain", "shared_down": "plain", "moe.router": "plain"},
        "latent",
    ),
    "fp8, DeepSeek-V3": Mix(
        FP8_BLOCK,
        (("", BLOCK),),
        dict.fromkeys(("latent_down", "latent_q", "latent_up", "out", "gate_up", "down", "moe"), "fp8_block")
        | {"shared_gate_up": "fp8_block", "shared_down": "fp8_block", "moe.router": "plain", "lm_head": "plain"},
        "published fp8",
    ),
}


def write(folder: Path, mix: Mix) -> tuple[Path, Path]:
    """Writes the quantized checkpoint, and the plain one of equal numbers."""
    model_type, sizes = MODELS[mix.model]
    plain = write_checkpoint(
        folder / "plain", model_type, **(SIZES | sizes if mix.model in DENSE_AND_EXPERTS else sizes)
    )
    tensors, quantized = load_file(plain / "model.safetensors"), {}
    for name, weight in list(tensors.items()):
        module = name.removesuffix(".weight")
        schemes = (scheme for pattern, scheme in mix.schemes if re.search(pattern, module))
        scheme = next(schemes, None) if re.search("_proj(_with_mqa)?$", module) else None
        if scheme is None:
            quantized[name] = weight
            continue
        parts = scheme[0](weight)
        quantized |= {f"{module}.{part}": tensor.contiguous() for part, tensor in parts.items()}
        tensors[name] = scheme[1](parts).float().contiguous()
    save_file(tensors, plain / "model.safetensors")
    return stored(folder / "quantized", plain, quantized, mix.config), plain


def formats_of(plan: Plan) -> dict[str, str]:
    queries = (choice.query for choice in plan.choices)
    return {query.site: query.weight_format for query in queries if isinstance(query, (LinearQuery, MoEQuery))}


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXES)
def test_answers_match_the_dequantized_weights(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes too: by tensor, and, with the formats of their own layers, by pipeline."""
    quantized, plain = write(tmp_path, MIXES[name])
    tokens, logprobs = answers(plain)
    for ranks in ({}, {"parallel.tensor": 2}, {"parallel.pipeline": 2}):
        if ranks:
            monkeypatch.setattr(launch, "start_executor", ThreadedRanks.start)
        found = answers(quantized, **ranks)
        assert found[0] == tokens
        assert found[1] == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("name", MIXES)
def test_queries_have_the_format_of_their_site(name: str, tmp_path: Path) -> None:
    mix = MIXES[name]
    quantized, plain = write(tmp_path, mix)
    model = ModelHarness.of(quantized, {"model.dtype": "float32"})
    assert formats_of(model.boot.plan) == mix.formats
    (found,), (expected,) = (
        each.step([("a", [5, 6, 7, 300, 20])]) for each in (model, ModelHarness.of(plain, {"model.dtype": "float32"}))
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    (dummy,) = ModelHarness.of(quantized, {"model.load_format": "dummy"}).step([("a", [5, 6, 7])])
    assert dummy.isfinite().all()


def test_ops_and_layers_follow_their_site(tmp_path: Path) -> None:
    mix = MIXES["fp8, names and parts of names"]
    plan = ModelHarness.of(write(tmp_path, mix)[0]).boot.plan
    ops = {choice.site: choice.query.linear for choice in plan.choices if choice.site.startswith("norm_gate_up")}  # type: ignore[union-attr]
    assert ops == {
        "norm_gate_up_silu.plain": plan.choice("linear", "gate_up.plain").id,
        "norm_gate_up_silu.fp8_block": plan.choice("linear", "gate_up.fp8_block").id,
    }
    members = {variant.variant: variant.members for variant in plan.variants if variant.kind == "linear"}
    assert members["gate_up.plain"] == ("model.layers.0.mlp.gate_proj",)
    assert members["gate_up.fp8_block"] == ("model.layers.1.mlp.gate_proj",)


LISTED = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            FP8_BLOCK | {"modules_to_not_convert": [LISTED]},
            r"q_proj \(plain\), \S+k_proj \(fp8_block\), \S+v_proj \(fp8_block\)",
        ),
        (
            groups(fp8_group("re:.*[qk]_proj"), int8_group("Linear")),
            r"k_proj \(fp8_channel\), \S+v_proj \(int8_channel\)",
        ),
        (
            groups(fp8_group("re:.*self_attn.*"), group("Linear", type="float", num_bits=4, strategy="tensor_group")),
            r"(?s)stores model\.layers\.0\.mlp\.gate_proj in a format that no method reads .*wanted 8, found 4",
        ),
        (groups(fp8_group("Linear"), ignore=("re:model.(",)), r"'re:model\.\(', which is not a regular expression"),
        (groups(fp8_group("Linear")) | {"ignore": "lm_head"}, r"ignore = 'lm_head', which is not a list of texts"),
        (FP8_BLOCK | {"modules_to_not_convert": [7]}, r"modules_to_not_convert = \[7\], which is not a list of texts"),
        (FP8_BLOCK | {"modules_to_not_convert": ["o_proj"]}, r"o_proj\.weight.* is stored as F8_E4M3"),
    ],
)
def test_lists_that_cannot_be_followed_are_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    quantized, _ = write(tmp_path, Mix(config, (("", BLOCK),), {}))
    with pytest.raises(CheckpointError, match=message):
        ModelHarness.of(quantized)


def test_a_module_that_is_plain_and_not_listed_is_named(tmp_path: Path) -> None:
    quantized, _ = write(tmp_path, Mix(FP8_BLOCK, ((r"layers\.1\.mlp\.down", None), ("", BLOCK)), {}))
    with pytest.raises(
        CheckpointError, match=r"model\.layers\.1\.mlp\.down_proj is stored as F32, not as F8"
    ) as caught:
        ModelHarness.of(quantized)
    assert "list it there, in modules_to_not_convert" in caught.value.hint


def test_a_missing_method_names_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantized, _ = write(tmp_path, MIXES["compressed, fp8 attention and int4 MLP"])
    avoid = {"select.quantization.avoid": ("quantization.compressed_tensors_int4",)}
    monkeypatch.setattr(formats, "missing_wheel", lambda name: f"llmk-{name}")
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.gate_proj in a format that no method reads") as caught:
        ModelHarness.of(quantized, avoid)
    assert "pip install llmk-quantization" in caught.value.hint


def test_entries_that_match_nothing_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = groups(fp8_group("Linear", "re:.*vision.*"), ignore=("model.layers.7.mlp.up_proj", "re:.*o_proj"))
    quantized, _ = write(tmp_path, Mix(config, (("o_proj", None), ("", CHANNEL)), {}))
    ModelHarness.of(quantized)
    warned = [record.getMessage() for record in caplog.records if "matches no module" in record.getMessage()]
    assert [re.findall(r"names '(.*)', which", text) for text in warned] == [
        ["model.layers.7.mlp.up_proj"],
        ["re:.*vision.*"],
    ]


def test_a_packed_weight_of_another_shape_is_refused(tmp_path: Path) -> None:
    quantized, _ = write(tmp_path, Mix(groups(int4_group("Linear")), (("", INT4),), {}))
    tensors = load_file(quantized / "model.safetensors")
    name = "model.layers.0.mlp.down_proj"
    parts = packed_int4(torch.randn(256, 256), symmetric=False)
    tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
    spoilt = stored(tmp_path / "spoilt", quantized, tensors, groups(int4_group("Linear")))
    with pytest.raises(CheckpointError, match=r"down_proj stores a weight of shape \[256, 256\], not \[256, 512\]"):
        ModelHarness.of(spoilt)


NAMES = [
    f"model.layers.{layer}.{part}"
    for layer in (1, 10, 11)
    for part in ("self_attn.q_proj", "mlp.gate", "mlp.gate_proj", "mlp.experts.0.up_proj", "mlp.shared_expert_gate")
] + ["lm_head"]


@pytest.mark.parametrize(
    "entry",
    [
        *(
            "lm_head",
            "model.layers.1",
            "model.layers.1.",
            "model.layers.1.mlp.gate",
            "q_proj",
            "gate",
            "model.layers.*",
        ),
        *(r"model\.layers\.\d+\.mlp", "model.layers.(1|11).mlp.gate_proj", "model.layers.*.mlp.gate", "mlp.experts.0"),
    ],
)
def test_lists_mean_what_they_mean_to_transformers(entry: str) -> None:
    """Except for parts from the middle of a name, which older versions and AutoAWQ accepted."""
    matches, inner = unconverted(entry), f".{entry}."
    for name in NAMES:
        assert matches(name) == (not should_convert_module(name, [entry]) or inner in f".{name}."), name


def test_names_come_before_expressions_and_these_before_classes() -> None:
    targets = ("Linear",), ("re:.*mlp.*",), ("model.layers.1.mlp.gate_proj",)
    find = group_finder(groups(*(fp8_group(*each) for each in targets), ignore=("re:.*experts", "lm_head")))
    found = {name: group.name if (group := find(name)) else None for name in NAMES}
    assert found["model.layers.1.mlp.gate_proj"] == "group_2"
    assert found["model.layers.11.mlp.gate_proj"] == "group_1"
    assert found["model.layers.11.self_attn.q_proj"] == "group_0"
    assert found["model.layers.11.mlp.experts.0.up_proj"] is found["lm_head"] is None
    assert group_finder(groups(fp8_group("re:.*mlp.*")))("model.layers.1.self_attn.q_proj") is None


def test_only_what_is_in_the_files_is_matched() -> None:
    assert unmatched({"modules_to_not_convert": ["lm_head", "mlp.gate", "visual"]}, NAMES) == ["visual"]
    assert not named("model.layers.1")("model.layers.1.mlp.gate")
    assert unmatched(Checkpoint(Path(), {}).quantization, NAMES) == []
