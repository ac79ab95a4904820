"""Credentials of a connection: in CONNECT, and for challenges, with providers that are slow, fail or never return."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup.errors import AuthenticationError, ConnectError
from asyncgroup.pulsar.authentication import BasicAuthentication, TlsAuthentication, TokenAuthentication
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.security import Tls
from tests.pulsar.scripted import Call, ScriptedPulsar
from tests.pulsar.support import RecordingListener, connected, last_id, now

CHALLENGE = c.CommandAuthChallenge(
    challenge=c.AuthData(auth_method_name="token", auth_data=b"PulsarAuthRefresh"), protocol_version=21
)


class Provider:
    """Returns `token-0`, `token-1`, … after `seconds`, or raises `error` once it is set."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.error: BaseException | None = None
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        number = self.calls - 1
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return f"token-{number}"


def challenge_first(call: Call) -> None:
    """Answer CONNECT with a challenge."""
    call.answer(CHALLENGE)


def accept(call: Call) -> None:
    """Answer AUTH_RESPONSE with CONNECTED."""
    call.answer(c.CommandConnected(server_version="scripted"))


async def fails_to_connect(error: type[Exception], match: str, **config: Any) -> Exception:
    with pytest.raises(error, match=match) as raised:
        await connected(**config).__aenter__()
    return raised.value


def answered_tokens(pulsar: ScriptedPulsar) -> list[bytes | None]:
    """Return the credentials that answered challenges."""
    return [
        one.response.auth_data for one in pulsar.commands(c.CommandAuthResponse) if one.response is not None
    ]


# --- CONNECT ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("authentication", "method", "data"),
    [
        (TokenAuthentication("abc"), "token", b"abc"),
        (TokenAuthentication(lambda: "from a function"), "token", b"from a function"),
        (TokenAuthentication(Provider(1.0)), "token", b"token-0"),
        (BasicAuthentication("alice", "pass:word"), "basic", b"alice:pass:word"),
        (TlsAuthentication(), "tls", b""),
    ],
)
async def test_each_method_in_connect(
    pulsar: ScriptedPulsar, authentication: Any, method: str, data: bytes
) -> None:
    tls = Tls(cert_file="read by the context") if method == "tls" else None
    async with connected(authentication=authentication, tls=tls):
        (sent,) = pulsar.commands(c.CommandConnect)
        assert (sent.auth_method_name, sent.auth_data) == (method, data)


async def test_the_provider_is_asked_for_each_connection(pulsar: ScriptedPulsar) -> None:
    authentication = TokenAuthentication(Provider())
    for _ in range(2):
        async with connected(authentication=authentication):
            pass
    assert [sent.auth_data for sent in pulsar.commands(c.CommandConnect)] == [b"token-0", b"token-1"]


async def test_a_provider_that_raises_is_the_cause_and_its_text_is_not_ours(pulsar: ScriptedPulsar) -> None:
    provider = Provider()
    provider.error = ValueError("bad secret hunter2")
    error = await fails_to_connect(
        ConnectError,
        "^10.0.0.1:6650: authentication by token: the provider raised ValueError",
        authentication=TokenAuthentication(provider),
    )
    assert error.__cause__ is provider.error
    assert "hunter2" not in str(error)
    await asyncio.sleep(0.1)
    assert pulsar.connections == []


@pytest.mark.parametrize("token", [None, "", b"bytes", "new\nline", "umlaut ü", 7])
async def test_a_provider_that_returns_no_token(pulsar: ScriptedPulsar, token: Any) -> None:
    error = await fails_to_connect(
        AuthenticationError,
        "10.0.0.1:6650: authentication by token: the function that returns a token has not returned a string",
        authentication=TokenAuthentication(lambda: token),
    )
    if token:
        assert str(token) not in str(error)
    assert pulsar.commands(c.CommandConnect) == []


async def test_a_provider_that_is_too_slow_is_named(pulsar: ScriptedPulsar) -> None:
    await fails_to_connect(
        ConnectError,
        "6650: the provider of the credential returned nothing in time",
        authentication=TokenAuthentication(Provider(60.0)),
        connect_timeout=3.0,
    )
    assert now() == pytest.approx(3.0)


async def test_a_provider_whose_own_task_was_cancelled(pulsar: ScriptedPulsar) -> None:
    provider = Provider()
    provider.error = asyncio.CancelledError()
    await fails_to_connect(
        ConnectError, "the provider failed: it was cancelled", authentication=TokenAuthentication(provider)
    )


# --- challenges during the handshake ----------------------------------------------------------------------------------


async def test_a_challenge_before_connected_is_answered(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script |= {c.CommandConnect: challenge_first, c.CommandAuthResponse: accept}
    async with connected(authentication=TokenAuthentication(Provider(1.0))):
        (answer,) = pulsar.commands(c.CommandAuthResponse)
        assert answer.response == c.AuthData(auth_method_name="token", auth_data=b"token-1")
        assert answer.protocol_version == 21
        assert answer.client_version is not None
        assert answer.client_version.startswith("asyncgroup-")


async def test_a_challenge_without_a_credential_is_no_reason_to_try_again(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandConnect] = challenge_first
    await fails_to_connect(
        AuthenticationError, "10.0.0.1:6650: the broker asks for a credential, and none is configured"
    )
    assert now() < 1


async def test_a_provider_that_fails_in_a_challenge(pulsar: ScriptedPulsar) -> None:
    provider = Provider()

    def challenge(call: Call) -> None:
        provider.error = OSError("hunter2")
        call.answer(CHALLENGE)

    pulsar.first.script[c.CommandConnect] = challenge
    error = await fails_to_connect(
        ConnectError, "the provider raised OSError", authentication=TokenAuthentication(provider)
    )
    assert error.__cause__ is provider.error
    assert "hunter2" not in str(error)


async def test_a_provider_that_never_answers_a_challenge(pulsar: ScriptedPulsar) -> None:
    provider = Provider()

    def challenge(call: Call) -> None:
        provider.seconds = 1e6
        call.answer(CHALLENGE)

    pulsar.first.script[c.CommandConnect] = challenge
    await fails_to_connect(
        ConnectError,
        "the provider of the credential returned nothing in time",
        authentication=TokenAuthentication(provider),
    )
    assert now() == pytest.approx(10.0)


# --- refreshes --------------------------------------------------------------------------------------------------------


async def test_a_refresh_is_answered_while_the_connection_goes_on(pulsar: ScriptedPulsar) -> None:
    provider = Provider()
    async with connected(authentication=TokenAuthentication(provider)) as connection:
        provider.seconds = 5.0
        (end,) = pulsar.connections
        end.push(CHALLENGE)
        for _ in range(3):
            await connection.request("LAST_ID", last_id, timeout=1)
            await asyncio.sleep(1)
        assert answered_tokens(pulsar) == []
        await asyncio.sleep(3)
        assert answered_tokens(pulsar) == [b"token-1"]
        end.push(CHALLENGE)
        await asyncio.sleep(6)
        assert answered_tokens(pulsar) == [b"token-1", b"token-2"]


async def test_challenges_at_the_same_time_get_one_answer(pulsar: ScriptedPulsar) -> None:
    provider = Provider()
    async with connected(authentication=TokenAuthentication(provider)):
        provider.seconds = 5.0
        (end,) = pulsar.connections
        end.push(CHALLENGE)
        end.push(CHALLENGE)
        await asyncio.sleep(6)
        assert answered_tokens(pulsar) == [b"token-1"]


async def refused_refresh(
    pulsar: ScriptedPulsar, provider: Provider, prepare: Callable[[Provider], object]
) -> tuple[PulsarConnection, RecordingListener]:
    """Return a connection whose provider has failed in a refresh, and what its listener was called."""
    listener = RecordingListener()
    async with connected(authentication=TokenAuthentication(provider)) as connection:
        prepare(provider)
        connection.registered.add_consumer(1, listener)
        waiting = asyncio.create_task(connection.request("LAST_ID", last_id, timeout=60))
        pulsar.first.freeze()
        pulsar.connections[0].push(CHALLENGE)
        with pytest.raises(ConnectError, match="the provider raised ValueError"):
            await waiting
        return connection, listener


async def test_a_failed_refresh_closes_the_connection(
    pulsar: ScriptedPulsar, caplog: pytest.LogCaptureFixture
) -> None:
    provider = Provider()
    with caplog.at_level(logging.DEBUG):
        connection, listener = await refused_refresh(
            pulsar, provider, lambda provider: setattr(provider, "error", ValueError("hunter2"))
        )
    assert connection.is_closed
    ((name, where, error),) = listener.calls
    assert (name, where) == ("on_connection_lost", connection)
    assert error.__cause__ is provider.error
    assert "hunter2" not in caplog.text + str(error)
    assert "no credential for the broker's challenge: 10.0.0.1:6650: authentication by token" in caplog.text


@pytest.mark.parametrize("by", ["aclose", "broker"])
async def test_a_provider_that_blocks_ends_with_the_connection(pulsar: ScriptedPulsar, by: str) -> None:
    ended = asyncio.Event()

    async def block() -> str:
        try:
            if pulsar.commands(c.CommandConnect):
                await asyncio.sleep(1e6)
        finally:
            ended.set()
        return "token"

    async with connected(authentication=TokenAuthentication(block)) as connection:
        ended.clear()
        pulsar.connections[0].push(CHALLENGE)
        await asyncio.sleep(1)
        assert not ended.is_set()
        if by == "broker":
            pulsar.first.cut()
            await asyncio.sleep(0.1)
        else:
            await connection.aclose()
        assert ended.is_set()
        assert connection.is_closed


async def test_no_text_shows_a_secret(pulsar: ScriptedPulsar, caplog: pytest.LogCaptureFixture) -> None:
    authentication = BasicAuthentication("alice", "hunter2")
    pulsar.first.script[c.CommandConnect] = lambda call: call.refuse(3, "Unknown user or wrong password")
    with caplog.at_level(logging.DEBUG):
        error = await fails_to_connect(
            AuthenticationError, "Unknown user or wrong password", authentication=authentication
        )
    assert "hunter2" not in repr(authentication) + str(error) + caplog.text + repr(error.__cause__)


@pytest.mark.parametrize(
    ("claims", "hint"),
    [
        ({"exp": 1_700_000_000}, True),
        ({"exp": 1_700_000_000.5}, True),
        ({"exp": 10_000_000_000}, False),
        ({"exp": "soon"}, False),
        ({"exp": -1e300}, False),
        ({"exp": True}, False),
        ({}, False),
        ([], False),
        (None, False),
    ],
)
async def test_a_refused_token_that_has_expired_is_named(
    pulsar: ScriptedPulsar, claims: Any, hint: bool
) -> None:
    encoded = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    pulsar.first.script[c.CommandConnect] = lambda call: call.refuse(3, "Failed to authenticate")
    for token in (f"header.{encoded}.signature", encoded, f"a.{encoded}=.b.c"):
        error = await fails_to_connect(
            AuthenticationError, "Failed to authenticate", authentication=TokenAuthentication(token)
        )
        assert ("the token has expired at 2023-11-14 22:13:20 UTC)" in str(error)) is (
            hint and token.count(".") == 2
        )
        assert encoded not in str(error)
