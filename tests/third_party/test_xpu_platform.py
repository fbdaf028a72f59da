"""The platform of Intel GPUs, from its wheel, on an accelerator that takes the place of one: its run-time half does all
that it would do up to the device."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from installed import install
from scratch import LLMK, run
from served import Served

PLATFORM = """
import llmk_nova.device
from llmk_xpu.platform import XPUPlatform

class Relabelled(XPUPlatform):
    pass
"""
SPECS = """
from dataclasses import replace
from llmk.api import OK, PlatformSpec, Probe, hookimpl
from llmk_xpu.architectures import KNOWN

# The chip is another: it has no graphs, Triton does not compile for it, and it runs what it is issued at once.
FACTS = replace(
    KNOWN[0], device_type="nova", features=KNOWN[0].features - {"asynchronous", "graphs", "triton"},
    dtypes=("float32", "bfloat16"), memory_bytes=4 << 30,
)

def probe(host):
    return Probe(OK, FACTS)

@hookimpl
def llmk_platforms():
    return [PlatformSpec(
        id="relabelled.xpu", name="xpu", implementation="relabelled_platform:Relabelled", rank=200, probe=probe,
        vouches=("llmk-backends-xpu",),
    )]
"""
PROMPT = {"prompt": "What is the capital of France?", "temperature": 0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture
def site(accelerator_site: Path, tmp_path: Path) -> str:
    """What makes the accelerator an Intel GPU, on the path."""
    installed = install(tmp_path / "site", "relabelled", SPECS, relabelled_platform=PLATFORM)
    return os.pathsep.join(filter(None, [str(installed), str(accelerator_site), os.environ.get("PYTHONPATH")]))


@pytest.mark.slow
def test_it_serves_the_demo_model_with_the_processors_tokens(site: str, tmp_path: Path) -> None:
    texts = []
    for number, chosen in enumerate(("relabelled.xpu", "cpu")):
        folder = tmp_path / f"server{number}"
        folder.mkdir()
        options = ("--port", "0", "--model.dtype", "float32", "--platform.use", chosen)
        server = Served(folder / "log", *options, env={"PYTHONPATH": site})
        try:
            plan: dict[str, Any] = json.loads(server.get("/v1/plan")[1])
            status, answer = server.post("/v1/completions", {"model": server.model, **PROMPT})
        finally:
            server.close()
        assert status == 200, answer
        used = {
            kind: {piece["id"] for choice in plan["choices"] if choice["kind"] == kind for piece in choice["pieces"]}
            for kind in ("linear", "attention")
        }
        own = {"linear": {"xpu.linear"}, "attention": {"xpu.attention"}}
        assert (plan["platform"]["arch"] == "pvc") == (used == own) == (chosen == "relabelled.xpu")
        texts.append(answer["choices"][0]["text"])
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_it_conforms(site: str, tmp_path: Path) -> None:
    card = tmp_path / "card.json"
    command = [sys.executable, "-c", LLMK, "plugins", "check", "relabelled", "--kind", "platform", "--json", str(card)]
    done = run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": site, "OMP_NUM_THREADS": "1"})
    assert card.exists(), done.stdout + done.stderr
    results = json.loads(card.read_text())["results"]
    assert {result["outcome"] for result in results} <= {"passed", "skipped"}, done.stdout
    assert any(result["outcome"] == "passed" and "memory" in result["name"] for result in results), done.stdout
