"""Brokers that accept some clients only: tokens, passwords, and tokens that expire while their clients are connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup.errors import AuthenticationError, ConfigError, UsageError
from asyncgroup.pulsar.authentication import BasicAuthentication, PulsarAuthentication, TokenAuthentication
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.wire.commands import CommandError, FeatureFlags
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker import EmbeddedPulsar
from asyncgroup.pulsar_broker.credentials import AcceptedCredentials, CredentialRefused
from tests.pulsar_broker.net.credential_stories import STORIES, Tokens
from tests.pulsar_broker.wire_client import WireClient

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

TOKENS = {"one": "ann", "two": "ann", "other": "bob"}


@asynccontextmanager
async def embedded(**options: Any) -> AsyncIterator[EmbeddedPulsar]:
    async with EmbeddedPulsar(
        hosts=["10.0.0.1"], port=6650, topics="t", **{"tokens": TOKENS, **options}
    ) as pulsar:
        yield pulsar


def client_of(pulsar: EmbeddedPulsar, authentication: PulsarAuthentication | None) -> PulsarClient:
    return PulsarClient(pulsar.service_url, PulsarConfig(authentication=authentication))


class Provider:
    """Returns these tokens, one after the other, and the last one again."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]


@pytest.mark.parametrize(
    "authentication",
    [
        None,
        TokenAuthentication("unknown"),
        TokenAuthentication("ann:secret"),
        BasicAuthentication("ann", "wrong"),
        BasicAuthentication("carl", "secret"),
        BasicAuthentication("one", "ann"),
    ],
)
async def test_clients_with_another_credential_are_refused(
    authentication: PulsarAuthentication | None,
) -> None:
    async with embedded(users={"ann": "secret"}) as pulsar, client_of(pulsar, authentication) as client:
        with pytest.raises(AuthenticationError, match="Failed to authenticate"):
            async with client.producer("t"):
                pass
        [connect, *_] = pulsar.history.of("Connect")
        assert isinstance(connect.response, CommandError)
        assert connect.response.error == ServerError.AUTHENTICATION_ERROR
        assert pulsar.history.of("Producer", "LookupTopic", "PartitionedTopicMetadata") == []
        assert pulsar.brokers[1].connections == 0


@pytest.mark.parametrize(
    "authentication", [TokenAuthentication("one"), BasicAuthentication("ann", "se:cret")]
)
async def test_clients_with_a_credential_are_served(authentication: PulsarAuthentication) -> None:
    async with embedded(users={"ann": "se:cret"}) as pulsar, client_of(pulsar, authentication) as client:
        async with client.producer("t") as producer:
            await producer.send(b"1")
        assert [message.value for message in pulsar.messages("t")] == [b"1"]


async def test_a_broker_without_credentials_accepts_any_client() -> None:
    async with embedded(tokens=None) as pulsar, client_of(pulsar, TokenAuthentication("any")) as client:
        async with client.producer("t") as producer:
            await producer.send(b"1")
        with pytest.raises(UsageError, match="accept any client"):
            pulsar.accept_token("one", "ann")


# --- tokens that expire -----------------------------------------------------------------------------------------------


async def test_a_client_whose_token_expires_goes_on_with_the_next_one() -> None:
    provider = Provider("one", "two")
    async with (
        embedded() as pulsar,
        client_of(pulsar, TokenAuthentication(provider)) as client,
        client.producer("t") as producer,
    ):
        await producer.send(b"1")
        await asyncio.sleep(300)
        assert provider.calls == 1
        pulsar.expire_token("one")
        await asyncio.sleep(59)
        await producer.send(b"2")
        await asyncio.sleep(600)
        await producer.send(b"3")
        assert provider.calls == 2
        assert (len(pulsar.history.of("Connect")), len(pulsar.history.of("AuthResponse"))) == (1, 1)
        pulsar.expire_token("two")
        pulsar.accept_token("three", "ann")
        provider.tokens = ["three"]
        await asyncio.sleep(61)
        await producer.send(b"4")
        assert (len(pulsar.history.of("Connect")), len(pulsar.history.of("AuthResponse"))) == (1, 2)


async def test_the_interval_of_the_looks_is_an_option() -> None:
    provider = Provider("one", "two")
    async with (
        embedded(credential_interval=5.0) as pulsar,
        client_of(pulsar, TokenAuthentication(provider)) as client,
        client.producer("t"),
    ):
        pulsar.expire_token("one")
        await asyncio.sleep(6)
        assert provider.calls == 2


@pytest.mark.parametrize("token", ["one", "other"])
async def test_a_client_that_answers_with_the_expired_token_or_another_role_is_disconnected(
    token: str,
) -> None:
    provider = Provider("one", token, "two")
    async with (
        embedded() as pulsar,
        client_of(pulsar, TokenAuthentication(provider)) as client,
        client.producer("t") as producer,
    ):
        await producer.send(b"1")
        pulsar.expire_token("one")
        await asyncio.sleep(61)
        await producer.send(b"2")  # on another connection, with the third token
        assert (len(pulsar.history.of("Connect")), provider.calls) == (2, 3)
        [answer] = pulsar.history.of("AuthResponse")
        is_refused = isinstance(answer.response, CommandError)
        assert is_refused is (token == "one")


@pytest.mark.parametrize(("can_refresh", "seconds"), [(True, 120), (False, 60)])
async def test_a_client_that_does_not_answer_is_disconnected(can_refresh: bool, seconds: int) -> None:
    async with (
        embedded() as pulsar,
        WireClient.of(
            pulsar.service_url,
            auth_method_name="token",
            auth_data=b"one",
            feature_flags=FeatureFlags(supports_auth_refresh=can_refresh),
        ) as client,
    ):
        producer = await client.produce_to("t")
        pulsar.expire_token("one")
        await asyncio.sleep(seconds - 2)
        assert await producer.send(b"1") == 0
        await asyncio.sleep(4)
        assert pulsar.brokers[1].connections == 0


async def test_a_connection_with_an_expired_token_is_refused() -> None:
    async with embedded() as pulsar:
        pulsar.expire_token("one")
        async with client_of(pulsar, TokenAuthentication("one")) as client:
            with pytest.raises(AuthenticationError):
                async with client.producer("t"):
                    pass
            pulsar.accept_token("one", "ann")
            async with client.producer("t"):
                pass


async def test_a_restarted_broker_asks_for_tokens_again() -> None:
    provider = Provider("one", "one", "two")
    async with (
        embedded() as pulsar,
        client_of(pulsar, TokenAuthentication(provider)) as client,
        client.producer("t") as producer,
    ):
        await pulsar.restart_broker(1)
        await producer.send(b"1")
        pulsar.expire_token("one")
        await asyncio.sleep(61)
        assert len(pulsar.history.of("AuthResponse")) == 1


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"tokens": ["s3cret"]},
        {"tokens": {"s3cret": 1}},
        {"tokens": {"s3cret": ""}},
        {"users": "s3cret"},
        {"users": {"ann": b"s3cret"}},
        {"credential_interval": 0.0},
    ],
)
async def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))) as raised:
        EmbeddedPulsar(**options)
    assert "s3cret" not in str(raised.value)


async def test_wrong_tokens() -> None:
    async with embedded() as pulsar:
        calls: list[Callable[[], None]] = [
            lambda: pulsar.accept_token("", "ann"),
            lambda: pulsar.accept_token("s3cret", ""),
            lambda: pulsar.accept_token(b"s3cret", "ann"),  # type: ignore[arg-type]
        ]
        for call in calls:
            with pytest.raises(ConfigError) as raised:
                call()
            assert "s3cret" not in str(raised.value)
        with pytest.raises(UsageError, match="no such token"):
            pulsar.expire_token("s3cret")


@pytest.mark.parametrize(
    ("header", "role"),
    [
        ("Bearer one", "ann"),
        ("bearer  other ", "bob"),
        ("Basic YW5uOnNlY3JldA==", "ann"),
        ("Basic YW5uOndyb25n", None),
        ("Basic ?", None),
        ("Bearer", None),
        ("Digest one", None),
        ("", None),
    ],
)
def test_headers_of_http(header: str, role: str | None) -> None:
    accepted = AcceptedCredentials(TOKENS, {"ann": "secret"})
    if role is not None:
        assert accepted.role_of_header(header) == role
    else:
        with pytest.raises(CredentialRefused):
            accepted.role_of_header(header)


@pytest.mark.parametrize(("header", "method"), [("Bearer one", "token"), ("Basic YW5uOnNlY3JldA==", "basic")])
def test_the_method_in_a_header_of_http(header: str, method: str) -> None:
    accepted = AcceptedCredentials(TOKENS, {"ann": "secret"})
    assert accepted.role_of_header(header, method) == accepted.role_of_header(header) == "ann"
    for other in {"token", "basic", "unknown"} - {method}:
        with pytest.raises(CredentialRefused):
            accepted.role_of_header(header, other)


# --- as Apache Pulsar -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORIES)
async def test_answers_are_those_of_apache_pulsar(name: str) -> None:
    roles = {"valid": "admin", "fresh": "admin", "expiring": "admin", "other": "other"}
    tokens, story = Tokens(*roles), STORIES[name]
    async with embedded(tokens=roles) as pulsar:
        found = await story.run(pulsar.service_url, tokens, lambda: pulsar.expire_token("expiring"), 200.0)
    assert found == list(story.expected)
