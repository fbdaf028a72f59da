"""Files of measurements: what is kept, found again and left out."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from llmk.api import ConfigError, LinearQuery, MoEQuery, OpQuery, PlatformFacts, TunedConfigs
from llmk.config.measurements import NOTHING, Measured, Measurements, folder_of, key_of, load_measurements
from llmk.config.measurements import save_measurements as save

BOX = PlatformFacts(name="box", arch="b_2", device_type="cpu", device_name="Acme Box-9000 (80 GB)")
UP = LinearQuery(platform=BOX, site="up", dtype="bfloat16", in_features=64, out_features=128)
TIMES = Measured("2026-11-21", {1: {"a.fast": 1.5, "a.slow": 3.0}, 8: {"a.fast": 2.0}})


def load(folder: Path, platform: PlatformFacts = BOX) -> tuple[Measurements, list[str]]:
    return load_measurements(str(folder), platform, ())


def test_what_is_kept_is_found_by_all_that_look_alike(tmp_path: Path) -> None:
    path = save(str(tmp_path), BOX, Measurements({key_of(UP): TIMES}), {"torch": version("torch")})
    assert path == tmp_path / "box-b_2-acme-box-9000-80-gb.json"
    found, warnings = load(tmp_path)
    assert warnings == []
    assert found.of(UP) == found.of(replace(UP, site="down", platform=replace(BOX, num_devices=4))) == TIMES
    for other in (replace(UP, dtype="float16"), replace(UP, in_features=65), replace(UP, deterministic=True)):
        assert found.of(other) is NOTHING
    assert load(tmp_path, replace(BOX, device_name="Acme Box-8000"))[0] == {}


def test_ops_are_distinguished_by_their_facts_and_neighbours() -> None:
    op = OpQuery(platform=BOX, site="s", dtype="bfloat16", op="norm", facts={"size": 64}, linear="a.fast")
    others = (replace(op, op="act"), replace(op, facts={"size": 65}), replace(op, linear="a.slow"))
    assert len({key_of(each) for each in (op, replace(op, site="t"), *others)}) == 4


def test_a_later_field_is_part_of_the_key_where_it_is_set() -> None:
    sizes = {"num_experts": 4, "top_k": 2, "hidden_size": 8, "intermediate_size": 8}
    query = MoEQuery(platform=BOX, site="moe", dtype="bfloat16", **sizes)
    assert "activation_limit" not in json.loads(key_of(query))
    assert json.loads(key_of(replace(query, activation_limit=7.0)))["activation_limit"] == 7.0
    assert {"activation", "renormalize", "deterministic", "weight_format"} <= json.loads(key_of(query)).keys()


def test_new_measurements_join_old_ones_and_replace_those_of_their_query(tmp_path: Path) -> None:
    save(str(tmp_path), BOX, Measurements({key_of(UP): TIMES}), {})
    down, newer = replace(UP, in_features=128), Measured("2026-11-22", {1: {"a.slow": 1.0}})
    save(str(tmp_path), BOX, Measurements({key_of(down): TIMES}), {})
    save(str(tmp_path), BOX, Measurements({key_of(UP): newer}), {})
    found, _ = load(tmp_path)
    assert (found.of(UP), found.of(down)) == (newer, TIMES)


def test_measurements_of_other_versions_are_left_out_and_replaced(tmp_path: Path) -> None:
    save(str(tmp_path), BOX, Measurements({key_of(UP): TIMES}), {"pydantic": "0.1"})
    found, (warning,) = load(tmp_path)
    assert found == {}
    assert f"of pydantic 0.1, installed is {version('pydantic')}; llmk tune measures again" in warning
    other = replace(UP, in_features=128)
    save(str(tmp_path), BOX, Measurements({key_of(other): TIMES}), {"not-installed": "1.0"})
    found, warnings = load(tmp_path)
    assert (list(found), warnings) == ([key_of(other)], [])


@pytest.mark.parametrize("text", ["{", '{"device": "x", "versions": {}}'])
def test_a_damaged_file_is_reported_and_left_out(tmp_path: Path, text: str) -> None:
    path = save(str(tmp_path), BOX, Measurements(), {})
    path.write_text(text)
    found, (warning,) = load(tmp_path)
    assert found == {}
    assert str(path) in warning


@pytest.mark.parametrize("kind", ["pipe", "device", "utf-16"])
def test_a_file_that_is_not_text_is_reported_and_left_out(tmp_path: Path, kind: str) -> None:
    path = save(str(tmp_path), BOX, Measurements(), {})
    path.unlink()
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "utf-16": lambda: path.write_text("{}", encoding="utf-16"),
    }[kind]()
    found, (warning,) = load(tmp_path)
    assert found == {}
    assert str(path) in warning


def test_what_can_not_be_written_is_named(tmp_path: Path) -> None:
    path = save(str(tmp_path), BOX, Measurements(), {})
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"measurements can't be written to .*: No space left"):
        save(str(tmp_path), BOX, Measurements(), {})


def test_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder_of("") == tmp_path / "llmk/measurements"
    assert folder_of("here") == Path("here")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert folder_of("") == Path.home() / ".cache/llmk/measurements"
    assert load_measurements("none", BOX, [TunedConfigs(id="a.m", package="not_there", folder="x")]) == ({}, [])
    assert load_measurements(str(tmp_path), BOX, [TunedConfigs(id="a.m", package="not_there", folder="x")]) == ({}, [])
