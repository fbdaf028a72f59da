"""OpenTelemetry spans: one for each request that is answered, sent to a collector over OTLP/HTTP.

Attributes have the names of the semantic conventions for generative AI (1.37), and where these have none, those that
serving engines use (``gen_ai.latency.*``, in seconds). Needs the extra ``llmk-core[otel]``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers

import llmk
from llmk.serve.generation.request_record import RequestRecord
from llmk.serve.http import errors

PATH = "/v1/traces"
LAST_SECONDS = 2.0
"""Time limit of exporting the last spans when the server stops."""
_OPERATIONS = {"/v1/completions": "text_completion"}
"""Operation names by route; others are ``chat``."""
_ENDED = (asyncio.CancelledError, GeneratorExit)
"""Exceptions of requests whose client disconnected, or that were stopped."""


class Spans:
    """Sends spans to the collector at ``endpoint``, in the background and in batches.

    The standard environment variables of OpenTelemetry SDKs are used (headers, sampler, service name), except for the
    endpoint.
    """

    def __init__(self, endpoint: str) -> None:
        own = Resource({"service.name": "llmk", "service.version": llmk.__version__})
        resource = Resource.create().merge(own).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        url = endpoint.rstrip("/").removesuffix(PATH) + PATH
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
        self._tracer = self._provider.get_tracer("llmk", llmk.__version__)
        self._propagator = TraceContextTextMapPropagator()

    def end(self, model: str, record: RequestRecord) -> None:
        """Creates the span of a finished request, as a child of the span in its header ``traceparent``."""
        headers, model = Headers(scope=record.scope), record.job.context.adapter or model
        operation = _OPERATIONS.get(getattr(record.scope.get("route"), "path", ""), "chat")
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes={"gen_ai.operation.name": operation, **dict(_attributes(model, record))},
            start_time=record.arrived_ns,
        )
        if record.error is not None and not isinstance(record.error, _ENDED):
            error = errors.describe(record.error)[1]["error"]
            span.set_attribute("error.type", str(error["code"]))
            span.set_status(StatusCode.ERROR, error["message"])
        span.end(record.arrived_ns + round(1e9 * (record.ended - record.arrived)))

    def close(self) -> None:
        """Exports the remaining spans, within :data:`LAST_SECONDS`."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(LAST_SECONDS)


def _attributes(model: str, record: RequestRecord) -> Iterator[tuple[str, AttributeValue]]:
    params, usage = record.job.params, record.usage
    unfinished = len(record.job.prompts) * params.n - len(record.reasons)
    yield "gen_ai.provider.name", "llmk"
    yield "gen_ai.request.model", model
    yield "gen_ai.response.model", model
    yield "gen_ai.response.id", record.job.context.id
    yield "gen_ai.request.id", record.scope["state"]["request_id"]
    yield "gen_ai.response.finish_reasons", [*record.reasons.values(), *["abort"] * unfinished]
    yield "gen_ai.usage.input_tokens", usage.prompt_tokens
    yield "gen_ai.usage.output_tokens", usage.completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", usage.cached_tokens
    for name in ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty"):
        yield f"gen_ai.request.{name}", float(getattr(params, name))
    if params.n != 1:
        yield "gen_ai.request.choice.count", params.n
    if params.max_tokens is not None:
        yield "gen_ai.request.max_tokens", params.max_tokens
    if params.seed is not None:
        yield "gen_ai.request.seed", params.seed
    if stop := record.job.stop:
        yield "gen_ai.request.stop_sequences", stop
    if server := record.scope.get("server"):
        yield "server.address", server[0]
        yield "server.port", server[1]
    yield "gen_ai.latency.e2e", record.ended - record.arrived
    if record.first:
        yield "gen_ai.latency.time_to_first_token", record.first - record.arrived
    if record.times:
        times = record.times[-1]
        yield "gen_ai.latency.time_in_queue", times.queue
        yield "gen_ai.latency.time_in_model_prefill", times.prefill
        yield "gen_ai.latency.time_in_model_decode", times.decode
        yield "gen_ai.latency.time_in_model_inference", times.prefill + times.decode
