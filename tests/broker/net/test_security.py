"""TLS and SASL on the embedded cluster's listeners: SASL exchanges, rejected clients, session lifetimes."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest

from asyncgroup import Cluster, Consumer, Producer
from asyncgroup.broker import ClusterOptions, EmbeddedCluster, ListenerSecurity
from asyncgroup.broker.net.security import passwords_of
from asyncgroup.cluster.authentication import ScramClient
from asyncgroup.config import ClientConfig, ConsumerConfig, ProducerConfig
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError, AuthenticationError, ConfigError, NoBrokersError
from asyncgroup.security import Plain, Sasl, Scram, Security, Tls
from asyncgroup.wire import messages as m
from tests.broker.client import VERSIONS, Client, Disconnected, connect, is_alive
from tests.broker.internals import node_of
from tests.real.certificates import Authority

PASSWORD = 'se=cr,et "quoted"'
USERS = {"alice": PASSWORD, "b=o,b": "other"}
SECURED = ListenerSecurity(users=USERS)
SCRAMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
MECHANISMS = ["PLAIN", *SCRAMS]


async def handshake(client: Client, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return await client.ask(m.SaslHandshakeRequest(mechanism), version)


async def authenticate(client: Client, token: bytes, version: int | None = None) -> Any:
    return await client.ask(m.SaslAuthenticateRequest(token), version)


async def log_in(client: Client, user: str = "alice", password: str = PASSWORD) -> Any:
    assert (await handshake(client)).error_code == 0
    return await authenticate(client, f"\0{user}\0{password}".encode())


async def scram(client: Client, mechanism: str, user: str, password: str) -> Any:
    """Run a SCRAM exchange; return its last response."""
    assert (await handshake(client, mechanism)).error_code == 0
    exchange = ScramClient(mechanism, user, password)
    answer = await authenticate(client, exchange.first())
    if not answer.error_code:
        answer = await authenticate(client, exchange.final(answer.auth_bytes))
    if not answer.error_code:
        exchange.verify(answer.auth_bytes)
    return answer


# -- exchanges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("mechanism", SCRAMS)
async def test_scram(mechanism, user):
    async with EmbeddedCluster(security=SECURED) as cluster:
        async with connect(cluster) as client:
            assert (await client.ask(VERSIONS)).api_keys
            assert (await scram(client, mechanism, user, USERS[user])).error_code == 0
            assert await is_alive(client)
        for name, password in ((user, "wrong"), ("nobody", "x")):
            async with connect(cluster) as client:
                answer = await scram(client, mechanism, name, password)
                assert (answer.error_code, answer.error_message) == (
                    ErrorCode.SASL_AUTHENTICATION_FAILED,
                    f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}",
                )
                assert await client.disconnected() == b""


@pytest.mark.parametrize("version", range(3))
async def test_plain(version):
    async with EmbeddedCluster(security=SECURED) as cluster:
        for token, text in (
            (f"\0alice\0{PASSWORD}", None),
            (f"alice\0alice\0{PASSWORD}", None),
            ("\0alice\0wrong", "Authentication failed: Invalid username or password"),
            ("\0nobody\0wrong", "Authentication failed: Invalid username or password"),
            ("\0\0x", "Authentication failed: username not specified"),
            ("\0alice\0", "Authentication failed: password not specified"),
            (
                f"bob\0alice\0{PASSWORD}",
                "Authentication failed: Client requested an authorization id that is different from username",
            ),
            ("alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
            ("a\0b\0c\0d", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        ):
            async with connect(cluster) as client:
                await handshake(client)
                answer = await authenticate(client, token.encode(), version)
                assert answer.error_message == (text or "")
                assert answer.error_code == (58 if text else 0)
                assert answer.session_lifetime_ms == 0
                if text:
                    assert await client.disconnected() == b""
                else:
                    assert await is_alive(client)


async def test_after_version_0_of_the_handshake_tokens_have_no_headers():
    async with EmbeddedCluster(security=SECURED) as cluster:
        async with connect(cluster) as client:
            assert (await handshake(client, version=0)).mechanisms == MECHANISMS
            client.send_frame(f"\0alice\0{PASSWORD}".encode())
            assert await client.receive_frame() == b""
            assert await is_alive(client)
        async with connect(cluster) as client:
            await handshake(client, version=0)
            client.send_frame(b"\0alice\0wrong")
            assert await client.disconnected() == b""


# -- rejected clients-------------------------------------------------------------------------------------------


async def test_nothing_is_served_before_authentication():
    async with EmbeddedCluster(security=SECURED) as cluster:
        cluster.create_topic("t")
        async with connect(cluster) as client:
            with pytest.raises(Disconnected):
                await client.ask(m.MetadataRequest())
        async with connect(cluster) as client:
            assert (await client.ask(VERSIONS)).api_keys
            with pytest.raises(Disconnected):
                await client.ask(VERSIONS)
        async with connect(cluster) as client:  # a request between handshake and token
            await handshake(client)
            answer = await client.ask(m.ListGroupsRequest())
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await client.disconnected() == b""
        async with connect(cluster) as client:
            with pytest.raises(Disconnected):
                await authenticate(client, f"\0alice\0{PASSWORD}".encode())
        async with connect(cluster) as client:  # `sasl.server.max.receive.size`
            await handshake(client)
            client.send_bytes((524_289).to_bytes(4, "big"))
            assert await client.disconnected() == b""


async def test_a_mechanism_that_is_not_offered():
    security = ListenerSecurity(users=USERS, mechanisms=["SCRAM-SHA-512"])
    async with EmbeddedCluster(security=security) as cluster, connect(cluster) as client:
        answer = await handshake(client, "PLAIN")
        assert (answer.error_code, answer.mechanisms) == (33, ["SCRAM-SHA-512"])
        assert await client.disconnected() == b""


async def test_sasl_requests_without_sasl_and_after_authentication():
    late = "SaslAuthenticate request received after successful authentication"
    for security in (None, SECURED):
        async with EmbeddedCluster(security=security) as cluster, connect(cluster) as client:
            if security is not None:
                assert (await log_in(client)).error_code == 0
            answer = await handshake(client)
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
            answer = await authenticate(client, b"x")
            assert (answer.error_code, answer.error_message) == (ErrorCode.ILLEGAL_SASL_STATE, late)
            assert await is_alive(client)


async def test_large_frames_are_allowed_after_authentication():
    async with EmbeddedCluster(security=SECURED) as cluster, connect(cluster) as client:
        await log_in(client)
        groups = [f"{number:0>30000}" for number in range(20)]
        assert len((await client.ask(m.DescribeGroupsRequest(groups))).groups) == 20


# -- sessions ----------------------------------------------------------------------------------------------------


async def test_a_session_ends_without_reauthentication():
    security = ListenerSecurity(users=USERS, max_reauth=10.0)
    async with EmbeddedCluster(security=security) as cluster:
        async with connect(cluster) as client:
            assert (await log_in(client)).session_lifetime_ms == 10_000
            await asyncio.sleep(9)
            assert (await log_in(client)).session_lifetime_ms == 10_000
            await asyncio.sleep(9)
            assert await is_alive(client)
            await asyncio.sleep(1.1)
            with pytest.raises(Disconnected):
                await client.ask(VERSIONS)
        async with connect(cluster) as client:  # with another user
            await log_in(client)
            answer = await log_in(client, "b=o,b", "other")
            assert answer.error_message == (
                "Cannot change principals during re-authentication from User.alice: User.b=o,b"
            )
            assert await client.disconnected() == b""
        async with connect(cluster) as client:  # twice in a row
            await log_in(client)
            await log_in(client)
            assert (await handshake(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        async with connect(cluster) as client:  # with another mechanism
            await log_in(client)
            assert (await handshake(client, SCRAMS[0])).error_code == 0
            with pytest.raises(Disconnected):
                await authenticate(client, b"x")
        async with connect(cluster) as client:
            await scram(client, SCRAMS[0], "alice", PASSWORD)
            answer = await scram(client, SCRAMS[0], "alice", "wrong")
            assert "during re-authentication due to invalid credentials" in answer.error_message


# -- asyncgroup's client--------------------------------------------------------------------------------------------


def sasl_of(mechanism: str, password: str = PASSWORD) -> Sasl:
    return Plain("alice", password) if mechanism == "PLAIN" else Scram("alice", password, mechanism)  # type: ignore[arg-type]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_asyncgroups_client_is_accepted_and_rejected(mechanism):
    async with EmbeddedCluster(3, security=SECURED) as cluster:
        config = ClientConfig(security=Security(sasl=sasl_of(mechanism)))
        async with Cluster(cluster.bootstrap_servers, config) as ours:
            assert len(ours.view.brokers) == 3
        config = ClientConfig(security=Security(sasl=sasl_of(mechanism, "wrong")))
        with pytest.raises(AuthenticationError, match="SASL_AUTHENTICATION_FAILED"):
            async with Cluster(cluster.bootstrap_servers, config):
                pass
        with pytest.raises(AsyncGroupError):
            async with Cluster(cluster.bootstrap_servers, ClientConfig(connect_timeout=1.0)):
                pass


async def test_a_fault_rejects_authentication():
    async with EmbeddedCluster(security=SECURED) as cluster:
        cluster.faults.on("SaslAuthenticate", nth=1).error("SASL_AUTHENTICATION_FAILED")
        async with connect(cluster) as client:
            assert (await log_in(client)).error_code == 58
            assert await client.disconnected() == b""
        async with connect(cluster) as client:
            assert (await log_in(client)).error_code == 0


# -- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> str:
    return authority.sign("broker", "IP:127.0.0.1")


def tls(authority: Authority, **more: Any) -> Tls:
    return Tls(ca_file=authority.ca_file, **more)


@pytest.mark.asyncio(loop_factories=["real", "uvloop"])
async def test_records_over_tls_and_scram(authority, certificate):
    secured = ListenerSecurity(cert_file=certificate, users=USERS)
    assert secured.protocol == "SASL_SSL"
    security = Security(tls=tls(authority), sasl=sasl_of("SCRAM-SHA-512"))
    values = [b"%d" % number * 20_000 for number in range(10)]  # larger than a TLS record and than one read
    async with EmbeddedCluster(2, security=secured) as cluster:
        cluster.create_topic("t")
        async with Producer(cluster.bootstrap_servers, ProducerConfig(security=security)) as producer:
            await asyncio.gather(*(producer.send("t", value) for value in values))
        assert sorted(record.value or b"" for record in cluster.records("t")) == sorted(values)
        config = ConsumerConfig(security=security, auto_offset_reset="earliest")
        async with Consumer(cluster.bootstrap_servers, config) as consumer:
            partition = await consumer.partition("t", 0, 0)
            seen = [(await anext(partition)).value for _ in values]
        assert sorted(value or b"" for value in seen) == sorted(values)
        await cluster.stop_node(1)
        await cluster.start_node(1)
        async with Cluster(cluster.bootstrap_servers, ClientConfig(security=security)) as ours:
            assert len(ours.view.brokers) == 2


@pytest.mark.real
async def test_mutual_tls(authority, certificate):
    secured = ListenerSecurity(cert_file=certificate, client_ca_file=authority.ca_file)
    assert secured.protocol == "SSL"
    async with EmbeddedCluster(security=secured) as cluster:
        own = authority.sign("client", "DNS:client")
        config = ClientConfig(security=Security(tls=tls(authority, cert_file=own)))
        async with Cluster(cluster.bootstrap_servers, config) as ours:
            assert len(ours.view.brokers) == 1
        config = ClientConfig(security=Security(tls=tls(authority)), connect_timeout=2.0)
        with pytest.raises(AsyncGroupError):
            async with Cluster(cluster.bootstrap_servers, config):
                pass


@pytest.mark.real
async def test_a_certificate_that_the_client_does_not_trust(certificate, caplog):
    async with EmbeddedCluster(security=ListenerSecurity(cert_file=certificate)) as cluster:
        config = ClientConfig(security=Security(tls=Tls()))
        with pytest.raises((AuthenticationError, NoBrokersError)):
            async with Cluster(cluster.bootstrap_servers, config):
                pass
    assert "TLS handshake with" in caplog.text


@pytest.mark.real
async def test_a_client_that_disconnects_during_the_handshake(certificate, caplog):
    async with EmbeddedCluster(security=ListenerSecurity(cert_file=certificate)) as cluster:
        host, _, port = cluster.bootstrap_servers.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(60):
            while "TLS handshake with" not in caplog.text:
                await asyncio.sleep(0.01)
    assert "the client closed the connection" in caplog.text


@pytest.mark.real
async def test_the_cluster_stops_during_a_handshake(certificate):
    async with EmbeddedCluster(security=ListenerSecurity(cert_file=certificate)) as cluster:
        node = node_of(cluster, 1)
        reader, writer = await asyncio.open_connection(node.host, node.port)
        async with asyncio.timeout(60):
            while not node.listener.connections:
                await asyncio.sleep(0.001)
    assert await reader.read() == b""
    writer.close()


@pytest.mark.asyncio(loop_factories=["real", "uvloop"])
async def test_a_client_that_sends_immediately_after_the_handshake(authority, certificate):
    """Its first request may arrive together with the end of the handshake."""
    context = ssl.create_default_context(cafile=authority.ca_file)
    async with EmbeddedCluster(security=ListenerSecurity(cert_file=certificate)) as cluster:
        node = cluster.nodes[1]
        for _ in range(20):
            reader, writer = await asyncio.open_connection(node.host, node.port, ssl=context)
            client = Client(reader, writer, "test")
            assert await is_alive(client)
            await client.close()


# -- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"users": {}},
        {"users": {"": "x"}},
        {"users": {"alice": ""}},
        {"users": {"alice": "\udcff"}},
        {"users": {"\udcff": "x"}},
        {"users": "alice:x"},
        {"users": USERS, "mechanisms": []},
        {"users": USERS, "mechanisms": "SCRAM"},
        {"users": USERS, "mechanisms": ["GSSAPI"]},
        {"users": USERS, "max_reauth": -1.0},
        {"users": USERS, "key_file": "key.pem"},
        {"users": USERS, "client_ca_file": "ca.pem"},
    ],
    ids=repr,
)
async def test_invalid_settings_are_rejected(settings):
    with pytest.raises(ConfigError):
        ListenerSecurity(**settings)


@pytest.mark.real
async def test_certificates_that_cannot_be_read(tmp_path: Path, certificate):
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    for settings, key in (
        ({"cert_file": tmp_path / "none.pem"}, "cert_file"),
        ({"cert_file": bad}, "cert_file"),
        ({"cert_file": certificate, "client_ca_file": bad}, "client_ca_file"),
    ):
        with pytest.raises(ConfigError, match=key):
            EmbeddedCluster(security=ListenerSecurity(**settings))


@pytest.mark.real
async def test_passwords_are_hidden(certificate):
    secured = ListenerSecurity(cert_file=certificate, key_password=PASSWORD, users=USERS)
    copies = (
        secured,
        copy.deepcopy(secured),
        dataclasses.replace(secured),
        pickle.loads(pickle.dumps(secured)),
    )
    for one in copies:
        assert one == secured
        for shown in (
            repr(one),
            str(vars(one)),
            str(dataclasses.asdict(one)),
            str(ClusterOptions(security=one)),
        ):
            assert PASSWORD not in shown
    assert passwords_of(copies[-1]) == USERS
    with pytest.raises(ConfigError) as caught:
        ListenerSecurity(cert_file=certificate, key_password=PASSWORD.encode())
    assert PASSWORD not in str(caught.value)
