"""What is read off config.json, in the spellings that checkpoints have."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from configs import DEEPSEEK, LLAMA, MAMBA2, attends, config, dense_tree, facts, parts_of, sparse_layers

from llmk.api import CheckpointError, PlatformFacts
from llmk.api.sharding import parallel_problems
from llmk.tree import Recurrent
from llmk_models import (
    deepseek_v2,
    dense,
    gemma2,
    mamba2,
    mixtral,
    qwen3_moe,
    qwen3_next,
    specs,
    transformers_facts,
)


@pytest.mark.parametrize(
    "limits", [[0.5, float("inf")], [0.5, {"__float__": "Infinity"}], (0.5, {"__float__": float("inf")})]
)
def test_infinity_in_the_spellings_that_checkpoints_have(limits: Any) -> None:
    (scan, *_) = parts_of(mamba2.tree(config(**{**MAMBA2, "time_step_limit": limits})), Recurrent)
    assert scan.sizes.dt_limits == (0.5, None)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"num_heads": 3}, r"expand \* hidden_size = 128, but num_heads \* head_dim = 96"),
        ({"n_groups": 3}, "num_heads = 4, which n_groups = 3 does not divide"),
    ],
)
def test_mamba2_that_contradicts_itself_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        facts(mamba2, **{**MAMBA2, **changes})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"linear_num_value_heads": 6, "linear_num_key_heads": 4}, "linear_num_value_heads = 6"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types of 3 layers"),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, "sliding_attention"),
    ],
)
def test_qwen3_next_of_another_kind_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        facts(qwen3_next, **{**LLAMA, **changes})


def test_mamba2_has_states_and_no_attention() -> None:
    found = facts(mamba2, **{**MAMBA2, "torch_dtype": "bfloat16"})
    (state,) = found.recurrent
    assert found.attention == ()
    assert (state.site, state.num_layers) == ("state_space_mixer", 4)
    assert [(tensor.shape, tensor.dtype) for tensor in state.tensors] == [
        ((3, 128 + 2 * 2 * 16), "bfloat16"),
        ((4, 32, 16), "float32"),
    ]


@pytest.mark.parametrize(
    ("config", "attention", "recurrent", "sites"),
    [
        ({}, 1, 3, {"qkv", "out", "delta_in", "delta_scalars", "delta_out"}),
        ({"full_attention_interval": 1}, 4, 0, {"qkv", "out"}),
        ({"full_attention_interval": 9}, 0, 4, {"delta_in", "delta_scalars", "delta_out"}),
        (
            {"layer_types": ["linear_attention", "full_attention"] * 2},
            2,
            2,
            {"qkv", "out", "delta_in", "delta_out", "delta_scalars"},
        ),
    ],
)
def test_which_layers_of_qwen3_next_attend(
    config: dict[str, Any], attention: int, recurrent: int, sites: set[str]
) -> None:
    """Sites that no layer has have no query."""
    found = facts(qwen3_next, **{**LLAMA, **config})
    assert sum(found.num_layers for found in found.attention) == attention
    assert sum(found.num_layers for found in found.recurrent) == recurrent
    shared = {"shared_expert.gate_up", "shared_expert.down", "shared_expert.gate"}
    assert {linear.site for linear in found.linear} == sites | shared | {"moe.router", "lm_head"}
    counts = {linear.site: linear.count for linear in found.linear}
    assert counts.get("qkv", 0) == attention
    assert counts.get("delta_in", 0) == recurrent
    assert counts["shared_expert.down"] == 4
    names = {op.site for op in found.ops}
    assert ("gated_delta_net" in names) == bool(recurrent)
    assert ("attention_gate" in names) == bool(attention)


def test_gemma2_has_two_attention_sites_with_cap_and_scale() -> None:
    found = facts(gemma2, **{**LLAMA, "query_pre_attn_scalar": 64, "sliding_window": 32})
    assert [(f.site, f.num_layers, f.sliding_window, f.softcap, f.scale) for f in found.attention] == [
        ("sliding_attention", 2, 32, 50.0, 0.125),
        ("attention", 2, None, 50.0, 0.125),
    ]
    uncapped = facts(gemma2, **{**LLAMA, "final_logit_softcapping": None})
    assert {op.site for op in found.ops} - {op.site for op in uncapped.ops} == {"softcap"}


def test_published_models_have_their_published_sizes() -> None:
    common = {"max_position_embeddings": 32768, "num_attention_heads": 32}
    mixtral_8x7b = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 32000}
    qwen3_30b_a3b = {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "vocab_size": 151936, "head_dim": 128,
        "num_experts": 128, "moe_intermediate_size": 768,
    }  # fmt: skip
    gemma_2_2b = {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "vocab_size": 256000,
        "num_attention_heads": 8,
    }  # fmt: skip
    deepseek_v2_lite = {
        "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27, "vocab_size": 102400,
        "num_attention_heads": 16, "q_lora_rank": None, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
        "num_experts_per_tok": 6,
    }  # fmt: skip
    deepseek_v2_236b = deepseek_v2_lite | {
        "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 60, "num_attention_heads": 128,
        "q_lora_rank": 1536, "n_routed_experts": 160, "moe_intermediate_size": 1536,
    }  # fmt: skip
    qwen3_next_80b_a3b = {
        "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48, "vocab_size": 151936,
        "num_attention_heads": 16,
    }  # fmt: skip
    mamba_codestral_7b = {"hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 32768}
    for module, own, size in (
        (mixtral, mixtral_8x7b, 46_702_792_704),
        (qwen3_moe, qwen3_30b_a3b, 30_532_122_624),
        (gemma2, gemma_2_2b, 2_614_341_888),
        (deepseek_v2, deepseek_v2_lite, 15_706_484_224),
        (deepseek_v2, deepseek_v2_236b, 235_741_434_880),
        (qwen3_next, qwen3_next_80b_a3b, 79_674_391_296),
        (mamba2, mamba_codestral_7b, 7_285_403_648),
    ):
        assert facts(module, **(common | own)).num_parameters == size


def test_bidirectional_gemma2_is_refused() -> None:
    with pytest.raises(CheckpointError, match="use_bidirectional_attention"):
        facts(gemma2, **{**LLAMA, "use_bidirectional_attention": True})


@pytest.mark.parametrize(
    ("changes", "sparse", "sites"),
    [
        ({}, (True, True, True, True), {"moe.router"}),
        ({"mlp_only_layers": [0, 3]}, (False, True, True, False), {"moe.router", "gate_up", "down"}),
        ({"decoder_sparse_step": 2}, (False, True, False, True), {"moe.router", "gate_up", "down"}),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, (False,) * 3 + (True,), {"moe.router", "gate_up", "down"}),
        ({"num_experts": 0}, (False, False, False, False), {"gate_up", "down"}),
    ],
)
def test_which_layers_are_sparse(changes: dict[str, Any], sparse: tuple[bool, ...], sites: set[str]) -> None:
    """Sites that no layer has have no query, and routers are never quantized."""
    values = {**LLAMA, **changes}
    assert sparse_layers(qwen3_moe.tree(config(**values))) == sparse
    found = facts(qwen3_moe, **values)
    assert {linear.site for linear in found.linear} == {"qkv", "out", "lm_head"} | sites
    assert [moe.count for moe in found.moe] == ([sum(sparse)] if any(sparse) else [])
    assert {linear.count for linear in found.linear if linear.site in ("gate_up", "down")} <= {sparse.count(False)}
    assert {linear.site for linear in found.linear if not linear.quantizable} <= {"lm_head", "moe.router"}


@pytest.mark.parametrize(
    ("changes", "sparse", "sites"),
    [
        ({}, (True, True, True, True), {"moe.router", "shared_gate_up", "shared_down"}),
        ({"n_shared_experts": None}, (True, True, True, True), {"moe.router"}),
        (
            {"first_k_dense_replace": 1, "moe_layer_freq": 2},
            (False, False, True, False),
            {"moe.router", "shared_gate_up", "shared_down", "gate_up", "down"},
        ),
        ({"n_routed_experts": None}, (False, False, False, False), {"gate_up", "down"}),
    ],
)
def test_which_layers_of_deepseek_v2_are_sparse(
    changes: dict[str, Any], sparse: tuple[bool, ...], sites: set[str]
) -> None:
    values = {**DEEPSEEK, **changes}
    assert sparse_layers(deepseek_v2.tree(config(**values))) == sparse
    found = facts(deepseek_v2, **values)
    latent = {"latent_down", "latent_q", "latent_up", "out", "lm_head"}
    assert {linear.site for linear in found.linear} == latent | sites
    assert {op.linear for op in found.ops if op.linear} == {
        site for site in sites if site.endswith(("gate_up", "router"))
    }
    assert [moe.count for moe in found.moe] == ([sum(sparse)] if any(sparse) else [])


def test_groups_limit_experts_only_where_the_method_says_so() -> None:
    groups = {"n_group": 8, "topk_group": 3}
    for method, expected in (("greedy", (1, 1)), ("group_limited_greedy", (8, 3))):
        (experts,) = facts(deepseek_v2, **{**DEEPSEEK, **groups, "topk_method": method}).moe
        assert (experts.num_groups, experts.top_groups, experts.group_scoring) == (*expected, "max")


def test_latent_attention_has_the_scaling_of_yarn() -> None:
    yarn = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    scales = []
    for scaling in (None, yarn, yarn | {"mscale_all_dim": 0.707}, {"type": "linear", "factor": 40}):
        (attention,) = facts(deepseek_v2, **{**DEEPSEEK, "rope_scaling": scaling}).attention
        assert (attention.num_kv_heads, attention.head_dim, attention.latent_dim) == (1, 576, 512)
        scales.append(attention.scale)
    plain = 192**-0.5
    assert scales == pytest.approx([plain, plain, plain * (0.0707 * math.log(40) + 1) ** 2, plain])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("scoring_func", "sigmoid"),
        ("topk_method", "noaux_tc"),
        ("norm_topk_prob", True),
    ],
)
def test_unsupported_deepseek_v2_options_are_refused(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"DeepseekV2ForCausalLM with {key} = {value!r}") as caught:
        facts(deepseek_v2, **{**DEEPSEEK, key: value})
    assert "llmk plugins" in caught.value.hint


def _rope(**overrides: Any) -> dict[str, Any]:
    rope = attends(dense_tree(**overrides))[0].rope
    assert rope is not None
    return rope.parameters


def test_old_and_new_rope_spelling_agree() -> None:
    values = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
    new = _rope(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **values})
    old = _rope(rope_scaling={"rope_type": "llama3", **values}, rope_theta=5e5)
    older = _rope(rope_scaling={"type": "llama3", **values}, rope_theta=5e5)
    assert new == old == {key: value for key, value in older.items() if key != "type"}


def test_rotary_settings_by_kind_of_layer_are_refused_with_a_way_out() -> None:
    nested = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(CheckpointError, match=r"\(full_attention, sliding_attention\)") as caught:
        dense_tree(rope_parameters=nested)
    assert "models.transformers" in caught.value.hint


def test_original_length_defaults_to_the_stated_one() -> None:
    rope = _rope(rope_scaling={"type": "yarn", "factor": 4.0})
    assert rope["original_max_position_embeddings"] == 4096


@pytest.mark.parametrize(
    ("stated", "scaling", "reached"),
    [
        (4096, None, 4096),
        (4096, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        (16384, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        (131072, {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072),
    ],
)
def test_context_length(stated: int, scaling: dict[str, Any] | None, reached: int) -> None:
    assert dense_tree(max_position_embeddings=stated, rope_scaling=scaling).max_model_len == reached


def test_layers_with_equal_attention_share_a_site() -> None:
    config = {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 3, "num_key_value_heads": 2}
    found = facts(dense, **{**LLAMA, "architectures": ["Qwen2ForCausalLM"], **config})
    assert [(f.site, f.num_layers, f.sliding_window) for f in found.attention] == [
        ("attention", 3, None),
        ("sliding_attention", 1, 32),
    ]
    assert {op.attention for op in found.ops if op.attention} == {"attention", "sliding_attention"}
    assert {linear.site: linear.bias for linear in found.linear} == {
        "qkv": True, "out": False, "gate_up": False, "down": False, "lm_head": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "dtype"), [("bfloat16", "bfloat16"), ("torch.float16", "float16"), ("fp8", "float32")]
)
def test_dtype_in_either_spelling(stored: str, dtype: str) -> None:
    for key in ("dtype", "torch_dtype"):
        assert facts(dense, **{**LLAMA, key: stored}).dtype == dtype


def test_a_missing_size_is_named() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "hidden_size"}
    with pytest.raises(CheckpointError, match=r"/c/config\.json has no 'hidden_size', which LlamaForCausalLM needs"):
        facts(dense, **config)


def test_another_activation_is_refused_with_a_way_out() -> None:
    with pytest.raises(CheckpointError, match="hidden_act = 'gelu'") as caught:
        dense_tree(hidden_act="gelu")
    assert "models.transformers" in caught.value.hint


SPREADABLE: list[tuple[Any, dict[str, Any], int, str, str]] = [
    (deepseek_v2, {**DEEPSEEK, "moe_intermediate_size": 96}, 8, "4 heads of latent_attention", "1, 2, 4"),
    (mamba2, MAMBA2, 4, "2 groups of heads of state_space_mixer", "1, 2"),
    (qwen3_next, {**LLAMA, "num_attention_heads": 32}, 32, "16 groups of heads of gated_delta_net", "1, 2, 4"),
]
"""Each with a number of processes, the first thing that they can't share, and the numbers that could."""


@pytest.mark.parametrize(("module", "config", "tensor", "uneven", "able"), SPREADABLE)
def test_what_several_processes_can_share(
    module: Any, config: dict[str, Any], tensor: int, uneven: str, able: str
) -> None:
    found = facts(module, **config)
    box = PlatformFacts(name="box", arch="b2", device_type="cpu", shared_device=True)
    assert not parallel_problems(found, box, 2, 4)
    (problem,) = parallel_problems(found, box, tensor, 1)
    assert problem.message.startswith(uneven)
    assert problem.message.endswith(f"can't be divided evenly between {tensor} processes")
    assert f"one of {able}" in problem.fix


@pytest.mark.hook("llmk_models")
def test_registers_all_families() -> None:
    architectures = {spec.id: set(spec.architectures) for spec in specs.llmk_models()}
    assert architectures == {
        "models.bamba": {"BambaForCausalLM"},
        "models.falcon_h1": {"FalconH1ForCausalLM"},
        "models.granitemoehybrid": {"GraniteMoeHybridForCausalLM"},
        "models.jamba": {"JambaForCausalLM"},
        "models.bailing_hybrid": {"BailingHybridForCausalLM"},
        "models.kimi_linear": {"KimiLinearForCausalLM"},
        "models.minimax": {"MiniMaxForCausalLM"},
        "models.deepseek_v32": {"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"},
        "models.lfm2": {"Lfm2ForCausalLM", "Lfm2MoeForCausalLM"},
        "models.lfm3": {"Lfm3ForCausalLM"},
        "models.mamba": {"MambaForCausalLM", "FalconMambaForCausalLM"},
        "models.nemotron_h": {"NemotronHForCausalLM"},
        "models.qwen3_5": {
            f"Qwen3_5{kind}For{task}" for kind in ("", "Moe") for task in ("CausalLM", "ConditionalGeneration")
        },
        "models.dense": {f"{name}ForCausalLM" for name in ("Llama", "Mistral", "Ministral", "Qwen2", "Qwen3")},
        "models.apertus": {"ApertusForCausalLM"},
        "models.arcee": {"ArceeForCausalLM"},
        "models.cohere": {"CohereForCausalLM", "Cohere2ForCausalLM"},
        "models.ernie4_5": {"Ernie4_5ForCausalLM"},
        "models.ernie4_5_moe": {"Ernie4_5_MoeForCausalLM"},
        "models.axk1": {"AXK1ForCausalLM"},
        "models.deepseek_v4": {"DeepseekV4ForCausalLM"},
        "models.gptj": {"GPTJForCausalLM"},
        "models.bloom": {"BloomForCausalLM"},
        "models.mpt": {"MptForCausalLM"},
        "models.falcon": {"FalconForCausalLM"},
        "models.gemma": {"GemmaForCausalLM"},
        "models.glm4": {"GlmForCausalLM", "Glm4ForCausalLM"},
        "models.glm4_moe_lite": {"Glm4MoeLiteForCausalLM"},
        "models.gpt_neox": {"GPTNeoXForCausalLM"},
        "models.helium": {"HeliumForCausalLM"},
        "models.hunyuan": {"HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM"},
        "models.hy_v3": {"HYV3ForCausalLM"},
        "models.mimo_v2_flash": {"MiMoV2FlashForCausalLM"},
        "models.gemma3n": {"Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"},
        "models.gemma4": {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"},
        "models.llama4": {"Llama4ForCausalLM", "Llama4ForConditionalGeneration"},
        "models.longcat_flash": {"LongcatFlashForCausalLM"},
        "models.zamba2": {"Zamba2ForCausalLM"},
        "models.ministral3": {"Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"},
        "models.nemotron": {"NemotronForCausalLM"},
        "models.olmo": {"OlmoForCausalLM"},
        "models.phi": {"PhiForCausalLM"},
        "models.solar_open": {"SolarOpenForCausalLM"},
        "models.stablelm": {"StableLmForCausalLM"},
        "models.starcoder2": {"Starcoder2ForCausalLM"},
        "models.youtu": {"YoutuForCausalLM"},
        "models.deepseek_v2": {"DeepseekV2ForCausalLM"},
        "models.deepseek_v3": {"DeepseekV3ForCausalLM"},
        "models.dots1": {"Dots1ForCausalLM"},
        "models.exaone4": {"Exaone4ForCausalLM"},
        "models.glm4_moe": {"Glm4MoeForCausalLM"},
        "models.granitemoe": {"GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"},
        "models.minimax_m2": {"MiniMaxM2ForCausalLM"},
        "models.olmoe": {"OlmoeForCausalLM"},
        "models.smollm3": {"SmolLM3ForCausalLM"},
        "models.gemma2": {"Gemma2ForCausalLM"},
        "models.gemma3": {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"},
        "models.granite": {"GraniteForCausalLM"},
        "models.gpt_oss": {"GptOssForCausalLM"},
        "models.mamba2": {"Mamba2ForCausalLM"},
        "models.olmo2": {"Olmo2ForCausalLM", "Olmo3ForCausalLM"},
        "models.phi3": {"Phi3ForCausalLM"},
        "models.mixtral": {"MixtralForCausalLM"},
        "models.qwen2_moe": {"Qwen2MoeForCausalLM"},
        "models.qwen3_moe": {"Qwen3MoeForCausalLM"},
        "models.qwen3_next": {"Qwen3NextForCausalLM"},
        "models.transformers": {"*"},
    }


EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1}


@pytest.mark.hook("llmk_demo_checkpoint")
def test_the_demo_is_offered_where_its_weights_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "DEMO", tmp_path)
    assert specs.llmk_demo_checkpoint() is None
    (tmp_path / "model.safetensors").touch()
    assert specs.llmk_demo_checkpoint() == str(tmp_path)


NEEDED = {
    "BloomForCausalLM": {"n_head": 4, "n_layer": 2},
    "MptForCausalLM": {"d_model": 64, "n_heads": 4, "n_layers": 2},
    "DeepseekV4ForCausalLM": {"o_groups": 2},
    "GPTJForCausalLM": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "rotary_dim": 8},
    "Gemma3nForCausalLM": {"num_kv_shared_layers": 0},
    "Llama4ForCausalLM": {"num_experts_per_tok": 1},
    "LongcatFlashForCausalLM": {"ffn_hidden_size": 64, "num_layers": 2},
    "Zamba2ForCausalLM": {
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "hidden_act": "gelu",
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "mamba_ngroups": 1,
        "mamba_d_state": 16,
    },
}
"""What configs of some architectures must have besides."""


def test_describing_needs_no_torch(tmp_path: Path) -> None:
    code = """
import json, sys
from pathlib import Path
from llmk.api import Checkpoint
from llmk.tree import Config
from importlib import import_module
import llmk_models.specs, llmk_models.transformers_facts as other
config = json.loads(sys.argv[1])
for spec in llmk_models.specs.llmk_models():
    architecture = spec.architectures[0]
    if architecture != "*":
        own = json.loads(sys.argv[3]).get(architecture, {})
        checkpoint = Checkpoint(Path("/c"), {**config, **own, "architectures": [architecture]})
        module, _, name = (spec.tree or spec.describe).partition(":")
        getattr(import_module(module), name)(Config(checkpoint) if spec.tree else checkpoint)
config = json.loads(sys.argv[2])
other.describe(Checkpoint(Path("/c"), {**config, "architectures": ["OtherForCausalLM"]}))
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    import json

    configs = (
        json.dumps({**DEEPSEEK, **MAMBA2, "num_key_value_heads": 2, **EXPERTS, "hybrid_override_pattern": "M*-M"}),
        json.dumps(LLAMA),
        json.dumps(NEEDED),
    )
    done = subprocess.run([sys.executable, "-c", code, *configs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_key_value_heads": 3}, "num_attention_heads = 4, .* num_key_value_heads = 3"),
        ({"num_key_value_heads": 8}, "num_key_value_heads = 8"),
        ({"num_attention_heads": 128, "head_dim": None}, "hidden_size of 64"),
        ({"layer_types": ["full_attention"], "sliding_window": 8}, "layer_types of 1 layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000, which is not a whole number from 1 to 10000"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers = 2.5"),
        ({"hidden_size": 1e400}, "hidden_size = inf"),
        ({"vocab_size": 10**30}, "vocab_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false', which is not true or false"),
        ({"rope_parameters": {"rope_theta": "a"}}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": [2]}}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": ["a"]}}, "rope_parameters"),
        ({"rope_parameters": {"full_attention": {"rope_theta": -1}}}, "rope_parameters"),
        ({"layer_types": [["a"]]}, "layer_types"),
    ],
)
@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "OtherForCausalLM"])
def test_an_impossible_config_is_refused(changes: dict[str, Any], problem: str, architecture: str) -> None:
    own = dense if architecture.startswith("Qwen3") else transformers_facts
    own_heads = {"num_key_value_heads": changes.get("num_attention_heads", 4), "use_sliding_window": True}
    with pytest.raises(CheckpointError, match=problem):
        facts(own, **{**LLAMA, **own_heads, **changes, "architectures": [architecture]})


def test_whole_numbers_may_have_a_decimal_point() -> None:
    assert repr(dense_tree(hidden_size=64.0).embed.size) == "64"


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "OtherForCausalLM"])
def test_a_null_window_is_no_window(architecture: str) -> None:
    """As transformers 5 saves types whose windows are switched off."""
    config = {**LLAMA, "num_key_value_heads": 2, "sliding_window": 0, "use_sliding_window": False}
    config["architectures"] = [architecture]
    own = dense if architecture.startswith("Qwen3") else transformers_facts
    (site,) = facts(own, **config).attention
    assert site.sliding_window is None


LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "OtherForCausalLM"])
def test_longrope_is_served_by_default_where_short_factors_hold(architecture: str) -> None:
    own = dense if architecture.startswith("Llama") else transformers_facts
    config = {**LLAMA, "rope_parameters": LONGROPE, "original_max_position_embeddings": 128}
    found = facts(own, **{**config, "architectures": [architecture]})
    assert (found.max_model_len, found.default_model_len) == (4096, 128)
    assert "--model.max-model-len" in found.default_why
    found = facts(own, **{**LLAMA, "architectures": [architecture]})
    assert (found.default_model_len, found.default_why) == (0, "")
