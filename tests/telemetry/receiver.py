"""A receiver of OTLP over HTTP on the loopback interface."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Receiver", "receiving"]


class Receiver:
    """What was sent to each path."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.traces: list[Any] = []
        self.metrics: list[Any] = []

    def post(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            self.traces.append(ExportTraceServiceRequest.FromString(body))
        else:
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))

    @property
    def spans(self) -> list[Any]:
        """The spans, each with the schema of its scope."""
        return [
            (scope.schema_url, span)
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def last_metrics(self) -> dict[str, Any]:
        """The metrics of the last request, by name."""
        resources = self.metrics[-1].resource_metrics
        return {
            metric.name: metric
            for resource in resources
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.post(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
