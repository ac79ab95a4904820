"""Servers that do not match the client's security configuration: the error names the cause and what to change.

With real sockets, because TLS and TCP resets do not exist on the in-memory network.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import Cluster
from asyncgroup.config import ClientConfig
from asyncgroup.errors import AuthenticationError, NoBrokersError
from asyncgroup.security import Plain, Scram, Security, Tls
from tests.real.certificates import Authority

TLS = Security(tls=Tls())
HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"


class Server(asyncio.Protocol):
    """Sends `greeting` on connect and `answer` to the first bytes received, then closes (unless `stays`)."""

    def __init__(self, answer: bytes = b"", greeting: bytes = b"", *, stays: bool = False) -> None:
        self.answer = answer
        self.greeting = greeting
        self.stays = stays

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.greeting)

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.answer)
        if not self.stays:
            self.transport.close()


@asynccontextmanager
async def served(make: Callable[[], Server], context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # ignore the server's own handshake errors
    server = await loop.create_server(make, "127.0.0.1", 0, ssl=context)
    try:
        yield "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    finally:
        server.close()


async def refused(servers: str, security: Security | None, kind: type[Exception] = NoBrokersError) -> str:
    """Return the error of a client that tries once; check that it names the address only once."""
    config = ClientConfig(security=security, connect_timeout=1.0, request_timeout=1.0, metadata_retry_max=0)
    with pytest.raises(kind) as caught:
        async with Cluster(servers, config):
            pass
    error_text = str(caught.value)
    assert error_text.count(servers) == 1, error_text
    return error_text


def alert(code: int) -> Callable[[], Server]:
    """Return a server that rejects a TLS handshake with a fatal alert (RFC 8446, 6.2)."""
    return lambda: Server(bytes((0x15, 3, 3, 0, 2, 2, code)))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (70, "the broker rejected this client's TLS versions"),
        (
            40,
            "the broker and this client have no TLS cipher in common, or the listener requires a client certificate",
        ),
        (71, "the broker and this client have no TLS cipher in common"),
        (116, "the listener requires a client certificate: set cert_file and key_file"),
        (48, "the broker rejected this client's certificate"),
        (42, "the broker rejected this client's certificate"),
        (45, "the broker rejected this client's certificate"),
        (46, "the broker rejected this client's certificate"),
        (112, "the broker does not recognize the host name"),
        (80, "TLS failed: TLSV1_ALERT_INTERNAL_ERROR"),
    ],
)
async def test_messages_for_tls_alerts(code: int, expected: str) -> None:
    async with served(alert(code)) as servers:
        text = await refused(servers, TLS)
        assert f"{servers}: TLS failed: " in text
        assert expected in text


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Server, "the broker closed the connection, no TLS handshake (is it a TLS listener?"),
        (lambda: Server(stays=True), "no answer in time, no TLS handshake (is it a TLS listener?"),
        (lambda: Server(HTTP), "TLS failed: WRONG_VERSION_NUMBER (is it a TLS listener"),
        (lambda: Server(greeting=b"SSH-2.0-OpenSSH_9.6\r\n"), "TLS failed: WRONG_VERSION_NUMBER (is it a TLS listener"),
    ],
    ids=["closes", "no answer", "HTTP", "SSH"],
)  # fmt: skip
async def test_tls_to_a_listener_without_tls(make: Callable[[], Server], expected: str) -> None:
    async with served(make) as servers:
        assert f"{servers}: {expected}" in await refused(servers, TLS)


async def test_tls_to_a_plaintext_broker() -> None:
    async with EmbeddedCluster() as broker:
        error_text = await refused(broker.bootstrap_servers, TLS)
        assert (
            "no TLS handshake (is it a TLS listener? For a plaintext listener remove tls from the configuration: "
            in error_text
        )
        assert "security.protocol=PLAINTEXT or SASL_PLAINTEXT)" in error_text


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Server, "the broker closed the connection before it answered any request (does the listener expect TLS?"),
        (lambda: Server(stays=True), "no answer in time"),
        (lambda: Server(HTTP), "this is an HTTP server, not a Kafka broker"),
        (lambda: Server(greeting=b"SSH-2.0-OpenSSH_9.6\r\n"), "this is an SSH server, not a Kafka broker"),
        (alert(80), "the listener expects TLS: set security.protocol=SSL or SASL_SSL, in code security=Security(tls=Tls(…))"),
    ],
    ids=["closes", "no answer", "HTTP", "SSH", "TLS alert"],
)  # fmt: skip
async def test_messages_for_plaintext_to_another_kind_of_server(
    make: Callable[[], Server], expected: str
) -> None:
    async with served(make) as servers:
        assert f"{servers}: {expected}" in await refused(servers, None)


@pytest.mark.parametrize("sasl", [Plain("alice", "x"), Scram("alice", "x")])
async def test_sasl_on_a_listener_without_sasl(sasl: Any) -> None:
    async with EmbeddedCluster() as broker:
        error_text = await refused(broker.bootstrap_servers, Security(sasl=sasl), AuthenticationError)
        assert (
            f"{broker.bootstrap_servers}: this listener does not support SASL/{sasl.mechanism} or any other mechanism"
            in error_text
        )
        assert "remove sasl from the configuration" in error_text


# --- certificates -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def server_context(cert_file: str, ca_file: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file)
    if ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(ca_file)
    return context


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("20200101000000Z", "20200201000000Z", "certificate has expired: renew it on the broker"),
        ("20900101000000Z", "20910101000000Z", "certificate is not yet valid: check the clocks of both machines"),
    ],
    ids=["expired", "not yet valid"],
)  # fmt: skip
async def test_expired_and_not_yet_valid_certificates(
    authority: Authority, start: str, end: str, expected: str
) -> None:
    cert = authority.sign_for("dated", "IP:127.0.0.1", start, end)
    async with served(Server, server_context(cert)) as servers:
        security = Security(tls=Tls(ca_file=authority.ca_file))
        assert expected in await refused(servers, security, AuthenticationError)


async def test_a_broker_certificate_of_an_unknown_ca(authority: Authority) -> None:
    async with served(Server, server_context(authority.sign("broker", "IP:127.0.0.1"))) as servers:
        error_text = await refused(servers, TLS, AuthenticationError)
        assert (
            "is not trusted: unable to get local issuer certificate (is its CA in ca_file, or ssl.truststore.location?)"
            in error_text
        )


async def test_a_missing_client_certificate(authority: Authority) -> None:
    """With TLS 1.3 the rejection comes after the handshake; some brokers only close the connection."""
    context = server_context(authority.sign("mutual", "IP:127.0.0.1"), authority.ca_file)
    async with served(Server, context) as servers:
        error_text = await refused(servers, Security(tls=Tls(ca_file=authority.ca_file)))
        assert "does the listener require a client certificate? Then set cert_file and key_file" in error_text


async def test_a_client_certificate_of_an_untrusted_ca(authority: Authority, tmp_path: Path) -> None:
    context = server_context(authority.sign("strict", "IP:127.0.0.1"), authority.ca_file)
    cert = Authority(tmp_path, "other").sign("client", "IP:127.0.0.1")
    async with served(Server, context) as servers:
        error_text = await refused(servers, Security(tls=Tls(ca_file=authority.ca_file, cert_file=cert)))
        assert "does the broker trust the CA of this client's certificate?" in error_text


async def test_an_http_server_with_tls(authority: Authority) -> None:
    context = server_context(authority.sign("web", "IP:127.0.0.1"))
    async with served(lambda: Server(HTTP), context) as servers:
        error_text = await refused(servers, Security(tls=Tls(ca_file=authority.ca_file)))
        assert "this is an HTTP server, not a Kafka broker" in error_text
