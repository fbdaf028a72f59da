"""``llmk verify``: what it finds, what it says where it can't, and what becomes of a process that dies."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import llmk_testing.verify.command as command
from llmk.api import ConfigError, SelectionError
from llmk_testing.bench import Bench
from llmk_testing.child import Job
from llmk_testing.collect import Options
from llmk_testing.verify import child, conformance, timings, tokens
from llmk_testing.verify.record import Part, Record

GIB = 1 << 30


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.VerifyCommand().add_arguments(parser)
    return parser.parse_args(words)


def run(*words: str) -> int:
    return command.VerifyCommand().run(arguments(*words))


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Part]:
    """What the parts find, in the place of minutes."""
    found = {"device": Part({"memory": 16 * GIB, "free": 8 * GIB}), "conformance": Part({"platform": {"passed": 3}})}
    speeds = {"roofline": {"read, GB/s": 10.0}, "demo_tokens_per_second": {"decode, 1 request": 100.0}}
    kernel = {"id": "cpu.linear", "out": 64, "in": 32, "tokens": 1, "us": 2.0, "share": 0.5}
    found["timings"] = Part({**speeds, "kernels": [kernel]})
    found["tokens"] = Part({"float32": {"prompts": 1, "tokens": 9, "equal": 9, "worst": 0.0}})
    monkeypatch.setattr(child, "run_part", lambda name, options, timeout: found[name])
    monkeypatch.setattr(conformance, "check", lambda *given, **options: found["conformance"])
    return found


def test_the_file_has_what_was_found(
    parts: dict[str, Part], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--platform", "cpu", "--by", "Ada Acme") == 0
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("verified-cpu-")
    record = json.loads(file.read_text())
    assert (record["verdict"], record["by"], record["platform"].partition("/")[0]) == ("verified", "Ada Acme", "cpu")
    assert set(record["parts"]) == set(parts)
    assert {"llmk-core", "torch", "llmk-backends-cpu"} <= set(record["versions"])
    printed = capsys.readouterr().out
    for expected in ("9 of 9 are the reference's first choice", "50% of the roofline", "16.0 GiB", "verified in"):
        assert expected in printed


def test_a_failure_is_a_result(parts: dict[str, Part], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts["tokens"].problems.append("in float32 a token's logit is 3 below that of the reference's choice")
    file = tmp_path / "out.json"
    assert run("--platform", "cpu", "--json", str(file)) == 1
    assert json.loads(file.read_text())["verdict"] == "failed"
    assert "FAILED tokens: in float32 a token's logit" in capsys.readouterr().out


def test_a_busy_device_ends_it_at_once(parts: dict[str, Part], tmp_path: Path) -> None:
    parts["device"].problems.append("the device is busy: 0.10 of 16.0 GiB are free, and 1 GiB is needed")
    del parts["timings"]
    with pytest.raises(SelectionError, match=r"can't be verified: the device is busy: 0\.10 of 16\.0 GiB"):
        run("--platform", "cpu", "--json", str(tmp_path / "out.json"))
    assert list(tmp_path.iterdir()) == []


def test_the_platform_says_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [GIB // 8]
    memory = SimpleNamespace(total=lambda: 16 * GIB, available=lambda: free[0])
    monkeypatch.setattr(Bench, "open", lambda platform: SimpleNamespace(platform=SimpleNamespace(memory=memory)))
    (problem,) = timings.open_device("any").problems
    assert problem.startswith("the device is busy: 0.12 of 16.0 GiB are free, and 1 GiB is needed")
    free[0] = 2 * GIB
    assert timings.open_device("any").problems == []


def test_no_such_platform_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SelectionError, match="no installed wheel provides the platform 'warp'") as error:
        run("--platform", "warp")
    assert "cpu.cpu" in str(error.value)


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(parts: dict[str, Part], tmp_path: Path) -> None:
    parts.clear()
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "missing/out.json", tmp_path / "file/out.json"):
        with pytest.raises(ConfigError, match="the result can't be written to") as error:
            run("--platform", "cpu", "--json", str(place))
        assert "--json FILE names another file" in str(error.value)


@pytest.mark.slow
def test_a_process_that_dies_or_hangs_is_a_problem() -> None:
    (hung,) = child.run_part("device", {"platform": "cpu"}, timeout=0.01).problems
    assert hung.startswith("its process was killed after 0.01 seconds")
    (died,) = child.run_part("device", {}, timeout=60).problems
    assert "KeyError" in died
    (refused,) = child.run_part("device", {"platform": "warp"}, timeout=60).problems
    assert refused.startswith("no installed wheel provides the platform 'warp'")
    assert "Traceback" not in refused


def test_gaps_are_those_of_the_reference() -> None:
    """Token ``t`` is followed by ``t + 1``, which is 2 ahead of the others."""

    def reference(ids: torch.Tensor) -> Any:
        return SimpleNamespace(logits=2.0 * torch.nn.functional.one_hot(ids + 1, 16).float())

    assert tokens._gaps(reference, [1, 2], [3, 4, 5]) == [0.0, 0.0, 0.0]
    assert tokens._gaps(reference, [1, 2], [3, 9, 10]) == [0.0, 2.0, 0.0], "each is compared given those before it"


@pytest.mark.slow
def test_tokens_of_the_demo_model(monkeypatch: pytest.MonkeyPatch) -> None:
    part = tokens.compare("cpu", ("float32",))
    found = part.found["float32"]
    assert part.problems == []
    assert found["equal"] == found["tokens"] == 24 * len(tokens.TEXTS)
    wrong = [([5, 6, 7], [11, 12, 13])]
    monkeypatch.setattr(tokens, "TEXTS", ("?",))

    class Broken:
        def __init__(self, *given: Any, **settings: Any) -> None: ...

        def __enter__(self) -> Broken:
            return self

        def __exit__(self, *error: object) -> None: ...

        def generate(self, *given: Any, **options: Any) -> list[Any]:
            return [SimpleNamespace(prompt_token_ids=p, outputs=[SimpleNamespace(token_ids=n)]) for p, n in wrong]

    monkeypatch.setattr(tokens, "LLM", Broken)
    (problem,) = tokens.compare("cpu", ("float32",)).problems
    assert problem.startswith("in float32 a token's logit is")
    assert tokens.compare("cpu", ("bfloat16",)).problems == [], "in other dtypes the share is reported"


@pytest.mark.slow
def test_timings_are_shares_of_what_the_machine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "_COUNTS", (1, 3))
    monkeypatch.setattr(timings, "_ROOFLINE_SECONDS", 0.05)
    monkeypatch.setattr(timings, "_MODEL", {**timings._MODEL, "hidden_size": 256, "intermediate_size": 512})
    monkeypatch.setattr(timings, "speeds", lambda platform: {})
    found = timings.measure("cpu", "float32").found
    assert set(found["roofline"]) == {"read, GB/s", "GEMM in float32, TFLOP/s"}
    assert [(k["tokens"], k["in"]) for k in found["kernels"]] == [(1, 256), (3, 256), (1, 512), (3, 512)]
    assert all(kernel["us"] > 0 and kernel["share"] > 0 for kernel in found["kernels"])


@pytest.mark.slow
def test_a_quick_one_takes_a_few_cases_of_each_kernel() -> None:
    options = Options(["op"], "cpu")
    only = r"^(cpu\.rms_norm|cpu\.silu_and_mul)::"
    pattern = conformance._sampled("llmk-backends-cpu", options, only)
    listed = conformance.Check(conformance.Card({}))
    listed.run(Job("llmk-backends-cpu", options, pattern, list_only=True))
    names = [name.partition("::")[0] for name in listed.listed]
    assert {name: names.count(name) for name in names} == {"cpu.rms_norm": 4, "cpu.silu_and_mul": 4}


def test_a_record_without_measurements_can_be_shown() -> None:
    record = Record("tpu/v5e", {"device": ""}, {}, parts={"timings": Part(notes=["torch can't use tpu/v5e"])})
    assert "note: timings: torch can't use tpu/v5e" in record.render()
