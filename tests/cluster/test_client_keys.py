"""Client configuration with effects on the network: requests in flight, metadata, host names, sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncgroup.cluster import Cluster, ClusterClient
from asyncgroup.cluster.connect_errors import HINTS
from asyncgroup.cluster.connecting import connect
from asyncgroup.cluster.connection import Address
from asyncgroup.config import ClientConfig
from asyncgroup.errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    ConnectError,
    ConnectionLost,
    NoBrokersError,
    RequestTimedOut,
)
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.net.transport import describe_connect_error
from asyncgroup.testing import Network
from asyncgroup.wire import messages as m
from tests.cluster.scripted import PORT, Call, ScriptedCluster, no_answer
from tests.cluster.support import cluster_of, now

virtual = pytest.mark.virtual
NODE = Address(1, "10.0.0.1", PORT)


# --- max_in_flight_requests -------------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("limit", [1, 5])
async def test_further_requests_wait_for_responses(scripted: ScriptedCluster, limit: int) -> None:
    held: list[Call] = []
    scripted[1].script["Heartbeat"] = held.append
    config = ClientConfig(max_in_flight_requests=limit)
    connection = await connect(NODE, "control", config, Hooks())
    tasks = [
        asyncio.create_task(connection.request(m.HeartbeatRequest(generation_id=n), 4, 60.0))
        for n in range(8)
    ]
    for done in range(8):
        await asyncio.sleep(1)
        assert connection.in_flight == min(limit, 8 - done)
        assert len(held) == min(limit + done, 8)
        held[done].answer(m.HeartbeatResponse(error_code=done))
    assert [(await task).error_code for task in tasks] == list(range(8))
    assert [call.request.generation_id for call in held] == list(range(8))
    await connection.aclose()


@virtual
async def test_a_cancelled_caller_frees_its_place_in_the_queue(scripted: ScriptedCluster) -> None:
    held: list[Call] = []
    scripted[1].script["Heartbeat"] = held.append
    connection = await connect(NODE, "control", ClientConfig(max_in_flight_requests=1), Hooks())
    tasks = [asyncio.create_task(connection.request(m.HeartbeatRequest(), 4, 60.0)) for _ in range(3)]
    await asyncio.sleep(1)
    for task in tasks[:2]:  # one in flight, and one that waits for it
        task.cancel()
    await asyncio.sleep(1)
    assert len(held) == 1, "the first request is still in flight"
    held[0].answer(m.HeartbeatResponse())
    await asyncio.sleep(1)
    held[1].answer(m.HeartbeatResponse(error_code=27))
    assert (await tasks[2]).error_code == 27
    await connection.aclose()


@virtual
async def test_requests_waiting_for_a_slot_fail_when_the_connection_ends(scripted: ScriptedCluster) -> None:
    scripted[1].script["Heartbeat"] = no_answer
    connection = await connect(NODE, "control", ClientConfig(max_in_flight_requests=2), Hooks())
    requests = [connection.request(m.HeartbeatRequest(), 4, 7.0) for _ in range(6)]
    failures = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(failure) for failure in failures] == [RequestTimedOut, *[ConnectionLost] * 5]
    assert now() == pytest.approx(7.0)


# --- metadata ---------------------------------------------------------------------------------------------------------


@virtual
async def test_metadata_of_all_topics_or_of_tracked_ones(scripted: ScriptedCluster) -> None:
    scripted.topics = {"a": {0: (1, 1)}, "b": {0: (1, 1)}}
    async with cluster_of(scripted) as cluster:
        assert set(cluster.view.topics) == set()
    async with cluster_of(scripted, metadata_full=True) as cluster:
        assert set(cluster.view.topics) == {"a", "b"}
        scripted.topics["c"] = {0: (1, 1)}
        await cluster.topics(["c"])
        assert set(cluster.view.topics) == {"a", "b", "c"}


@virtual
async def test_a_missing_topic_is_requested_by_name(scripted: ScriptedCluster) -> None:
    """A Metadata request for all topics does not create topics."""
    scripted.topics = {"a": {0: (1, 1)}}

    def answer(call: Call) -> None:
        if call.request.topics is not None:
            scripted.topics.update({topic.name: {0: (1, 1)} for topic in call.request.topics})
        scripted[1].answer_Metadata(call)

    scripted[1].script["Metadata"] = answer
    async with cluster_of(scripted, metadata_full=True) as cluster:
        await cluster.topics(["made"])
        assert set(cluster.view.topics) == {"a", "made"}


@virtual
async def test_lookups_are_limited_by_metadata_timeout(scripted: ScriptedCluster) -> None:
    config: dict[str, Any] = {"metadata_timeout": 3.0, "metadata_retry_max": 1000}
    async with cluster_of(scripted, **config) as cluster:
        with pytest.raises(RequestTimedOut, match=r"topics nowhere: no answer within metadata_timeout=3.0 s"):
            await cluster.topics(["nowhere"])
        assert now() == pytest.approx(3.0, abs=0.01)
        scripted.topics = {"t": {0: (-1, 1)}}
        with pytest.raises(RequestTimedOut, match="leader of t-0"):
            await cluster.leader(TopicPartition("t", 0))
        assert now() == pytest.approx(6.0, abs=0.01)
        scripted[1].script["Metadata"] = no_answer
        with pytest.raises(RequestTimedOut, match="metadata: no answer"):
            await cluster.all_topics()
        assert now() == pytest.approx(9.0, abs=0.01)


@virtual
async def test_a_backoff_function_sets_the_delays(scripted: ScriptedCluster) -> None:
    config: dict[str, Any] = {"metadata_retry_backoff": lambda failures: 10.0 * 2**failures}
    async with cluster_of(scripted, metadata_retry_max=3, metadata_refresh_interval=0, **config) as cluster:
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await cluster.topics(["nowhere"])
        times = [round(asked.time) for asked in scripted.requests_of("Metadata")]
        assert times == [0, 0, 10, 30, 70]


@virtual
@pytest.mark.parametrize("pause", [-1.0, float("nan"), None, "1"])
async def test_an_invalid_delay_of_a_backoff_function_is_an_error(pause: Any) -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        async with cluster_of(scripted, metadata_retry_backoff=lambda _: pause) as cluster:
            with pytest.raises(ConfigError, match="a backoff function's value"):
                await cluster.topics(["nowhere"])


# --- names ------------------------------------------------------------------------------------------------------------


@virtual
async def test_bootstrap_hosts_are_replaced_by_canonical_names(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.hosts["kafka"] = ["10.0.0.1", "10.0.0.2", "10.0.0.9"]
    network.hosts["one.kafka"], network.hosts["two.kafka"] = ["10.0.0.1"], ["10.0.0.2"]
    names = {"10.0.0.1": "one.kafka", "10.0.0.2": "two.kafka"}

    async def getnameinfo(place: tuple[str, int], flags: int = 0) -> tuple[str, str]:
        assert flags == socket.NI_NAMEREQD
        if place[0] not in names:
            raise socket.gaierror(socket.EAI_NONAME, "no name")
        return names[place[0]], str(place[1])

    monkeypatch.setattr(asyncio.get_running_loop(), "getnameinfo", getnameinfo)
    config = ClientConfig(client_dns_lookup="resolve_canonical_bootstrap_servers_only")
    async with ScriptedCluster("10.0.0.1", "10.0.0.2") as scripted:
        async with Cluster(f"kafka:{PORT},one.kafka:{PORT}", config) as cluster:
            shown = repr(cluster)
        assert f"<Cluster one.kafka:{PORT},two.kafka:{PORT},10.0.0.9:{PORT}:" in shown, "each address once"
        assert scripted.requests_of("Metadata")
    with pytest.raises(NoBrokersError, match=r"nowhere.*host name cannot be resolved"):
        async with Cluster(f"nowhere:{PORT}", config):
            pass


# --- sockets ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listening(host: str = "127.0.0.1") -> AsyncIterator[ScriptedCluster]:
    """Run a scripted broker on a real port."""
    scripted = ScriptedCluster(host)
    scripted[1].port = 0
    async with scripted:
        scripted[1].port = scripted[1]._server.sockets[0].getsockname()[1]
        yield scripted


def option(sock: Any, level: int, name: str) -> int:
    return int(sock.getsockopt(level, getattr(socket, name)))


@pytest.mark.parametrize("seconds", [7.0, None])
async def test_keepalive(seconds: float | None) -> None:
    async with listening() as scripted, cluster_of(scripted, tcp_keepalive=seconds) as cluster:
        sock = (await cluster.network.connection(1)).protocol.transport.get_extra_info("socket")
        assert bool(option(sock, socket.SOL_SOCKET, "SO_KEEPALIVE")) == (seconds is not None)
        if seconds is not None and hasattr(socket, "TCP_KEEPIDLE"):
            assert option(sock, socket.IPPROTO_TCP, "TCP_KEEPIDLE") == 7
            assert option(sock, socket.IPPROTO_TCP, "TCP_KEEPINTVL") == 7


async def test_the_local_address() -> None:
    async with listening() as scripted, cluster_of(scripted, local_address="127.0.0.1") as cluster:
        connection = await cluster.network.connection(1)
        assert connection.protocol.transport.get_extra_info("sockname")[0] == "127.0.0.1"
    async with listening() as scripted:
        with pytest.raises(NoBrokersError, match=r"192\.0\.2\.1|assign requested address"):
            async with cluster_of(scripted, local_address="192.0.2.1"):
                pass


async def test_a_connector_opens_every_socket_and_resolves_the_name() -> None:
    asked: list[tuple[str, int]] = []

    async with listening() as scripted:

        async def through_a_proxy(host: str, port: int) -> socket.socket:
            asked.append((host, port))
            sock = socket.socket()
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", scripted[1].port))
            return sock

        place = f"kafka.behind.a.proxy.invalid:{scripted[1].port}"
        async with ClusterClient(place, ClientConfig(connector=through_a_proxy)) as cluster:
            await cluster.network.connection(1)
        assert asked == [
            ("kafka.behind.a.proxy.invalid", scripted[1].port),
            ("127.0.0.1", scripted[1].port),
        ]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LookupError("no such proxy"), "the connector failed: LookupError: no such proxy"),
        (ConnectionRefusedError(111, "x"), "Connection refused"),
    ],
)
async def test_a_connector_that_fails(error: Exception, expected: str) -> None:
    async def broken(host: str, port: int) -> socket.socket:
        raise error

    with pytest.raises(ConnectError, match=f"node 1 .*{expected}"):
        await connect(NODE, "control", ClientConfig(connector=broken), Hooks())


async def test_a_connector_that_does_not_return_a_socket() -> None:
    async def broken(host: str, port: int) -> Any:
        return None

    with pytest.raises(ConnectError, match="the connector failed: AttributeError"):
        await connect(NODE, "control", ClientConfig(connector=broken), Hooks())


# --- error messages ---------------------------------------------------------------------------------------------------


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] something (_ssl.c:1)")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "with_tls", "expected"),
    [
        (tls_error("WRONG_VERSION_NUMBER"), True, "TLS failed: WRONG_VERSION_NUMBER (is it a TLS listener"),
        (tls_error("TLSV1_ALERT_PROTOCOL_VERSION"), True, "TLS failed: TLSV1_ALERT_PROTOCOL_VERSION"),
        (ConnectionResetError(104, "x"), True, "Connection reset by peer, no TLS handshake (is it a TLS listener"),
        (ConnectionResetError(104, "x"), False, "Connection reset by peer"),
        (TimeoutError(), True, "no answer in time, no TLS handshake (is it a TLS listener"),
        (TimeoutError(), False, "no answer in time"),
    ],
)  # fmt: skip
async def test_messages_for_connect_errors(error: Exception, with_tls: bool, expected: str) -> None:
    assert describe_connect_error(NODE, error, with_tls, HINTS).startswith(expected)


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (
            62,
            "Hostname mismatch, certificate is not valid for 'x'.",
            "is not valid for '10.0.0.1': Hostname mismatch",
        ),
        (64, "IP address mismatch", "connect to a name that the certificate has"),
        (85, "Missing Authority Key Identifier", "Python 3.13 requires it"),
        (89, "Basic Constraints of CA cert not marked critical", "without ssl.VERIFY_X509_STRICT"),
        (19, "self-signed certificate in certificate chain", "is not trusted: self-signed certificate"),
    ],
)
async def test_a_certificate_error_names_the_host_and_the_reason(
    code: int, message: str, expected: str
) -> None:
    error = ssl.SSLCertVerificationError("x")
    error.verify_code, error.verify_message = code, message
    with pytest.raises(AuthenticationError, match=expected):
        describe_connect_error(NODE, error, True, HINTS)
