"""What ``llmk plugins new`` writes, of every kind: it builds, installs, passes its conformance and serves as it is."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scratch import Environment, build_wheels
from served import Served

from llmk.api import ConfigError
from llmk.cli.main import main
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.kinds import KINDS
from llmk_testing.new import Project
from llmk_testing.suites import SUITES

pytestmark = pytest.mark.slow_file

PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
OPTIONS = ("-q", "--import-mode=importlib", "-p", "no:cacheprovider")
LEAST_CASES, LEAST_OF_THE_WHEEL = 10, 8
"""Of kinds that have a suite, and of those that the wheel's cases alone look at."""
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GENERATE = """
import json, sys
from llmk import LLM
with LLM(sys.argv[1], dtype="float32", **json.loads(sys.argv[2])) as llm:
    (output,) = llm.generate([[5, 9, 11]], use_tqdm=False)
assert output.outputs[0].token_ids
"""


def named(kind: str) -> str:
    return f"llmk-try-{kind}"


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a distribution of every kind."""
    folder = tmp_path_factory.mktemp("author")
    for kind in KINDS:
        target = folder / named(kind)
        assert main(["plugins", "new", named(kind), "--kind", kind, "--folder", str(target)]) == 0
    return folder


@pytest.fixture(scope="module")
def environment(
    author: Path,
    make_environment: Callable[..., Environment],
    wheels: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Environment:
    """An environment with all of them, beside the core, a platform and our models."""
    built = build_wheels({kind: author / named(kind) for kind in KINDS}, tmp_path_factory.mktemp("built"))
    return make_environment(
        *(wheels[name] for name in ("core", "models", "backends-cpu", "plugins-testing")), *built.values()
    )


@pytest.mark.slow
def test_all_are_active(environment: Environment, author: Path) -> None:
    listed = environment.llmk("plugins", "--json", cwd=author)
    states = {plugin["distribution"]: plugin["state"] for plugin in json.loads(listed.stdout)}
    assert {named(kind): states[named(kind)] for kind in KINDS} == dict.fromkeys(map(named, KINDS), "active")
    options = ("--kind", "wheel", "--only", "takes part")
    checked = environment.llmk("plugins", "check", *map(named, KINDS), *options, cwd=author)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.rstrip().endswith(f"green: {len(KINDS)} passed, 0 failed, 0 skipped")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_its_own_tests_pass(kind: str, author: Path, environment: Environment, tmp_path: Path) -> None:
    """The platform's on itself, all others on ours."""
    has_suite = kind.replace("-", "_") in SUITES
    assert has_suite == (kind not in ("config", "tuned-configs"))
    options: tuple[str, ...] = ()
    if kind == "platform":
        assert Project(named(kind), kind).check.endswith("--platform try-platform")
        options = ("--llmk-platform", "try-platform")
    card, tests = tmp_path / "card.json", str(author / named(kind) / "tests")
    done = environment.run(PYTEST, *OPTIONS, "--llmk-card", str(card), *options, tests, cwd=author)
    assert done.returncode == 0, done.stdout[-6000:]
    counts = Counter(result["outcome"] for result in json.loads(card.read_text())["results"])
    assert counts["passed"] >= (LEAST_CASES if has_suite else LEAST_OF_THE_WHEEL)
    assert not counts["failed"]
    assert counts["skipped"] <= counts["passed"] / 2


def flags(*kinds: str) -> dict[str, str]:
    """The configuration by which each serves."""
    told = ((KINDS[kind], Project(named(kind), kind)) for kind in kinds)
    return {f"{kind.section}.{kind.key}": project.rename(kind.value) for kind, project in told}


def test_a_server_of_their_parts_alone(environment: Environment, tmp_path: Path) -> None:
    """Platform, model, attention, products, a norm and parsers of as many strangers, by the lines that were printed."""
    checkpoint = write_checkpoint(tmp_path / "tiny", "seed_oss", head_dim=16)
    parts = flags("platform", "attention", "linear", "op", "reasoning-parser", "tool-parser", "policy", "stat-logger")
    parts |= flags("speculator")
    chosen = [f"--{path}={value}" for path, value in parts.items()]
    env = {"PYTHONPATH": ""}
    server = Served(
        tmp_path / "log", str(checkpoint), "--port=0", *chosen, env=env, python=environment.python, cwd=tmp_path
    )
    try:
        plan = json.loads(server.get("/v1/plan")[1])
        ids = {piece["id"] for choice in plan["choices"] for piece in choice["pieces"]}
        assert {"try-attention.attention", "try-linear.linear", "try-policy.shortest", "try-speculator.pairs"} <= ids
        assert "try-op.rms_norm" in json.dumps(plan)
        assert plan["model"] == "try-model.seed_oss"
        processors = {"try-logits-processor.no_stutter": {"penalty": 2}}
        body = {"messages": [{"role": "user", "content": "a core"}], "logits_processors": processors}
        status, reply = server.post("/v1/chat/completions", body)
        assert status == 200, reply
        status, reply = server.post("/v1/io/try-io-processor.surprise", {"texts": ["a small core", "which blocks"]})
        assert status == 200, reply
        assert all(value > 0 for value in reply["nats_per_token"])
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "model_type", "config"), [("moe", "qwen3_moe", EXPERTS), ("quantization", "qwen3", {})]
)
def test_experts_and_quantized_weights(
    kind: str, model_type: str, config: dict[str, Any], environment: Environment, tmp_path: Path
) -> None:
    """The two kinds that the server above has no place for."""
    checkpoint = write_checkpoint(tmp_path / "tiny", model_type, **config)
    done = environment.llmk(
        "explain", str(checkpoint), *(f"--{path}={value}" for path, value in flags(kind).items()), cwd=tmp_path
    )
    assert flags(kind).popitem()[1] in done.stdout, done.stdout + done.stderr
    done = environment.run(GENERATE, str(checkpoint), json.dumps(flags(kind)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_names_itself(kind: str) -> None:
    files = dict(Project(named(kind), kind, "A <a@b.c>").files())
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["dependencies"] == ["llmk-core>=0.1,<0.2"]
    assert project["authors"] == [{"name": "A", "email": "a@b.c"}]
    for place, text in files.items():
        assert "acme" not in text.lower(), f"{place} has a name of the template"
        assert "$" not in text, f"{place} has a field that was not filled in"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("3d", "is not a valid plugin name"),
        ("llmk_", "is not a valid plugin name"),
        ("llmk-core", "is not a valid plugin name"),
        ("../escape", "is not a valid plugin name"),
        ("llmk-cpu", "the ids cpu.* are those of llmk-backends-cpu, which is installed"),
        ("torch", "a package torch is installed, which is not a plugin of torch"),
    ],
)
def test_names_that_are_bad_or_taken(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "new", name, "--kind", "linear"]) == ConfigError.exit_code
    error = capsys.readouterr().err
    assert message in error
    assert "hint: use another name, such as llmk-acme" in error
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llmk-mine").mkdir()
    assert main(["plugins", "new", "llmk-mine", "--kind", "op"]) == ConfigError.exit_code
    assert "llmk-mine exists already" in capsys.readouterr().err
    assert main(["plugins", "new", "Acme.Mine", "--kind", "op", "--folder", "other"]) == 0
    assert (tmp_path / "other/src/acme_mine/norm.py").is_file()
    assert '"acme-mine.rms_norm"' in (tmp_path / "other/src/acme_mine/specs.py").read_text()


def test_help_says_what_each_kind_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["plugins", "new", "--help"])
    assert raised.value.code == 0
    told: Any = capsys.readouterr().out
    assert all(f"{name} " in told and kind.help in told for name, kind in KINDS.items())
