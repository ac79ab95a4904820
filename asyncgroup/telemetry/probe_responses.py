"""What a probe server answers: GET and HEAD of `/live`, `/ready` and `/metrics`. No I/O."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from asyncgroup.checks import wrong_type
from asyncgroup.telemetry.client_metrics import ClientMetrics
from asyncgroup.telemetry.probes import HasHealth, ProbeAnswer, live, ready
from asyncgroup.telemetry.prometheus import MetricsPage

__all__ = ["ProbeResponses", "Response"]

_log = logging.getLogger("asyncgroup.telemetry")

_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"


class Response(NamedTuple):
    """An HTTP response, without the body's length."""

    status: int
    content_type: str
    body: bytes
    allow: str = ""
    """The header Allow; empty for none."""


class ProbeResponses:
    """Answers requests about these clients, from their `health()`, in the thread of their event loop.

    `/metrics` exists if `metrics` are given. Raises ConfigError for a client without `health()`, and TelemetryUnavailable for
    metrics if prometheus_client is not installed.
    """

    def __init__(self, clients: Sequence[HasHealth], metrics: ClientMetrics | None) -> None:
        for client in clients:
            if not callable(getattr(client, "health", None)):
                raise wrong_type("client", client, "a ConsumerGroup or a WorkQueue: it has health()")
        if metrics is not None and not isinstance(metrics, ClientMetrics):
            raise wrong_type("metrics", metrics, "ClientMetrics, which the clients have as a hook")
        self._clients = clients
        self._page = None if metrics is None else MetricsPage(metrics)

    def __repr__(self) -> str:
        return f"<ProbeResponses for {len(self._clients)} clients>"

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that exist."""
        return ("/live", "/ready") if self._page is None else ("/live", "/ready", "/metrics")

    def respond(self, method: str, path: str, accept: str = "") -> Response:
        """Return the response to a request; `path` may have a query, which is ignored."""
        path = path.partition("?")[0]
        if path not in self.paths:
            return Response(404, _TEXT, f"not found; there are {', '.join(self.paths)}\n".encode())
        if method not in ("GET", "HEAD"):
            return Response(405, _TEXT, b"only GET and HEAD\n", "GET, HEAD")
        try:
            return self._found(path, accept)
        except Exception:  # noqa: BLE001  a probe answers also if a health does not
            _log.exception("%s failed", path)
            return Response(500, _TEXT, b"failed; the log has the reason\n")

    def _found(self, path: str, accept: str) -> Response:
        if path == "/live":
            return _answer(live(self._clients))
        if path == "/ready":
            return _answer(ready(self._clients))
        assert self._page is not None
        return Response(200, *self._page.render(accept))


def _answer(answer: ProbeAnswer) -> Response:
    return Response(200 if answer.passed else 503, _JSON, json.dumps(answer.as_dict()).encode() + b"\n")
