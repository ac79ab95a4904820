"""The requests of PulsarAdmin, answered by a small HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from asyncgroup.testing.apache_pulsar import PulsarAdmin, PulsarAdminError


class Broker(HTTPServer):
    """Answers each request with `status` and `answer`, and remembers them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.answer: object = None
        self.requests: list[tuple[str, str, Any]] = []
        self.tokens: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Broker

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, self.path, json.loads(body) if body else None))
        self.server.tokens.append(self.headers.get("Authorization"))
        answer = self.server.answer
        text = answer if isinstance(answer, bytes) else b"" if answer is None else json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST = do_DELETE = _answer


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("topic", "path"),
    [
        ("orders", "persistent/public/default/orders"),
        ("public/mine/orders", "persistent/public/mine/orders"),
        ("persistent://t/n/a b/c", "persistent/t/n/a%20b%2Fc"),
        ("non-persistent://t/n/x", "non-persistent/t/n/x"),
        ("a/b", "persistent/public/default/a%2Fb"),
    ],
)
async def test_paths_of_topics(broker: Broker, topic: str, path: str) -> None:
    await PulsarAdmin(broker.url).create_topic(topic)
    assert broker.requests == [("PUT", f"/admin/v2/{path}", None)]


async def test_requests(broker: Broker) -> None:
    admin, topic = PulsarAdmin(broker.url, "token"), "/admin/v2/persistent/public/default/x"
    await admin.create_partitioned_topic("x", 3)
    await admin.update_partitions("x", 5)
    await admin.unload("x")
    await admin.create_subscription("x", "a/b", "earliest")
    await admin.delete_subscription("x", "s", force=False)
    await admin.create_namespace("public/mine")
    await admin.unload_namespace()
    await admin.set_policy("public/mine", "deduplication", value=True)
    await admin.set_topic_policy("x", "messageTTL", 7)
    await admin.grant("public/mine", "ann", "produce", "consume")
    await admin.request("GET", "brokers/health", topicVersion="V2")
    assert broker.requests == [
        ("PUT", f"{topic}/partitions", 3),
        ("POST", f"{topic}/partitions", 5),
        ("PUT", f"{topic}/unload", None),
        ("PUT", f"{topic}/subscription/a%2Fb", "earliest"),
        ("DELETE", f"{topic}/subscription/s?force=false", None),
        ("PUT", "/admin/v2/namespaces/public/mine", None),
        ("PUT", "/admin/v2/namespaces/public/default/unload", None),
        ("POST", "/admin/v2/namespaces/public/mine/deduplication", True),
        ("POST", f"{topic}/messageTTL", 7),
        ("POST", "/admin/v2/namespaces/public/mine/permissions/ann", ["produce", "consume"]),
        ("GET", "/admin/v2/brokers/health?topicVersion=V2", None),
    ]
    assert set(broker.tokens) == {"Bearer token"}


async def test_answers(broker: Broker) -> None:
    admin = PulsarAdmin(broker.url)
    broker.answer = {"partitions": 3, "ledgerId": 7, "entryId": 9}
    assert await admin.partitions("x") == 3
    assert await admin.terminate("x") == (7, 9)
    assert await admin.stats("x") == await admin.internal_stats("x") == broker.answer
    assert await admin.partitioned_stats("x") == broker.answer
    broker.answer = ["b", "a"]
    assert await admin.topics() == await admin.subscriptions("x") == ["a", "b"]
    broker.answer = b"ok"
    assert await admin.request("GET", "brokers/health") == "ok"
    assert broker.tokens == [None] * len(broker.tokens)


@pytest.mark.parametrize(("partitions", "path"), [(3, "x/partitions"), (0, "x")])
async def test_a_topic_is_deleted_with_its_partitions(broker: Broker, partitions: int, path: str) -> None:
    broker.answer = {"partitions": partitions}
    await PulsarAdmin(broker.url).delete_topic("x")
    assert broker.requests[1:] == [("DELETE", f"/admin/v2/persistent/public/default/{path}?force=true", None)]


@pytest.mark.parametrize(
    ("answer", "details"),
    [({"reason": "no topic x"}, ": no topic x$"), (b"<html>", "Not Found$"), (None, "Not Found$")],
)
async def test_errors(broker: Broker, answer: object, details: str) -> None:
    broker.status, broker.answer = 404, answer
    with pytest.raises(
        PulsarAdminError, match=f"GET /admin/v2/persistent/public/default/x/stats: 404 .*{details}"
    ) as caught:
        await PulsarAdmin(broker.url).stats("x")
    assert caught.value.status == 404
