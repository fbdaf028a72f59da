"""``llmk explain --nodes``: how a model can be spread over machines that are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmk.api import ConfigError
from llmk.cli.main import main
from llmk.config import load
from llmk.planning.boot import boot
from llmk.planning.spreads import Machines, Spread, recommended, spreads

LARGE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
"""131 GiB of weights; 40 GiB of cache for its longest request."""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    return tmp_path


def explained(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["explain", *args, "--model.load-format", "dummy"]) == 0
    return capsys.readouterr().out


def found(large: Path, machines: Machines, on: str) -> list[Spread]:
    settings = load({"model.path": str(large), "model.load_format": "dummy"}, environ={})
    return list(spreads(settings, machines, on))


def test_what_each_spread_holds(large: Path) -> None:
    """Twice the devices hold half the weights each, and what fits none is not counted."""
    all_of = {(each.tensor, each.pipeline): each for each in found(large, Machines(2, 8), "cuda/h200")}
    assert set(all_of) == {(t, p) for t in (1, 2, 4, 8) for p in (1, 2, 4, 8, 16) if t * p <= 16}
    assert all_of[1, 1].num_tokens == 0
    one, two = (all_of[shape].memory for shape in ((1, 1), (2, 1)))
    assert one is not None
    assert two is not None
    assert two.weights == pytest.approx(one.weights / 2, rel=0.01)
    assert [(each.nodes, each.replicas) for shape in ((2, 1), (8, 1), (8, 2)) if (each := all_of[shape])] == [
        (1, 8),
        (1, 2),
        (2, 1),
    ]


def test_what_is_recommended(large: Path) -> None:
    """A full batch has as many requests as the platform's defaults say."""
    booted = boot(load({"model.path": str(large)}, environ={}), on="cuda/h200", verify=False, outline=True)
    able = found(large, Machines(4, 8), "cuda/h200")
    best = {target: recommended(able, target, booted)[0] for target in ("throughput", "latency", "context")}
    shapes = {target: spread and (spread.tensor, spread.pipeline) for target, spread in best.items()}
    assert shapes == {"throughput": (4, 1), "latency": (8, 1), "context": (8, 4)}
    none, why = recommended(found(large, Machines(2, 4), "cuda/a10"), "latency", booted)
    assert none is None
    assert "does not fit" in why


def test_the_table(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = explained(capsys, str(large), "--nodes", "2x8", "--on", "cuda/h200", "--target", "latency")
    table = said[said.index("2 nodes of 8 cuda/sm_90, 140.4 GiB a device") :].splitlines()
    assert table[3].split() == ["1", "x", "1", "1", "1/8", "16", "131.4", "GiB", "does", "not", "fit"]
    assert any(line.startswith("8 x 1 *") for line in table)
    assert "recommended: --parallel.tensor 8 --parallel.pipeline 1 (for latency: " in said
    assert said.rstrip().endswith(
        "8 free devices for each replica on it, the same wheels, and the model at the same path"
    )


def test_as_data(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine with accelerators has eight where nothing is said."""
    data: Any = json.loads(explained(capsys, str(large), "--nodes", "2", "--on", "cuda/h200", "--json"))
    assert data["recommended"] == {"tensor": 4, "pipeline": 1}
    assert len(data["spreads"]) == 14
    assert {"tensor", "pipeline", "devices", "nodes", "replicas", "memory"} == set(data["spreads"][0])


def test_processors_are_one_device_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    said = explained(capsys, "--nodes", "2", "--platform.use", "cpu")
    assert "2 nodes of 1 cpu/" in said
    assert "1 x 2" in said


@pytest.mark.parametrize("text", ["0", "x8", "4x0", "many", "4x", "-1"])
def test_what_is_not_a_number_of_nodes(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="is not a number of nodes"):
        Machines.of(text, load(environ={}), None)
