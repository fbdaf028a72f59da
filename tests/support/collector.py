"""An OTLP/HTTP collector that keeps the spans it is sent."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector:
    """Listens until it is closed. ``spans`` are the protocol's messages, ``resources`` the attributes of who sent
    them."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
                for resource in sent.resource_spans:
                    collector.resources.append(values(resource.resource.attributes))
                    collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    return {attribute.key: _plain(attribute.value) for attribute in attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)
