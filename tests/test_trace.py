"""``llmk bench trace``: the file is in the Trace Event Format, and its numbers add up."""

from __future__ import annotations

import json
import subprocess
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from paged_device import BehindDevice, PagedDevice, make_core
from served import LLMK

from llmk.engine.core import EngineCore
from llmk.engine.device.trace import Sizes, Trace
from llmk.engine.wire.request import EngineRequest
from llmk.engine.wire.sampling_params import SamplingParams
from llmk_testing.checkpoints import write_checkpoint

pytestmark = pytest.mark.slow_file

REQUESTS, PROMPT, OUTPUT = 5, 12, 7
TOLERANCE = 0.002
"""Microseconds: times are written to the nanosecond."""


@pytest.fixture(scope="module", params=[1, 2])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A trace of a real engine."""
    folder = tmp_path_factory.mktemp("trace")
    write_checkpoint(folder / "tiny", "qwen3")
    load = ["--requests", str(REQUESTS), "--prompt-tokens", str(PROMPT), "--output-tokens", str(OUTPUT)]
    options = ["--engine.steps-in-flight", str(request.param), "--max-num-seqs", "4", "--cache.num-blocks", "64"]
    command = [*LLMK, "bench", "trace", str(folder / "tiny"), "--output", str(folder / "trace.json"), *load, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads((folder / "trace.json").read_text())
    return {**data, "printed": done.stdout, "depth": request.param}


def spans(data: dict[str, Any], lane: str) -> list[dict[str, Any]]:
    names = {event["args"]["name"]: event["tid"] for event in data["traceEvents"] if event["name"] == "thread_name"}
    return [event for event in data["traceEvents"] if event["ph"] == "X" and event["tid"] == names[lane]]


@pytest.mark.slow
def test_events_are_as_the_format_has_them(written: dict[str, Any]) -> None:
    assert written["displayTimeUnit"] in ("ms", "ns")
    for event in written["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        assert event["ph"] in ("M", "X")
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    names = [event for event in written["traceEvents"] if event["ph"] == "M"]
    assert [event["args"]["name"] for event in names if event["name"] == "process_name"] == ["llmk"]
    named = {(event["pid"], event["tid"]) for event in names if event["name"] == "thread_name"}
    assert named == {(event["pid"], event["tid"]) for event in written["traceEvents"] if event["ph"] == "X"}


@pytest.mark.parametrize("lane", ["host", "device"])
def test_spans_of_a_lane_nest_or_follow_one_another(written: dict[str, Any], lane: str) -> None:
    open_until: list[float] = []
    for event in sorted(spans(written, lane), key=lambda event: (event["ts"], -event["dur"])):
        while open_until and open_until[-1] <= event["ts"] + TOLERANCE:
            open_until.pop()
        end = event["ts"] + event["dur"]
        assert not open_until or end <= open_until[-1] + TOLERANCE
        open_until.append(end)


def test_a_step_has_its_parts_and_sizes(written: dict[str, Any]) -> None:
    host, device = spans(written, "host"), spans(written, "device")
    sized = [event for event in host if event["name"] == "submit" and "tokens" in event["args"]]
    assert [event["args"] for event in sized] == [event["args"] for event in device]
    replayed: set[int] = set()
    for submit in sized:
        inside = [e["name"] for e in host if 0 <= e["ts"] - submit["ts"] <= submit["dur"] and e is not submit]
        sizes = submit["args"]
        if sizes["prefills"]:
            assert inside == ["apply", "lay out", "prepare", "forward", "sample"]
        else:  # CPUs record a step when it first runs
            recorded = [] if sizes["decodes"] in replayed else ["prepare", "forward"]
            assert inside == ["apply", *recorded, "replay", "sample"]
            replayed.add(sizes["decodes"])
        assert sizes["tokens"] >= sizes["prefills"] + sizes["decodes"]
        assert sizes["decodes"] <= sizes["samples"]
    steps = [event["args"]["step"] for event in sized]
    for name in ("schedule", "submit", "wait", "update"):
        done = [event["args"]["step"] for event in host if event["name"] == name and "step" in event["args"]]
        assert [step for step in done if step in steps] == steps
    first = {name: next(e["ts"] for e in host if e["name"] == name) for name in ("wait", "update")}
    begun = sum(event["ts"] < first["wait"] for event in sized)
    assert begun == written["depth"], "so many are submitted before the first is waited for"


def test_numbers_add_up(written: dict[str, Any]) -> None:
    host, device, told = spans(written, "host"), spans(written, "device"), written["otherData"]
    assert told["steps"] == len(device)
    assert told["tokens"] == sum(event["args"]["tokens"] for event in device) == REQUESTS * (PROMPT + OUTPUT - 1)
    assert told["output_tokens"] == sum(event["args"]["samples"] for event in device) == REQUESTS * OUTPUT
    everything = [*host, *device]
    whole = max(e["ts"] + e["dur"] for e in everything) - min(e["ts"] for e in everything)
    assert told["seconds"] == pytest.approx(whole / 1e6, abs=1e-8)
    assert told["busy_share"] == pytest.approx(sum(event["dur"] for event in device) / whole, abs=1e-5)
    spent = {event["args"]["step"]: -event["dur"] for event in device}
    for event in host:
        if event["name"] in ("schedule", "submit", "update") and event["args"].get("step") in spent:
            spent[event["args"]["step"]] += event["dur"]
    assert all(time > 0 for time in spent.values())
    assert told["host_p50"] == pytest.approx(median(spent.values()) / 1e6, abs=1e-8)
    assert told["host_p50"] <= told["host_p95"] <= max(spent.values()) / 1e6 + 1e-8
    outer = [e for e in host if e["name"] in ("schedule", "submit", "wait", "update")]
    assert all(a["ts"] + a["dur"] <= b["ts"] + TOLERANCE for a, b in pairwise(outer))
    assert sum(event["dur"] for event in outer) <= whole
    for line in (f"steps      {told['steps']} in", f"busy {told['busy_share']:.1%}", "generated", "(p95)"):
        assert line in written["printed"]


def test_a_device_that_tells_no_times_has_no_lane() -> None:
    """As an engine sees its steps where other processes run them."""
    core, trace = make_core(), Trace()
    assert isinstance(core.runner, PagedDevice)
    core = EngineCore(core.scheduler, BehindDevice(core.runner), depth=2, trace=trace)
    core.add(EngineRequest(id="a", prompt_token_ids=list(range(20)), params=SamplingParams(max_tokens=3)))
    core.add(EngineRequest(id="b", prompt_token_ids=[1], params=SamplingParams(max_tokens=3)))
    while core.has_work:
        core.step()
    assert list(trace.sizes.values()) == [
        Sizes(tokens=16, samples=1, prefills=2, decodes=0),
        Sizes(tokens=6, samples=2, prefills=1, decodes=1),
        Sizes(tokens=2, samples=2, prefills=0, decodes=2),
        Sizes(tokens=1, samples=1, prefills=0, decodes=1),
    ]
    assert trace.device() == []
    assert trace.summary().busy_share is None
    assert "times not known" in "\n".join(trace.summary().lines())
    assert {name for name, _ in groupby(sorted(span.name for span in trace.host()))} == {
        "schedule", "submit", "wait", "update",
    }  # fmt: skip
    trace.clear()
    with pytest.raises(ValueError, match="no step was recorded"):
        trace.summary()


def test_a_part_of_a_step_may_hold_something_else_by_that_name(tmp_path: Path) -> None:
    """As what the attention backends for GPUs prepare does."""
    trace = Trace()
    trace.sizes[3] = Sizes(tokens=1, samples=1, prefills=0, decodes=1)
    trace.timed("prepare", lambda _: SimpleNamespace(step=object()))(None)
    trace.timed("submit", lambda _: SimpleNamespace(step=object()))(SimpleNamespace(step=3))
    trace.timed("wait", lambda _: SimpleNamespace(step=3))(None)
    assert [(span.name, span.step) for span in trace.host()] == [("prepare", -1), ("submit", 3), ("wait", 3)]
    trace.write(tmp_path / "trace.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--output", "/no/such/folder/trace.json"], 2, "there is no such folder"),
        (
            ["--output", "/dev/full", "--requests", "1", "--output-tokens", "2"],
            2,
            "/dev/full can't be written: No space",
        ),
        (["--output", "trace.json", "--requests", "0"], 2, "'0' is not a number of 1 or more"),
        (["--output", "trace.json", "--prompt-tokens", "99999"], 2, "lower --prompt-tokens"),
        (["--output", "trace.json", "demo", "--outputtokens", "3"], 2, "did you mean --output-tokens?"),
        ([], 2, "--output"),
    ],
)
def test_what_can_not_be_measured_is_refused(arguments: list[str], code: int, said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*LLMK, "bench", "trace", *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
