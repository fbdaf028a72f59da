"""What a rank's machine is compared by with the engine's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmk.api import Checkpoint
from llmk.config import load
from llmk.engine.processes.ranks.checks import Expected, platform_problems
from llmk.planning.boot import boot
from llmk_testing.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny", "llama")
    return boot(load({"model.path": str(folder)}, environ={}))


def test_this_machine_is_like_itself(booted: Any) -> None:
    expected = Expected.by(booted.checkpoint)
    assert list(expected.problems()) == []
    assert list(platform_problems(booted)) == []
    assert {"llmk-core", "llmk-models", "llmk-backends-cpu", "python", "torch"} <= expected.wheels.keys()


def test_versions_that_differ_are_named(booted: Any) -> None:
    expected = Expected.by(booted.checkpoint)
    wheels = {**expected.wheels, "torch": "1.0", "llmk-more": "2.0"}
    del wheels["llmk-models"]
    expected.wheels, found = wheels, Expected.by(booted.checkpoint).wheels
    assert list(expected.problems()) == [
        f"llmk-models is {found['llmk-models']}, not missing",
        "llmk-more is missing, not 2.0",
        f"torch is {found['torch']}, not 1.0",
    ]


def cut(folder: Path) -> str:
    file = folder / "model.safetensors"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-1])
    return f"{file} has {size - 1:,} bytes, not {size:,}"


def drop(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    return f"there is no {folder / 'model.safetensors'}"


def change(folder: Path) -> str:
    (folder / "config.json").write_text("{}")
    return f"{folder / 'config.json'} is another"


def train(folder: Path) -> str:
    write_checkpoint(folder, "llama", seed=1)
    return f"{folder / 'model.safetensors'} has other contents, such as those of another version of the model"


def remove(folder: Path) -> str:
    folder.rename(folder.with_name("elsewhere"))
    return f"there is no {folder}"


@pytest.mark.parametrize("spoil", [cut, drop, change, train, remove])
def test_a_model_that_differs_is_named(spoil: Callable[[Path], str], tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "tiny", "llama")
    expected = Expected.by(boot(load({"model.path": str(folder)}, environ={})).checkpoint)
    said = spoil(folder)
    assert list(expected.problems()) == [said]


def test_a_model_that_is_one_file_is_compared_too(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(1 << 20))
    expected = Expected.by(Checkpoint(path=file, config={}))
    assert list(expected.problems()) == []
    file.write_bytes(bytes(1 << 19) + b"1" + bytes((1 << 19) - 1))
    assert list(expected.problems()) == [f"{file} has other contents, such as those of another version of the model"]
    file.write_bytes(bytes(1 << 19))
    assert list(expected.problems()) == [f"{file} has 524,288 bytes, not 1,048,576"]


def test_another_device_is_named(booted: Any) -> None:
    facts = booted.platform_facts
    other = replace(booted, platform_facts=replace(facts, arch="m88k"))
    assert list(platform_problems(other)) == [f"the device is {facts.label}, not cpu/m88k"]
    able = replace(booted, platform_facts=replace(facts, features=facts.features | {"magic"}))
    assert list(platform_problems(able)) == ["the device lacks magic, which the plan may need"]
