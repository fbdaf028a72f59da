"""Where the shares of steps by token count come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from llmk.api import ConfigError
from llmk.config import load
from llmk.config.traffic import load_traffic


def test_shares_add_up_and_say_where_they_are_from() -> None:
    usual, stated = load_traffic(""), load_traffic({512: 1, 1: 3})
    assert (round(sum(usual.shares.values()), 9), usual.source) == (1.0, "the default mix")
    assert (dict(stated.shares), stated.source) == ({1: 0.75, 512: 0.25}, "platform.traffic")
    assert str(stated) == "steps of 1 (75%), 512 (25%) tokens, from platform.traffic"


def test_a_table_reaches_the_configuration_by_flag_and_file(tmp_path: Path) -> None:
    (tmp_path / "llmk.toml").write_text("[platform.traffic]\n1 = 9\n512 = 1\n")
    for settings in (load({}, environ={}, cwd=tmp_path), load({"platform.traffic": '{"1": 9, "512": 1}'}, environ={})):
        assert settings.config.platform.traffic == {1: 9, 512: 1}
    for wrong in ('{"0": 1}', '{"1": 0}', '{"few": 1}'):
        with pytest.raises(ConfigError):
            load({"platform.traffic": wrong}, environ={})


def test_saved_metrics_of_a_server_are_a_profile(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    steps = Histogram("llmk_iteration_tokens", "x", ["model_name"], buckets=(1, 8, 64), registry=registry)
    for tokens in (1, 1, 1, 5, 64, 65, 4000, 9000):
        steps.labels("m").observe(tokens)
    file = tmp_path / "metrics.txt"
    file.write_bytes(generate_latest(registry))
    found = load_traffic(str(file))
    assert (dict(found.shares), found.source) == ({1: 3 / 8, 8: 1 / 8, 64: 1 / 8, 128: 3 / 8}, str(file))


@pytest.mark.parametrize("text", [None, "", 'llmk_iteration_tokens_bucket{le="1"} 0.0\n', "\x00\xff"])
def test_a_file_without_steps_is_refused_and_says_how_to_get_one(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "metrics.txt"
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"platform\.traffic") as caught:
        load_traffic(str(file))
    assert "/metrics" in caught.value.hint
