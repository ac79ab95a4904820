"""The readiness probe of a broker, against a fake broker with given responses."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from asyncgroup.testing.apache_kafka.probe import ProbeResult, probe

API_VERSIONS_OK = struct.pack(">hi", 0, 0)
Serve = Callable[[list[bytes]], tuple[str, int]]


def text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()


def metadata(cluster_id: str | None, *node_ids: int) -> bytes:
    brokers = b"".join(
        struct.pack(">i", node) + text("localhost") + struct.pack(">i", 9092) + text(None)
        for node in node_ids
    )
    return struct.pack(">i", len(node_ids)) + brokers + text(cluster_id) + struct.pack(">ii", 1, 0)


def framed(request: bytes, body: bytes) -> bytes:
    """Return a response with the correlation id of the request."""
    return struct.pack(">i", 4 + len(body)) + request[8:12] + body


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server that answers the n-th request of one connection with the n-th body, then closes it."""
    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)

    def run(bodies: list[bytes]) -> None:
        connection, _ = listener.accept()
        with connection:
            for body in bodies:
                request = connection.recv(1000)
                connection.sendall(framed(request, body))

    def start(bodies: list[bytes]) -> tuple[str, int]:
        threads.append(threading.Thread(target=run, args=(bodies,)))
        threads[-1].start()
        host, port = listener.getsockname()
        return host, port

    yield start
    for thread in threads:
        thread.join(60)
    listener.close()


def test_a_valid_answer(serve: Serve) -> None:
    host, port = serve([API_VERSIONS_OK, metadata("cluster", 1, 3)])
    assert probe(host, port) == ProbeResult("cluster", frozenset({1, 3}))


def test_a_cluster_without_id_and_brokers(serve: Serve) -> None:
    assert probe(*serve([API_VERSIONS_OK, metadata(None)])) == ProbeResult(None, frozenset())


def test_an_error_of_api_versions(serve: Serve) -> None:
    with pytest.raises(ValueError, match="ApiVersions answered with error 35"):
        probe(*serve([struct.pack(">hi", 35, 0)]))


def test_a_connection_that_closes(serve: Serve) -> None:
    with pytest.raises(ConnectionError):
        probe(*serve([API_VERSIONS_OK]))


@pytest.mark.parametrize("cut", [1, 4, 9, 30])
def test_a_truncated_response(serve: Serve, cut: int) -> None:
    with pytest.raises(ValueError, match="the response is too short"):
        probe(*serve([API_VERSIONS_OK, metadata("cluster", 1)[:cut]]))


def test_another_protocol_on_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1000)

        other_server = threading.Thread(target=greet)
        other_server.start()
        with pytest.raises(ValueError, match="not the response of a Kafka broker"):
            probe(*listener.getsockname())
        other_server.join(60)


def test_no_listener_on_the_port() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            probe(*bound.getsockname())


def test_a_listener_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with pytest.raises(TimeoutError):
            probe(host, port, limit=0.05)
