"""A vendor's accelerator that llmk knows nothing of: installed from its wheel, chosen, and served on, with no host wait
and no fallback that isn't told of here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accelerator import SOURCE
from scratch import Environment
from served import Served

pytestmark = pytest.mark.slow_file

REFERENCE = '[select.op]\navoid = ["nova.add_rms_norm"]\n'
CPU = '[platform]\nuse = "cpu"\n'
TOKENS = 24
TEXT = "What is the capital of France? Answer in one sentence, please."
STEPS = f"""
import json, sys
from llmk import LLM, SamplingParams
from llmk.engine.wire.request import EngineRequest

def counted():
    nova = sys.modules.get("llmk_nova.device")
    found = {{}} if nova is None else {{name: dict(counts) for name, counts in nova.counted().items()}}
    if nova is not None:
        nova.reset_counts()
    return found

with LLM(dtype="float32") as llm:
    loading, core = counted(), llm._core
    params = SamplingParams(temperature=0, max_tokens={TOKENS}, ignore_eos=True)
    for number, text in enumerate(["What is 12 plus 30?", {TEXT!r}, "Hello"]):
        ids = llm.tokenizer.encode(text)
        core.add(EngineRequest(id=str(number), prompt_token_ids=ids, params=params))
    tokens, steps = {{}}, []
    while core.has_work:
        for output in core.step().outputs:
            tokens.setdefault(output.id, []).extend(output.token_ids)
        steps.append(counted())
    text = llm.tokenizer.decode(tokens["1"])
facts = llm.boot.plan.platform.label
print(json.dumps({{"platform": facts, "tokens": tokens, "text": text, "loading": loading, "steps": steps}}))
"""


@pytest.fixture(scope="module")
def environment(
    make_environment: Callable[..., Environment], wheels: dict[str, Path], accelerator_wheel: Path
) -> Environment:
    return make_environment(*wheels.values(), accelerator_wheel)


@pytest.fixture(scope="module")
def generate(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Greedy tokens of the demo model in float32 under a configuration, and what was counted at each step; once."""
    done: dict[str, Any] = {}

    def run(config: str) -> Any:
        if config not in done:
            folder = tmp_path_factory.mktemp("run")
            (folder / "llmk.toml").write_text(config)
            finished = environment.run(STEPS, cwd=folder)
            assert finished.returncode == 0, finished.stderr
            done[config] = json.loads(finished.stdout.splitlines()[-1])
        return done[config]

    return run


@pytest.mark.slow
def test_its_own_tests_pass_where_it_is_installed(environment: Environment, tmp_path: Path) -> None:
    options = ["-q", "-c", os.devnull, "-p", "no:cacheprovider", "--noconftest", str(SOURCE / "tests")]
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    devices = {"NOVA_VISIBLE_DEVICES": "0,1", "NOVA_MEMORY_BYTES": str(64 << 20), "PYTHONDONTWRITEBYTECODE": "1"}
    done = environment.run(code, *options, cwd=tmp_path, **devices)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"^(\d+) passed in", done.stdout, re.MULTILINE)
    assert passed, f"nothing is left out:\n{done.stdout}"
    assert int(passed[1]) >= 30


def test_it_is_listed_and_chosen(environment: Environment, tmp_path: Path) -> None:
    listed = environment.llmk("plugins", cwd=tmp_path).stdout
    assert re.search(r"^nova +llmk-nova 1\.0 +active +config_defaults, ops, platforms *$", listed, re.MULTILINE), listed
    shown = environment.llmk("explain", cwd=tmp_path).stdout
    assert "nova/n1 (nova.nova): Nova N1 (simulated)" in shown
    assert re.search(r"^add_rms_norm +nova\.add_rms_norm +llmk-nova 1\.0 +native +tier native *$", shown, re.MULTILINE)
    assert "memory of a device: 4.0 GiB" in shown


def test_without_a_device_the_processor_serves(environment: Environment, tmp_path: Path) -> None:
    shown = environment.llmk("explain", cwd=tmp_path, NOVA_VISIBLE_DEVICES="")
    assert shown.stdout.startswith("platform  cpu/")
    (tmp_path / "llmk.toml").write_text('[platform]\nuse = "nova"\n')
    refused = environment.llmk("explain", cwd=tmp_path, NOVA_VISIBLE_DEVICES="")
    assert refused.returncode in (3, 4)
    assert "no visible device: wanted a visible nova, found NOVA_VISIBLE_DEVICES=''" in refused.stderr
    planned = environment.llmk("explain", "--on", "nova/n1", cwd=tmp_path, NOVA_VISIBLE_DEVICES="")
    assert planned.stdout.startswith("platform  nova/n1"), planned.stderr


@pytest.mark.slow
def test_reference_kernels_give_the_processors_tokens(generate: Callable[[str], Any]) -> None:
    found, expected = generate(REFERENCE), generate(CPU)
    assert (found["platform"], expected["platform"].partition("/")[0]) == ("nova/n1", "cpu")
    assert found["tokens"] == expected["tokens"]
    assert [len(tokens) for tokens in found["tokens"].values()] == [TOKENS] * 3
    assert not any("nova::add_rms_norm" in step["launches"] for step in found["steps"])


@pytest.mark.slow
@pytest.mark.parametrize("config", [REFERENCE, ""], ids=["reference", "own"])
def test_what_a_decode_step_makes_the_host_wait_for(generate: Callable[[str], Any], config: str) -> None:
    """``"event"`` is the sampled tokens, which come through pinned memory. ``"copy from host"`` is the reference
    attention, which uploads how it groups the requests from pageable memory: once for those that decode, and once for
    each prompt."""
    prefill, *decode, leaving = generate(config)["steps"]
    assert prefill["waits"] == {"copy from host": 3, "event": 1}
    assert len(decode) == TOKENS - 1
    assert [step["waits"] for step in decode] == [{"copy from host": 1, "event": 1}] * len(decode)
    assert leaving == {"waits": {}, "fallbacks": {}, "launches": {}}, "requests that ended leave the batch"


@pytest.mark.slow
@pytest.mark.parametrize("config", [REFERENCE, ""], ids=["reference", "own"])
def test_nothing_falls_back_to_the_host(generate: Callable[[str], Any], config: str) -> None:
    found = generate(config)
    assert not any(counts["fallbacks"] for counts in (found["loading"], *found["steps"]))


@pytest.mark.slow
def test_its_own_kernel_wins_and_gives_the_same_tokens(
    generate: Callable[[str], Any], environment: Environment, tmp_path: Path
) -> None:
    plan = json.loads(environment.llmk("explain", "--json", cwd=tmp_path).stdout)
    (choice,) = (choice for choice in plan["choices"] if choice["site"] == "add_rms_norm")
    (piece,) = choice["pieces"]
    assert (piece["id"], piece["distribution"], piece["why"]) == ("nova.add_rms_norm", "llmk-nova", "tier native")
    found = generate("")
    assert found["tokens"] == generate(CPU)["tokens"]
    layers = 8
    launches = [step["launches"].get("nova::add_rms_norm") for step in found["steps"]]
    assert launches == [*[2 * layers] * TOKENS, None], "all norms but the first add a residual"


def test_the_server_runs_on_it(accelerator_site: Path, generate: Callable[[str], Any], tmp_path: Path) -> None:
    """From a folder on the path: what an editable install is, too."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(accelerator_site)])
    server = Served(tmp_path / "log", "--port", "0", "--model.dtype", "float32", env={"PYTHONPATH": path})
    try:
        assert json.loads(server.get("/v1/plan")[1])["platform"]["name"] == "nova"
        body = {"model": server.model, "prompt": TEXT, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        status, answer = server.post("/v1/completions", body)
    finally:
        server.close()
    assert status == 200, answer
    assert answer["choices"][0]["text"] == generate(CPU)["text"]
