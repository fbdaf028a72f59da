"""What a real server tells of itself: metrics that add up and are documented, a log for programs, spans."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from collector import Collector, values
from installed import install
from served import Served

from llmk.config import load
from llmk.planning.boot import boot

pytestmark = pytest.mark.slow_file

PAGE = Path(__file__).resolve().parent.parent / "docs/observability.md"
SPECS = """
from llmk.api import LogitsProcessorSpec, hookimpl

@hookimpl
def llmk_logits_processors():
    return [LogitsProcessorSpec(id="frail.frail", implementation="frail_specs:Frail")]

class Frail:
    def __init__(self, batch):
        pass
    def enter(self, slot, request):
        pass
    def leave(self, slot):
        pass
    def apply(self, logits, rows):
        raise ValueError("too frail")
"""
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROMPT, NEW = list(range(10, 60)), 12


class Seen:
    """What a server said in its life: metrics before its end, log lines, spans, the models' answers."""

    def __init__(self, served: Served, collector: Collector) -> None:
        self.answers = [
            self._post(served, {"prompt": PROMPT, "max_tokens": NEW, "ignore_eos": True, "n": 2}, "first"),
            self._post(served, {"prompt": PROMPT, "max_tokens": NEW, "ignore_eos": True}, "again"),
            self._post(served, {"prompt": "x", "logits_processors": {"frail.frail": {}}}, "frail"),
        ]
        self.metrics = served.get("/metrics")[1]
        self.processes = {served.process.pid, *(child.pid for child in served.children())}
        served.process.send_signal(signal.SIGTERM)
        assert served.wait() == 0
        self.server = served.process.pid
        self.log = [json.loads(line) for line in served.log.read_text().splitlines()]
        self.spans = collector.spans

    @staticmethod
    def _post(served: Served, body: Any, id: str) -> tuple[int, Any]:
        headers = {"content-type": "application/json", "x-request-id": id, "traceparent": f"00-{TRACE}-{PARENT}-01"}
        request = urllib.request.Request(f"{served.url}/v1/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def value(self, name: str) -> float:
        """Of a metric of the model, or of HTTP."""
        found = re.search(rf"^llmk_{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", self.metrics, re.MULTILINE)
        assert found, f"{name} is not among the metrics"
        return float(found[1])


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = install(tmp_path_factory.mktemp("seen"), "frail", SPECS)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    options = ["--port", "0", "--server.log-format", "json", "--cache.block-size", "8"]
    with closing(Collector()) as collector:
        args = [*options, "--server.otlp-endpoint", collector.url]
        with closing(Served(folder / "log", *args, env={"PYTHONPATH": path})) as served:
            yield Seen(served, collector)


@pytest.mark.slow
def test_the_page_lists_what_is_exported(seen: Seen) -> None:
    told = dict(re.findall(r"^\| `(llmk_\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE))
    told = {name: kind for name, kind in told.items() if "spec_decode" not in name}  # once something was drafted
    exported = dict(re.findall(r"^# TYPE (\S+) (\w+)$", seen.metrics, re.MULTILINE))
    assert told == {name: kind for name, kind in exported.items() if not name.endswith("_created")}


def test_token_counts_add_up(seen: Seen) -> None:
    assert [status for status, _ in seen.answers] == [200, 200, 500]
    hits = seen.value("prefix_cache_hits_total")
    assert hits >= 48, "the second request, and perhaps the second choice of the first, find six full blocks"
    frail = seen.value("prompt_tokens_total") - 3 * len(PROMPT)
    computed = 3 * (len(PROMPT) + NEW - 1) - hits + frail
    assert seen.value("iteration_tokens_sum") == computed
    assert seen.value("generation_tokens_total") == 3 * NEW
    assert 2 * NEW <= seen.value("iteration_tokens_count") <= seen.value("engine_steps_total")
    assert seen.value("request_generation_tokens_sum") == 3 * NEW
    assert (seen.value("request_params_n_sum"), seen.value("request_params_max_tokens_sum")) == (3, 2 * NEW)


def test_times_add_up(seen: Seen) -> None:
    for part in ("queue", "prefill", "decode", "inference"):
        assert seen.value(f"request_{part}_time_seconds_count") == 3
    prefill, decode = seen.value("request_prefill_time_seconds_sum"), seen.value("request_decode_time_seconds_sum")
    assert min(prefill, decode) > 0
    assert seen.value("request_inference_time_seconds_sum") == pytest.approx(prefill + decode)
    steps, host = seen.value("engine_step_seconds_sum"), seen.value("engine_step_host_seconds_sum")
    assert 0 < host < steps / 2, "the model runs on the host, which is not the host's own work"
    assert decode / 3 < steps < 2 * seen.value("e2e_request_latency_seconds_sum")
    assert seen.value("engine_step_seconds_count") == seen.value("iteration_tokens_count")


def test_operations_and_bytes_are_those_of_the_model(seen: Seen) -> None:
    facts = boot(load({}, environ={}), verify=False).facts
    products = sum(linear.in_features * linear.out_features * linear.count for linear in facts.linear)
    steps, tokens = seen.value("iteration_tokens_count"), seen.value("iteration_tokens_sum")
    head = next(linear for linear in facts.linear if linear.site == "lm_head")
    least = 2 * (products - head.in_features * head.out_features) * tokens
    assert least < seen.value("estimated_flops_per_device_total") < 1.2 * (least + 2 * products * 3 * NEW)
    assert seen.value("estimated_read_bytes_per_device_total") > 2 * products * (steps - 1)
    assert 0 < seen.value("estimated_write_bytes_per_device_total") < products * steps


def test_every_line_of_the_log_is_an_object(seen: Seen) -> None:
    assert len(seen.log) > 5
    for line in seen.log:
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
        assert line["level"] in ("debug", "info", "warning", "error")
        assert isinstance(line["message"], str)
        assert line["logger"]
        assert line["process"] in seen.processes
    assert any("(cpu/" in line["message"] and "memory  " in line["message"] for line in seen.log)
    (told,) = (line for line in seen.log if line["message"].startswith("steps in flight: "))
    assert told["process"] != seen.server


def test_the_access_log_has_fields(seen: Seen) -> None:
    lines = [line for line in seen.log if line["logger"] == "llmk.access"]
    answers = {line["request_id"]: line for line in lines if line["path"] == "/v1/completions"}
    assert {id: line["status"] for id, line in answers.items()} == {"first": 200, "again": 200, "frail": 500}
    for line in lines:
        assert line["method"] in ("GET", "POST")
        assert 0 < line["seconds"] < 60
        assert line["request_id"]
    assert any(line["path"] == "/metrics" for line in lines)


def test_both_processes_name_the_request_that_failed(seen: Seen) -> None:
    lines = [line for line in seen.log if line["level"] == "error"]
    engine, server = sorted(lines, key=lambda line: line["process"] == seen.server)
    assert engine["process"] != seen.server == server["process"]
    assert (engine["request_ids"], server["request_id"]) == (["frail"], "frail")
    assert "the logits processor frail.frail of frail 1.0 failed" in engine["message"]
    assert engine["exception"].splitlines()[-1] == "ValueError: too frail"
    assert "ValueError: too frail" in server["message"]


def test_spans_arrive_with_the_last_words(seen: Seen) -> None:
    spans = {values(span.attributes)["gen_ai.request.id"]: span for span in seen.spans}
    assert set(spans) == {"first", "again", "frail"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert {span.parent_span_id.hex() for span in spans.values()} == {PARENT}
    first, failed = values(spans["first"].attributes), values(spans["frail"].attributes)
    assert first["gen_ai.response.id"] == seen.answers[0][1]["id"]
    assert first["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (len(PROMPT), 2 * NEW)
    engine = first["gen_ai.latency.time_in_queue"] + first["gen_ai.latency.time_in_model_inference"]
    assert 0 < engine < first["gen_ai.latency.e2e"]
    assert failed["error.type"] == "plugin_error"
    assert spans["frail"].status.code == 2
