"""ProbeApp: the probes as an ASGI application, to be mounted in one that serves HTTP anyway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from asyncgroup.telemetry.client_metrics import ClientMetrics
from asyncgroup.telemetry.probe_responses import ProbeResponses
from asyncgroup.telemetry.probes import HasHealth, without_closed

__all__ = ["ProbeApp"]

Message: TypeAlias = MutableMapping[str, Any]


class ProbeApp:
    """An ASGI application with `/live`, `/ready` and, if `metrics` are given, `/metrics`.

        app.mount("/probes", ProbeApp(group, metrics=metrics))        # FastAPI, Starlette

    The clients have to run in the event loop of the server, as in its lifespan: if that is blocked, there is no answer. `clients`
    may also be added later, by `add`; one that was closed is forgotten. One that was closed after a fatal error fails `/live`
    until another client of its group is added. Raises ConfigError for a client without `health()`, and TelemetryUnavailable for metrics
    if prometheus_client is not installed.
    """

    def __init__(self, *clients: HasHealth, metrics: ClientMetrics | None = None) -> None:
        self._metrics = metrics
        self._clients = list(clients)
        self._responses = ProbeResponses(self._clients, metrics)

    def __repr__(self) -> str:
        return f"<ProbeApp for {len(self._clients)} clients>"

    def add(self, client: HasHealth) -> None:
        """Answer for one more client from now on. Raises ConfigError if it has no `health()`."""
        ProbeResponses([client], None)
        self._clients[:] = [*without_closed(self._clients, replaced_by=client), client]

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answer one request; a lifespan is accepted, a websocket is closed."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "http":
            await self._respond(scope, send)

    async def _respond(self, scope: Message, send: Callable[[Message], Awaitable[None]]) -> None:
        accept = b",".join(value for name, value in scope.get("headers", ()) if name.lower() == b"accept")
        # of a mounted application the path has the mount point in front
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        self._clients[:] = without_closed(self._clients)
        response = self._responses.respond(scope["method"], path, accept.decode("latin-1"))
        headers = [
            (b"content-type", response.content_type.encode()),
            (b"content-length", b"%d" % len(response.body)),
        ]
        if response.allow:
            headers.append((b"allow", response.allow.encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else response.body
        await send({"type": "http.response.body", "body": body})

    @staticmethod
    async def _lifespan(
        receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
