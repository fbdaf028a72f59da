"""Spans of requests, as a real collector gets them; the engine is scripted."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from collector import Collector, values
from scripted import ScriptedEngine
from starlette.testclient import TestClient

from llmk.api import ConfigError, Overloaded
from llmk.config.schema import ServerSection
from llmk.serve.app import create_app
from llmk.serve.lifecycle import open_spans
from llmk.serve.service import Service

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "model": "org/scripted"}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def sent(collector: Collector, engine: ScriptedEngine, make_service: Callable[..., Service]) -> Callable[..., Any]:
    """Runs ``requests(client)`` and returns the spans that arrive."""

    def run(requests: Callable[[TestClient], Any], path: str = "") -> list[Any]:
        with open_spans(collector.url + path) as spans:
            service = make_service()
            service = Service(engine, service.dialect, ServerSection(), service.workers, spans)  # type: ignore[arg-type]
            with TestClient(create_app(service), base_url="http://localhost", raise_server_exceptions=False) as client:
                requests(client)
        return collector.spans

    return run


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_a_chat_is_a_span_with_the_conventions_names(sent: Any, collector: Collector, path: str) -> None:
    body = {**BODY, "n": 2, "max_tokens": 9, "temperature": 0.5, "top_p": 0.75, "seed": 7, "stop": ["x", "y"]}
    answers = []
    before = time.time_ns()
    (span,) = sent(lambda client: answers.append(client.post(CHAT, json=body, headers={"x-request-id": "r-1"})), path)
    found = values(span.attributes)
    latencies = {name: found.pop(name) for name in list(found) if "latency" in name}
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "llmk",
        "gen_ai.request.model": "org/scripted",
        "gen_ai.response.model": "org/scripted",
        "gen_ai.response.id": answers[0].json()["id"],
        "gen_ai.request.id": "r-1",
        "gen_ai.response.finish_reasons": ["stop", "stop"],
        "gen_ai.usage.input_tokens": answers[0].json()["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 24,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.request.top_k": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ["x", "y"],
        "server.address": "localhost",
        "server.port": 80,
    }
    whole = latencies.pop("gen_ai.latency.e2e")
    assert 0 < latencies.pop("gen_ai.latency.time_to_first_token") < whole
    assert latencies == {
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.latency.time_in_model_prefill": 0.5,
        "gen_ai.latency.time_in_model_decode": 2.0,
        "gen_ai.latency.time_in_model_inference": 2.5,
    }
    assert (span.name, span.kind, span.parent_span_id) == ("chat org/scripted", 2, b"")
    assert before < span.start_time_unix_nano < span.end_time_unix_nano < time.time_ns()
    assert span.end_time_unix_nano - span.start_time_unix_nano == pytest.approx(1e9 * whole, rel=1e-6)
    assert {path for path, _ in collector.requests} == {"/v1/traces"}
    assert collector.resources[0]["service.name"] == "llmk"


def test_a_span_stands_below_the_clients(sent: Any) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=1"}
    bad = {"traceparent": "00-nonsense"}
    below, alone = sent(
        lambda client: [
            client.post("/v1/completions", json={"prompt": "x", "stream": True}, headers=h) for h in (headers, bad)
        ]
    )
    assert (below.trace_id.hex(), below.parent_span_id.hex(), below.trace_state) == (TRACE, PARENT, "a=1")
    assert below.name == "text_completion org/scripted"
    assert (alone.parent_span_id, alone.trace_id.hex() != TRACE) == (b"", True)


def test_who_is_not_to_be_sampled_is_not_sent(sent: Any) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert not sent(lambda client: client.post(CHAT, json=BODY, headers=headers))


def test_what_fails_is_an_error(sent: Any, engine: ScriptedEngine) -> None:
    engine.fail = Overloaded("the engine is full")
    (span,) = sent(lambda client: client.post(CHAT, json=BODY))
    found = values(span.attributes)
    assert (found["error.type"], span.status.code, span.status.message) == (
        "rate_limit_exceeded",
        2,
        "the engine is full",
    )
    assert found["gen_ai.response.finish_reasons"] == ["abort"]
    assert "gen_ai.latency.time_in_queue" not in found


def test_what_is_no_answer_has_no_span(sent: Any) -> None:
    assert not sent(lambda client: [client.get("/health"), client.post(CHAT, json={}), client.get("/nowhere")])


def test_the_name_of_the_service_is_the_environments(
    sent: Any, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine,deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
    sent(lambda client: client.post(CHAT, json=BODY))
    assert collector.resources[0]["service.name"] == "mine"
    assert collector.resources[0]["deployment.environment.name"] == "test"
    assert collector.resources[0]["telemetry.sdk.language"] == "python"
    assert collector.requests[0][1]["authorization"] == "Bearer secret"


def test_a_collector_that_has_ended_delays_no_request(
    engine: ScriptedEngine, make_service: Callable[..., Service]
) -> None:
    started = time.monotonic()
    with open_spans("http://127.0.0.1:9") as spans:
        service = Service(engine, make_service().dialect, ServerSection(), make_service().workers, spans)  # type: ignore[arg-type]
        with TestClient(create_app(service), base_url="http://localhost") as client:
            assert client.post(CHAT, json=BODY).status_code == 200
    assert time.monotonic() - started < 5


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not an HTTP URL"), open_spans("127.0.0.1:4318"):
        pass


def test_without_the_extra_the_setting_is_refused_before_the_model_is_loaded() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk'] = None; from llmk.cli.main import main;"
        "sys.exit(main(['serve', '/no/such/model', '--server.otlp-endpoint', 'http://127.0.0.1:4318']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "server.otlp_endpoint is set, but OpenTelemetry can't be imported" in done.stderr
    assert "pip install 'llmk-core[otel]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_setting_nothing_is_imported() -> None:
    code = (
        "import json, sys; from llmk.serve import app, lifecycle\n"
        "with lifecycle.open_spans('') as spans: pass\n"
        "found = [name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))]\n"
        "print(json.dumps([spans, *found]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == [None]
