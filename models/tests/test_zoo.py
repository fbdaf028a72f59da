"""Every generative model of transformers is served, or refused with the missing mechanism."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zoo
from configs import LLAMA

from llmk.api import Checkpoint, CheckpointError, UnknownArchitecture
from llmk.config import load
from llmk.planning.boot import boot
from llmk_models.transformers_facts import describe
from llmk_testing.model import ModelHarness

LATER = (
    "has other attention than config.json describes",
    "bypasses the attention interface",
    "does not run on llmk's attention",
    "keeps its decoder where llmk can't reach it",
    "transformers can't build",
)
"""What is known of a model only once transformers has made its modules, still without weights."""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", zoo.TYPES)
def test_a_model_type_is_served_or_refused_by_its_mechanism(model_type: str, tmp_path: Path) -> None:
    """There are no weights in the folder, so every refusal precedes loading."""
    folder = zoo.write_tiny(tmp_path / "model", model_type)
    try:
        settings = {"model.path": str(folder), "model.load_format": "dummy"}
        assert boot(load(settings, environ={})).facts.num_parameters < 1e8, "it is not tiny"
        harness = ModelHarness.of(folder, {"model.load_format": "dummy"})
        (logits,) = harness.step([("a", [1, 2, 3])])
        assert logits.shape[0] == 3
        return
    except CheckpointError as error:
        refusal = error
    if isinstance(refusal, UnknownArchitecture):
        assert "can't be served through transformers' modules: " in refusal.message
        assert "unknown kind" not in refusal.message
    else:
        assert any(part in refusal.message for part in LATER), refusal


@pytest.mark.parametrize(
    ("config", "mechanism"),
    [
        ({"model_type": "whisper"}, "encoder-decoder"),
        ({"model_type": "bart"}, "encoder-decoder"),
        ({"model_type": "bert"}, "it is an encoder"),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 18}, "its last 18 layers share the keys and values"),
        ({"model_type": "gemma4", "text_config": {"num_hidden_layers": 2}}, "more than text"),
        ({"model_type": "llama4_text"}, "chunked attention"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked attention"),
        ({"attention_chunk_size": 8192}, "chunked attention"),
        ({"model_type": "deepseek_v32"}, "indexed attention"),
        ({"layer_types": ["indexed_attention"]}, "indexed attention"),
        ({"index_topk": 2048}, "indexed attention"),
        ({"layer_types": ["wavelets"]}, "the unknown kind 'wavelets'"),
        ({"layer_types": ["linear_attention", "conv"]}, "linear attention, .*; of convolutions"),
        ({"model_type": "bloom"}, "ALiBi"),
        ({"use_bidirectional_attention": True}, "not causal"),
    ],
)
def test_the_mechanism_is_named_from_the_config_alone(config: dict[str, object], mechanism: str) -> None:
    checkpoint = Checkpoint(Path("/c"), {**LLAMA, "architectures": ["OtherForCausalLM"], **config})
    with pytest.raises(UnknownArchitecture, match=mechanism):
        describe(checkpoint)


def test_deviations_from_the_config_are_found_without_weights(tmp_path: Path) -> None:
    """OPT has no grouped heads. No tensor is there, and none is missed."""
    folder = zoo.write_tiny(tmp_path / "model", "opt")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 2}))
    with pytest.raises(CheckpointError, match=r"layer 0 .*: key-value heads 4, not 2"):
        ModelHarness.of(folder)
