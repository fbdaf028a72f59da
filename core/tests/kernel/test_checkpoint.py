"""What is read of a checkpoint folder, and what is said of one that can't be read."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from llmk.api import CheckpointError, CheckpointFile, ModelNotFound
from llmk.config import load
from llmk.kernel import first_party
from llmk.kernel.registry import Registry
from llmk.nn.tensor_file import weight_files
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk.planning.choices.checkpoints import choose_checkpoint

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
    assert "if it is the name of a model" in caught.value.hint
    with pytest.raises(ModelNotFound, match="is a file") as caught:
        read_checkpoint(folder / "config.json")
    assert str(folder) in caught.value.hint


def test_files_of_a_format_that_is_not_installed_name_its_wheel(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_party.metadata, "distributions", lambda **of: iter(()))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    settings = load({"model.path": str(tmp_path / "model.gguf")}, environ={})
    with pytest.raises(ModelNotFound, match=r"model\.gguf is a file in no format .* installed \(none\)") as missing:
        choose_checkpoint(Registry([], settings.config.plugins), settings.config)
    with pytest.raises(CheckpointError, match=r"no installed format of checkpoints reads model\.gguf") as caught:
        read_checkpoint(tmp_path)
    assert "pip install llmk-gguf" in missing.value.hint
    assert "pip install llmk-gguf" in caught.value.hint


def test_pickled_weights_are_named(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no safetensors file; it has model\.bin"):
        weight_files(read_checkpoint(folder))


@pytest.mark.parametrize("name", ["/etc/shadow", "../..", "../other/model.safetensors", ".", "", "a\0b", "a\nb"])
def test_an_index_names_files_of_the_folder_alone(folder: Path, name: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(CheckpointError, match=r"index\.json can.t be trusted") as caught:
        read_checkpoint(folder)
    assert ascii(name) in str(caught.value)


@pytest.mark.parametrize("index", [{}, {"weight_map": ["a"]}, {"weight_map": {"x": 3}}, {"weight_map": None}])
def test_an_index_without_a_map_is_refused(folder: Path, index: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="has no valid weight_map"):
        read_checkpoint(folder)


NAMES = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
    "model.safetensors.index.json",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["link", "device", "pipe", "socket", "folder", "loop", "nothing"])
def test_a_file_is_a_regular_one_of_the_folder(
    folder: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what lies elsewhere stays unsaid, even whether it is there."""
    monkeypatch.chdir(folder)  # a socket's path may not be long
    secret = folder.parent / "secret"
    secret.write_text(json.dumps({"a": "swordfish" * 10_007}))
    file = folder / name
    file.unlink(missing_ok=True)
    {
        "link": lambda: file.symlink_to(secret),
        "device": lambda: file.symlink_to("/dev/zero"),
        "pipe": lambda: os.mkfifo(file),
        "socket": lambda: bind(file),
        "folder": file.mkdir,
        "loop": lambda: file.symlink_to(file.name),
        "nothing": lambda: file.symlink_to(folder.parent / "absent"),
    }[kind]()
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder)
    said = str(caught.value)
    assert str(file) in said
    assert not any(part in said for part in ("swordfish", str(secret.stat().st_size), "absent", "zero"))


def bind(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(file.name)


def test_links_within_the_folder_are_followed(folder: Path) -> None:
    (folder / "stored").mkdir()
    (folder / "stored" / "a").write_text('{"eos_token_id": 3}')
    (folder / "generation_config.json").symlink_to("stored/a")
    (folder.parent / "alias").symlink_to(folder)
    assert read_checkpoint(folder.parent / "alias").generation_config == {"eos_token_id": 3}


BLOB = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("repository", "blob", "good"),
    [
        ("models--org--name", BLOB, True),
        ("models--org--name", BLOB + "0" * 24, True),
        ("models--org--name", BLOB[:-1], False),
        ("models--org--name", "passwd", False),
        ("models--org--name", f"deeper/{BLOB}", False),
        ("models--org--name", f"../../models--org--other/blobs/{BLOB}", False),
        ("org--name", BLOB, False),
    ],
)
def test_links_of_a_hub_cache_are_followed_to_its_blobs(tmp_path: Path, repository: str, blob: str, good: bool) -> None:
    snapshot = tmp_path / repository / "snapshots" / "abc"
    file = tmp_path / repository / "blobs" / blob
    for made in (snapshot / "sub", file.parent):
        made.mkdir(parents=True)
    file.write_text(json.dumps(CONFIG))
    (snapshot / "config.json").symlink_to(f"../../blobs/{blob}")
    (snapshot / "sub" / "config.json").symlink_to(f"../../../blobs/{blob}")
    if good:
        assert read_checkpoint(snapshot).architecture == "ToyForCausalLM"
        assert read_checkpoint(snapshot).file("sub/config.json").read_json() == CONFIG
        assert read_checkpoint(snapshot).architecture == "ToyForCausalLM"
    else:
        with pytest.raises(CheckpointError, match=r"config\.json is a link to a file outside"):
            read_checkpoint(snapshot)


def test_a_folder_that_is_exchanged_meanwhile_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The links are resolved first: one that appears after that is refused, on the way as at the end."""
    (folder / "sub").mkdir()
    (folder / "sub" / "a.json").write_text("{}")
    file, elsewhere = CheckpointFile(folder, "sub/a.json"), folder.parent / "elsewhere"
    (folder / "sub").rename(elsewhere)
    (folder / "sub").symlink_to(elsewhere)
    resolved = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path: os.fspath(path) if "sub" in str(path) else resolved(path))
    with pytest.raises(CheckpointError, match=r"a\.json can't be read"):
        file.open()


@pytest.mark.parametrize("name", ["config.json", "chat_template.jinja"])
def test_a_file_of_no_sane_size_is_refused(folder: Path, name: str) -> None:
    with (folder / name).open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(CheckpointError, match=rf"{name} is longer than"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"eos_token_id": "x"}),
        ("config.json", {"eos_token_id": [1, "x"]}),
        ("config.json", {"eos_token_id": 1.0}),
        ("config.json", {"eos_token_id": True}),
        ("config.json", {"eos_token_id": -1}),
        ("config.json", {"eos_token_id": [99999999999999999999999]}),
        ("config.json", {"eos_token_id": {"a": 1}}),
        ("config.json", {"vocab_size": 10, "eos_token_id": 10}),
        ("config.json", {"vocab_size": "10"}),
        ("config.json", {"vocab_size": 10**30}),
        ("config.json", {"architectures": "LlamaForCausalLM"}),
        ("config.json", {"architectures": [["a"]]}),
        ("config.json", {"model_type": ["a"]}),
        ("config.json", {"dtype": ["a"]}),
        ("config.json", {"torch_dtype": {"a": 1}}),
        ("config.json", {"quantization_config": [1]}),
        ("config.json", {"quantization_config": "fp8"}),
        ("generation_config.json", {"eos_token_id": "x"}),
        ("generation_config.json", {"eos_token_id": [99999999999999999999999]}),
        ("generation_config.json", {"temperature": "hot"}),
        ("generation_config.json", {"top_k": 1.5}),
        ("generation_config.json", {"do_sample": "false"}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": "a"}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1" * 5000: {"content": "a"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": ["a"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": {"content": 3}}}),
        ("tokenizer_config.json", {"chat_template": 3}),
        ("tokenizer_config.json", {"chat_template": [{"name": "default"}]}),
        ("tokenizer_config.json", {"chat_template": ["a"]}),
        ("tokenizer_config.json", {"eos_token": ["a"]}),
    ],
)
def test_a_field_of_another_type_or_range_is_named(folder: Path, file: str, content: dict[str, object]) -> None:
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder)
    *_, key = content
    assert f"{folder / file} has {key} = " in str(caught.value)


def test_what_config_says_of_the_vocabulary_bounds_the_generation_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"vocab_size": 10}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 10]}')
    with pytest.raises(CheckpointError, match="a token from 0 to 9"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "\x00",
        '{"a":' * 100_000,
        '{"a":' * 100 + "1" + "}" * 100,
        '{"a": [' + "9" * 5000 + "]}",
        r'{"\ud800": 1}',
        r'{"a": ["\udfff"]}',
    ],
    ids=["cut", "list", "zero byte", "too deep to parse", "deep", "long number", "half a key", "half a text"],
)
def test_bad_json_names_the_file(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_checkpoint(folder)


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_checkpoint(tmp_path)
