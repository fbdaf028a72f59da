"""DeepSeek-V4: what its configs say, the names of its authors, tables of experts, and residual streams."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmk import LLM, SamplingParams
from llmk.api import CheckpointError, LlmkError, UnsupportedOption
from llmk.kernel.loader import load_object
from llmk.tree import CompressedAttend, EntryIndexer, lower
from llmk_models import deepseek_v4
from llmk_models.hyper_connection_layers import _doubly_stochastic
from llmk_models.specs import llmk_models
from llmk_models.token_experts import ExpertTable

from .configs import config, parts_of

FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 43, "vocab_size": 129280,
    "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "num_experts_per_tok": 6, "max_position_embeddings": 1048576, "num_hash_layers": 3,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4], "qk_rope_head_dim": 64, "scoring_func": "sqrtsoftplus",
    "rope_scaling": {
        "type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1,
    },
}  # fmt: skip
PROMPT = [*range(5, 60)]
_AUTHORS = (
    (r"^model\.embed_tokens", "embed"),
    (r"^model\.hc_head\.hc_", "hc_head_"),
    (r"^model\.", ""),
)

Tensors = dict[str, torch.Tensor]


def answer(folder: Path) -> list[int]:
    """The tokens after a prompt."""
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(str(folder), dtype="float32") as llm:
        return list(llm.generate([PROMPT], greedy, use_tqdm=False)[0].outputs[0].token_ids)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint, as transformers writes it."""
    (spec,) = (each for each in llmk_models() if each.id == "models.deepseek_v4")
    written: Path = load_object(spec.examples)[0].write(tmp_path_factory.mktemp("v4"))
    return written


def copied(
    folder: Path, to: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], **own: Any
) -> Path:
    """The checkpoint with other tensors, and other values in its config."""
    stored = json.loads((folder / "config.json").read_text())
    for file in folder.iterdir():
        if file.suffix == ".safetensors":
            save_file(change(load_file(file)), to / file.name, {"format": "pt"})
        else:
            (to / file.name).write_bytes(file.read_bytes())
    (to / "config.json").write_text(json.dumps(stored | own))
    return to


def test_the_kinds_of_layers() -> None:
    tree = deepseek_v4.tree(config(**FLASH))
    attends = parts_of(tree, CompressedAttend)
    rates = [attend.compressor.rate if attend.compressor else 0 for attend in attends]
    assert rates == FLASH["compress_ratios"]
    assert len(parts_of(tree, EntryIndexer)) == rates.count(4)
    assert len(parts_of(tree, ExpertTable)) == 3
    assert {attend.rope.parameters["rope_type"] for attend in attends[:2]} == {"default"}
    far = attends[2].rope
    assert (far.rotary_dim, far.parameters["rope_theta"], far.parameters["attention_factor"]) == (64, 160_000.0, 1.0)
    assert tree.max_model_len == 1 << 20


def test_a_published_config_has_about_the_published_number_of_parameters() -> None:
    assert lower(deepseek_v4.tree(config(**FLASH))).num_parameters / 1e9 == pytest.approx(284, rel=0.01)


@pytest.mark.slow
def test_the_names_of_its_authors(tiny: Path, tmp_path: Path) -> None:
    def named(tensors: Tensors) -> Tensors:
        found = {}
        for name, tensor in tensors.items():
            for pattern, replacement in _AUTHORS:
                name = re.sub(pattern, replacement, name)
            found[name] = tensor
        tables = {name: tensor.int() for name, tensor in found.items() if name.endswith("tid2eid")}
        return found | tables | {"mtp.0.norm.weight": torch.ones(64)}

    stored = json.loads((tiny / "config.json").read_text())
    kinds = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    own = {"compress_ratios": [kinds[kind] for kind in stored["layer_types"]]}
    assert answer(copied(tiny, tmp_path, named, **own)) == answer(tiny)


@pytest.mark.slow
def test_experts_that_are_not_there_are_refused(tiny: Path, tmp_path: Path) -> None:
    def broken(tensors: Tensors) -> Tensors:
        tensors["model.layers.0.ffn.gate.tid2eid"][3, 1] = 8
        return tensors

    with pytest.raises(LlmkError, match=r"tid2eid names the experts 0 to 8, but there are 8"):
        answer(copied(tiny, tmp_path, broken))


def test_rows_and_columns_of_the_mixing_matrix_add_up_to_one() -> None:
    found = _doubly_stochastic(torch.randn(50, 4, 4, generator=torch.Generator().manual_seed(0)), 20, 1e-6)
    assert (found >= 0).all()
    for dim in (1, 2):
        assert (found.sum(dim) - 1).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        ({"o_groups": 7}, "o_groups = 7"),
        ({"compress_ratios": [0, 0, 5]}, "kinds of attention"),
        ({"layer_types": ["full_attention"] * 43}, "kinds of attention"),
        ({"mlp_layer_types": ["hash_moe"]}, "kinds of experts"),
        ({"compress_rates": 4}, "compress_rates = 4"),
    ],
)
def test_what_is_not_served_is_refused(own: dict[str, Any], problem: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedOption), match=problem):
        deepseek_v4.tree(config(**{**FLASH, **own}))
