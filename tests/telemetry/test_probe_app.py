"""ProbeApp: the ASGI messages of requests, lifespans and websockets."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from typing import Any

import pytest

from asyncgroup.errors import ConfigError
from asyncgroup.group.health.health import Health
from asyncgroup.telemetry import ClientMetrics, ProbeApp
from asyncgroup.testing import MemorySource
from asyncgroup.workqueue import WorkQueue

pytestmark = pytest.mark.real


async def call(app: ProbeApp, scope: dict[str, Any], *messages: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[Any] = []
    received = list(messages)

    async def receive() -> Any:
        return received.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def http(path: str, method: str = "GET", **more: Any) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": [], **more}


async def test_requests_of_an_open_queue() -> None:
    app = ProbeApp()
    async with WorkQueue(MemorySource()) as queue:
        app.add(queue)
        start, body = await call(app, http("/ready"))
        assert start["status"] == 200
        assert dict(start["headers"])[b"content-length"] == b"%d" % len(body["body"])
        assert json.loads(body["body"]) == {"passed": True, "reasons": []}
        start, body = await call(app, http("/ready", "HEAD"))
        assert (start["status"], body["body"]) == (200, b"")
        start, _ = await call(app, http("/live", "DELETE"))
        assert (start["status"], dict(start["headers"])[b"allow"]) == (405, b"GET, HEAD")
        assert (await call(app, http("/metrics")))[0]["status"] == 404
        # mounted: the path of the scope has the mount point in front
        assert (await call(app, http("/probes/live", root_path="/probes")))[0]["status"] == 200
    assert repr(app) == "<ProbeApp for 1 clients>"


async def test_a_client_that_was_closed_is_forgotten() -> None:
    """An application that opens a client for each of its tasks keeps none of them, and stays ready."""
    app = ProbeApp()
    for _ in range(100):
        async with WorkQueue(MemorySource()) as queue:
            app.add(queue)
            assert (await call(app, http("/ready")))[0]["status"] == 200
        kept = weakref.ref(queue)
        del queue
    assert (await call(app, http("/ready")))[0]["status"] == 200
    assert (await call(app, http("/live")))[0]["status"] == 200
    assert repr(app) == "<ProbeApp for 0 clients>"
    gc.collect()
    assert kept() is None


class Closed:
    """A client that was closed, after an error or in order."""

    def __init__(self, group_id: str, fatal: str | None = None) -> None:
        self.group_id, self.fatal = group_id, fatal

    def health(self) -> Health:
        closed, why = "closed", "the group is closed"
        return Health(
            self.group_id, closed, 1.0, "m", 1, "classic", None, None, (), None, (), (), self.fatal, why
        )


async def test_a_client_that_was_closed_after_a_fatal_error_fails_until_its_group_has_another() -> None:
    """Otherwise a process whose only consumer has died would be live."""
    app = ProbeApp(Closed("a", "run() has ended"), Closed("b"))
    for _ in range(2):
        start, body = await call(app, http("/live"))
        assert (start["status"], json.loads(body["body"])["reasons"]) == (503, ["a: run() has ended"])
    assert repr(app) == "<ProbeApp for 1 clients>"
    app.add(Closed("other"))
    assert (await call(app, http("/live")))[0]["status"] == 503
    app.add(Closed("a"))
    assert (await call(app, http("/live")))[0]["status"] == 200
    assert repr(app) == "<ProbeApp for 0 clients>"


async def test_metrics_and_the_header_accept() -> None:
    pytest.importorskip("prometheus_client")
    app = ProbeApp(metrics=ClientMetrics())
    start, body = await call(
        app, http("/metrics", headers=[(b"Accept", b"application/openmetrics-text; version=1.0.0")])
    )
    assert start["status"] == 200
    assert dict(start["headers"])[b"content-type"].startswith(b"application/openmetrics-text")
    assert body["body"].endswith(b"# EOF\n")


async def test_lifespan_and_websocket() -> None:
    app = ProbeApp()
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent = await call(app, {"type": "lifespan"}, *messages)
    assert sent == [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}]
    sent = await call(app, {"type": "websocket"}, {"type": "websocket.connect"})
    assert sent == [{"type": "websocket.close", "code": 1000}]
    await asyncio.sleep(0)


async def test_a_client_without_a_health_is_refused() -> None:
    client: Any = object()
    with pytest.raises(ConfigError, match="a ConsumerGroup or a WorkQueue"):
        ProbeApp(client)
    with pytest.raises(ConfigError, match="a ConsumerGroup or a WorkQueue"):
        ProbeApp().add(client)
