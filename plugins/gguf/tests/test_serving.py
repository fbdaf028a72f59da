"""The demo model as a GGUF file, served end to end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf_files import write_demo
from served import LLMK, Served

from llmk import LLM, SamplingParams
from llmk.api import UnknownArchitecture
from llmk.config import load
from llmk.planning.boot import boot
from llmk_models.specs import DEMO

PROMPTS = ["What is the capital of France?", "What is 12 plus 30?", "Name three colors, and say why."]
GREEDY = SamplingParams(temperature=0, max_tokens=48)


def answers(path: Path, **options: object) -> list[tuple[int, ...]]:
    messages = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    with LLM(str(path), max_model_len=512, **options) as llm:  # type: ignore[arg-type]
        return [tuple(result.outputs[0].token_ids) for result in llm.chat(messages, GREEDY, use_tqdm=False)]


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    return answers(DEMO, dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_chats_have_the_checkpoints_tokens(tmp_path: Path, expected: list[tuple[int, ...]], kind: str) -> None:
    """The weights are bfloat16, which F32 holds, and F16 but for numbers that are nearly zero."""
    assert answers(write_demo(DEMO, tmp_path / "model.gguf", kind), dtype="float32") == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0"])
def test_packed_weights_give_the_same_tokens(tmp_path: Path, expected: list[tuple[int, ...]], kind: str) -> None:
    """Those of the checkpoint go other ways at times, since the model is small: benchmarks/quantization_loss.py says
    how much is lost."""
    file = write_demo(DEMO, tmp_path / "model.gguf", kind)
    plain, packed = (
        answers(file, dtype="float32", plugin={"gguf": {"weights": weights}}) for weights in ("plain", "packed")
    )
    assert packed == plain
    assert plain[0][:3] == expected[0][:3]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    server = Served(folder / "log", str(write_demo(DEMO, folder / "demo-Q8_0.gguf", "Q8_0")), "--port", "0")
    yield server
    server.close()


@pytest.mark.slow
def test_a_file_is_served(server: Served) -> None:
    assert server.model == "demo-Q8_0.gguf"
    messages = [{"role": "user", "content": PROMPTS[0]}]
    status, body = server.post("/v1/chat/completions", {"model": server.model, "messages": messages, "temperature": 0})
    assert status == 200
    assert "Paris" in body["choices"][0]["message"]["content"]


@pytest.mark.slow
def test_explain_shows_what_is_kept_packed(tmp_path: Path) -> None:
    file = write_demo(DEMO, tmp_path / "model.gguf", "Q8_0")

    def explained(weights: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "LLMK__PLUGIN__GGUF__WEIGHTS": weights}
        return subprocess.run([*LLMK, "explain", str(file)], capture_output=True, text=True, check=False, env=environ)

    done = explained("packed")
    assert done.returncode == 0, done.stderr
    assert "gguf.int8_group" in done.stdout
    assert "gguf.int8_group" not in explained("plain").stdout
    wrong = explained("squeezed")
    assert wrong.returncode == 2
    assert "plugin.gguf.weights" in wrong.stderr


def test_transformers_modules_are_refused(tmp_path: Path) -> None:
    file = write_demo(DEMO, tmp_path / "model.gguf", "F16")
    settings = load({"model.path": str(file), "select.model.use": "models.transformers"}, environ={})
    with pytest.raises(UnknownArchitecture, match=r"model\.gguf can't be served through transformers' modules"):
        boot(settings, verify=False)


@pytest.mark.hook("llmk_config_defaults")
@pytest.mark.parametrize(
    ("on", "options", "expected"),
    [
        ("cpu/x86_64-avx2", {}, {"qkv": "int8_group", "lm_head": "int8_group"}),
        ("cpu/x86_64-avx2", {"model.dtype": "float32"}, {"qkv": "plain", "lm_head": "plain"}),
        ("cpu/x86_64-avx2", {"plugin.gguf.weights": "plain"}, {"qkv": "plain", "lm_head": "plain"}),
        ("cpu/x86_64", {}, {"qkv": "plain", "lm_head": "plain"}),
    ],
)
def test_weights_stay_packed_by_default_where_that_is_fast(
    tmp_path: Path, on: str, options: dict[str, str], expected: dict[str, str]
) -> None:
    file = write_demo(DEMO, tmp_path / "model.gguf", "Q8_0")
    booted = boot(load({"model.path": str(file), **options}, environ={}), on=on, verify=False)
    formats = {site.site: site.weight_format for site in booted.facts.linear}
    assert {site: formats[site] for site in expected} == expected
    if expected["qkv"] != "plain":
        assert booted.settings.origin("plugin.gguf.weights").detail.startswith("gguf: cpu/x86_64-avx2 has kernels")
