"""Access to a real Pulsar with tokens and TLS: each thing that is wrong is one clear error, and a token that expires is renewed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.errors import AuthenticationError, ConnectError
from asyncgroup.pulsar.authentication import TokenAuthentication
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.security import Tls
from asyncgroup.testing.apache_pulsar import create_token
from tests.pulsar.real.secured import Secured

pytestmark = [pytest.mark.real, pytest.mark.full]


async def test_with_a_token_and_with_tls(secured: Secured) -> None:
    for url in (secured.pulsar.service_url, secured.pulsar.service_url_tls):
        tls = secured.tls if url.startswith("pulsar+ssl") else None
        assert await secured.partitions(url, authentication=secured.token(), tls=tls) == 3


async def test_a_token_in_a_file_named_by_javas_properties(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(secured.pulsar.token("admin") + "\n")
    config, rest = PulsarConfig.from_properties(
        {
            "serviceUrl": secured.pulsar.service_url_tls,
            "tlsTrustCertsFilePath": secured.authority.ca_file,
            "tlsHostnameVerificationEnable": True,
            "authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "authParams": f"file://{file}",
        }
    )
    async with PulsarClient(rest["service_url"], config) as client:
        assert await client.partitions("orders") == 3


# --- wrong places -----------------------------------------------------------------------------------------------------


async def test_plain_to_the_tls_port(secured: Secured) -> None:
    url = secured.pulsar.service_url_tls.replace("+ssl", "")
    with pytest.raises(ConnectError, match=r"use pulsar\+ssl://, by default with port 6651"):
        await secured.partitions(url, authentication=secured.token())


async def test_tls_to_the_plain_port(secured: Secured) -> None:
    url = secured.pulsar.service_url.replace("pulsar://", "pulsar+ssl://")
    with pytest.raises(ConnectError, match="is it the TLS port"):
        await secured.partitions(url, authentication=secured.token(), tls=secured.tls)


async def test_the_port_of_the_admin_api(secured: Secured) -> None:
    url = secured.pulsar.admin_url.replace("http", "pulsar")
    with pytest.raises(ConnectError, match="this is an HTTP server, not a Pulsar broker"):
        await secured.partitions(url, authentication=secured.token())


async def test_a_port_without_a_listener(secured: Secured) -> None:
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1: Connection refused"):
        await secured.partitions("pulsar://127.0.0.1:1", authentication=secured.token())


async def test_certificates(secured: Secured, tmp_path: Path) -> None:
    url, token = secured.pulsar.service_url_tls, secured.token()
    with pytest.raises(AuthenticationError, match=r"not trusted.*PulsarConfig\(tls=Tls\(ca_file=…\)\)"):
        await secured.partitions(url, authentication=token)
    with pytest.raises(AuthenticationError, match="localhost"):
        await secured.partitions(url.replace("127.0.0.1", "localhost"), authentication=token, tls=secured.tls)
    unchecked = Tls(ca_file=secured.authority.ca_file, check_hostname=False)
    assert (
        await secured.partitions(url.replace("127.0.0.1", "localhost"), authentication=token, tls=unchecked)
        == 3
    )


# --- credentials ------------------------------------------------------------------------------------------------------


async def test_without_a_token(secured: Secured) -> None:
    with pytest.raises(AuthenticationError, match=r"CONNECT: AuthenticationError \(3\)"):
        await secured.partitions(secured.pulsar.service_url)


async def test_tokens_that_are_refused(secured: Secured) -> None:
    for token in (create_token(b"another key, of the right length", "admin"), "no token at all"):
        with pytest.raises(AuthenticationError, match=r"AuthenticationError \(3\)") as raised:
            await secured.partitions(secured.pulsar.service_url, authentication=TokenAuthentication(token))
        assert token not in str(raised.value)


async def test_an_expired_token(secured: Secured) -> None:
    with pytest.raises(
        AuthenticationError, match=r"AuthenticationError \(3\).* the token has expired at 20.* UTC"
    ):
        await secured.partitions(secured.pulsar.service_url, authentication=secured.token(-60.0))


async def test_a_role_without_permission(secured: Secured) -> None:
    bob = TokenAuthentication(secured.pulsar.token("bob"))
    with pytest.raises(PulsarServerError, match=r"AuthorizationError \(4\)"):
        await secured.partitions(secured.pulsar.service_url, authentication=bob)


@asynccontextmanager
async def kept_open(secured: Secured, provider: Any) -> Any:
    """Yield a client with a connection that was used once, and that connection."""
    config = PulsarConfig(authentication=TokenAuthentication(provider), operation_timeout=5.0)
    async with PulsarClient(secured.pulsar.service_url, config) as client:
        assert await client.partitions("orders") == 3
        (connection,) = client._inner.pool.connections
        yield client, connection


async def test_a_connection_outlives_its_tokens(secured: Secured) -> None:
    asked: list[str] = []

    async def provide() -> str:
        asked.append(secured.pulsar.token("admin", 3.0))
        return asked[-1]

    async with kept_open(secured, provide) as (client, connection):
        while len(asked) < 4:
            await asyncio.sleep(0.1)
            assert await client.partitions("orders") == 3
        assert client._inner.pool.connections == [connection]
        assert not connection.is_closed


async def test_a_provider_that_repeats_an_expired_token(secured: Secured) -> None:
    token = secured.pulsar.token("admin", 3.0)
    async with kept_open(secured, lambda: token) as (client, connection):
        while not connection.is_closed:
            await asyncio.sleep(0.1)
        with pytest.raises(AuthenticationError, match="expired"):
            await client.partitions("orders")


async def test_a_provider_that_fails_at_the_refresh(secured: Secured) -> None:
    tokens = [secured.pulsar.token("admin", 3.0)]
    async with kept_open(secured, tokens.pop) as (client, connection):
        while not connection.is_closed:
            await asyncio.sleep(0.1)
        with pytest.raises(ConnectError, match="the provider raised IndexError"):
            await client.partitions("orders")


# --- topics -----------------------------------------------------------------------------------------------------------


async def test_a_namespace_that_does_not_exist(secured: Secured) -> None:
    url, token = secured.pulsar.service_url, secured.token()
    with pytest.raises(
        PulsarServerError, match=r"partitions of persistent://public/none/orders: TopicNotFound \(11\)"
    ):
        await secured.partitions(url, "public/none/orders", authentication=token)


async def test_a_topic_that_does_not_exist_is_not_created(secured: Secured) -> None:
    url, token = secured.pulsar.service_url, secured.token()
    with pytest.raises(
        PulsarServerError, match=r"partitions of persistent://public/default/none: TopicNotFound"
    ):
        await secured.partitions(url, "none", authentication=token)
    async with PulsarClient(url, PulsarConfig(authentication=token)) as client:
        assert [name for name in await client.topics() if "none" in name] == []


async def test_a_topic_that_was_terminated_takes_no_producer(secured: Secured) -> None:
    await secured.pulsar.admin.create_topic("ended")
    await secured.pulsar.admin.terminate("ended")
    config = PulsarConfig(authentication=secured.token())
    async with PulsarClient(secured.pulsar.service_url, config) as client:
        with pytest.raises(
            PulsarServerError, match=r"/ended: TopicTerminatedError \(15\): Topic was already terminated$"
        ):
            await PulsarProducer(client, "ended").__aenter__()


async def test_a_topic_that_is_unloaded_stays_usable(secured: Secured) -> None:
    await secured.pulsar.admin.create_topic("unloaded")
    config = PulsarConfig(authentication=secured.token())
    async with PulsarClient(secured.pulsar.service_url, config) as client:
        async with PulsarProducer(client, "unloaded") as producer:
            for _ in range(3):
                await producer.send(b"value")
                await secured.pulsar.admin.unload("unloaded")
            await producer.send(b"value")
        assert len(client._inner.pool.connections) == 1, "an unload does not end the connection"
