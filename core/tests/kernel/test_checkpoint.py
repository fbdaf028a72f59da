"""What is read of a checkpoint folder, and what is said of one that can't be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmk.api import CheckpointError, ModelNotFound
from llmk.kernel.checkpoint import read_checkpoint

CONFIG = {"architectures": ["ToyForCausalLM", "Other"], "quantization_config": {"quant_method": "shrink"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def weights(folder: Path, *names: str) -> None:
    for size, name in enumerate(names, 1):
        (folder / name).write_bytes(b"x" * size)


def test_small_files_are_read_and_absent_ones_are_empty(folder: Path) -> None:
    checkpoint = read_checkpoint(str(folder))
    assert checkpoint.architecture == "ToyForCausalLM"
    assert checkpoint.quantization == {"quant_method": "shrink"}
    assert (checkpoint.generation_config, checkpoint.tokenizer_config) == ({}, {})
    assert (checkpoint.chat_template, checkpoint.weight_files, checkpoint.weight_bytes) == (None, (), 0)
    (folder / "generation_config.json").write_text('{"eos_token_id": 3}')
    assert read_checkpoint(folder).generation_config == {"eos_token_id": 3}


@pytest.mark.parametrize(
    ("config", "template"),
    [
        ({"chat_template": "one"}, "one"),
        ({"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "two"}]}, "two"),
        ({"chat_template": [{"name": "tools", "template": "t"}]}, None),
        ({}, None),
    ],
)
def test_chat_template_of_the_tokenizers_config(folder: Path, config: dict[str, object], template: str | None) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_checkpoint(folder).chat_template == template
    (folder / "chat_template.jinja").write_text("file")
    assert read_checkpoint(folder).chat_template == "file"


def test_weight_files_are_naturally_sorted(folder: Path) -> None:
    weights(
        folder,
        "model-10-of-11.safetensors",
        "model-2-of-11.safetensors",
        "model-1-of-11.safetensors",
        "extra.safetensors",
    )
    checkpoint = read_checkpoint(folder)
    assert [file.name.split("-")[1] for file in checkpoint.weight_files] == ["1", "2", "10"]
    assert checkpoint.weight_bytes == 6


def test_index_decides_even_where_files_are_missing(folder: Path) -> None:
    weights(folder, "b.safetensors", "c.safetensors")
    index = {"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = read_checkpoint(folder)
    assert [file.name for file in checkpoint.weight_files] == ["a.safetensors", "b.safetensors"]
    assert checkpoint.weight_bytes == 1


def test_weights_of_any_name_are_found(folder: Path) -> None:
    weights(folder, "weights.safetensors")
    assert [file.name for file in read_checkpoint(folder).weight_files] == ["weights.safetensors"]


def test_missing_folder(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ModelNotFound, match="there is no checkpoint folder"):
        read_checkpoint(tmp_path / "absent")
    with pytest.raises(ModelNotFound) as caught:
        read_checkpoint("some-org/some-model")
    assert "hf download some-org/some-model" in caught.value.hint
    with pytest.raises(ModelNotFound, match="is a file") as caught:
        read_checkpoint(folder / "config.json")
    assert str(folder) in caught.value.hint


@pytest.mark.parametrize("text", ["{", "[1]", "\x00"])
def test_bad_json_names_the_file(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_checkpoint(folder)


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_checkpoint(tmp_path)
