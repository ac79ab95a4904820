"""SASL on a new connection: SaslHandshake, then SaslAuthenticate until both sides are content (KIP-152, KIP-368)."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from asyncgroup.cluster.connection import Connection
from asyncgroup.cluster.scram import ScramClient, ScramError
from asyncgroup.errors import AuthenticationError, BrokerError, ConnectError, ErrorCode
from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.lifecycle import describe_error
from asyncgroup.secret import reveal
from asyncgroup.security import OAuthBearer, Plain, Sasl, Scram
from asyncgroup.wire import messages as m

__all__ = ["authenticate"]

_Exchange = Generator[bytes, bytes, None]
"""Yields what the client says, is sent what the broker answers; ends when the client is content."""


class _RefusedError(Exception):
    """The broker is not content, and has not said so by an error code."""


async def authenticate(connection: Connection, sasl: Sasl, timeout: float) -> None:
    """Prove who we are; the connection then knows when its session ends.

    `timeout` (seconds) holds for each request. Raises AuthenticationError where trying again is no use, ConnectError
    where it may be: a token provider that failed, a broker that cannot say yet.
    """
    subject = _subject(connection, sasl)
    exchange = await _exchange(sasl, subject)
    await _choose_mechanism(connection, sasl, timeout)
    lifetime_ms = 0
    try:
        token = next(exchange)
        while True:
            answer = await _send_token(connection, token, subject, timeout)
            lifetime_ms = answer.session_lifetime_ms
            token = exchange.send(answer.auth_bytes)
    except StopIteration:
        pass
    except (ScramError, _RefusedError) as error:
        raise AuthenticationError(f"{subject}: {error}") from error
    if lifetime_ms > 0:
        connection.set_session_lifetime(lifetime_ms / 1000)


def _subject(connection: Connection, sasl: Sasl) -> str:
    """Who proves what to whom, for errors."""
    user = "" if isinstance(sasl, OAuthBearer) else f" as user {sasl.username!r}"
    return f"{connection.address}: SASL/{sasl.mechanism}{user}"


async def _choose_mechanism(connection: Connection, sasl: Sasl, timeout: float) -> None:
    if m.SaslHandshakeRequest.API_KEY not in connection.versions:
        raise AuthenticationError(f"{connection.address}: {_no_sasl(sasl)}")
    # the first version wraps what follows in SaslAuthenticate; before it bare tokens went over the wire (Kafka 0.10)
    version = connection.version_for(m.SaslHandshakeRequest, lowest=1)
    response = await connection.request(m.SaslHandshakeRequest(sasl.mechanism), version, timeout)
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = printable(", ".join(sorted(response.mechanisms)), MAX_TEXT_LENGTH) or "none"
        raise AuthenticationError(
            f"{connection.address}: the broker does not offer SASL/{sasl.mechanism}; it offers {offered}"
        )
    if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationError(f"{connection.address}: {_no_sasl(sasl)}: ILLEGAL_SASL_STATE (34)")
    if response.error_code:
        _raise_refusal(response.error_code, f"{connection.address}: SaslHandshake for {sasl.mechanism}", None)


def _no_sasl(sasl: Sasl) -> str:
    return (
        f"this listener takes no SASL/{sasl.mechanism}, nor any other (leave sasl out, "
        "or use the port of a SASL listener)"
    )


async def _send_token(
    connection: Connection, token: bytes, subject: str, timeout: float
) -> m.SaslAuthenticateResponse:
    version = connection.version_for(m.SaslAuthenticateRequest)
    response = await connection.request(m.SaslAuthenticateRequest(token), version, timeout)
    if response.error_code:
        _raise_refusal(response.error_code, subject, response.error_message)
    return response


def _raise_refusal(code: int, subject: str, detail: str | None) -> None:
    error = BrokerError(code, subject, detail)
    raise (ConnectError if error.retriable else AuthenticationError)(str(error))


# --- the mechanisms ---------------------------------------------------------------------------------------------------


async def _exchange(sasl: Sasl, subject: str) -> _Exchange:
    if isinstance(sasl, Plain):
        return _plain(sasl)
    if isinstance(sasl, Scram):
        return _scram(sasl)
    return _oauth_bearer(sasl, await _token(sasl, subject))


async def _token(sasl: OAuthBearer, subject: str) -> str:
    try:
        token = await sasl.token_provider()
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        # its own, of some task that it waited for: nobody has cancelled us
        raise ConnectError(f"{subject}: the token provider failed: it was cancelled") from error
    except Exception as error:
        raise ConnectError(f"{subject}: the token provider failed: {describe_error(error)}") from error
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise AuthenticationError(f"{subject}: the token provider gave no token (printable ASCII text)")
    return token


def _plain(sasl: Plain) -> _Exchange:
    """RFC 4616: one message, answered by nothing or a refusal."""
    yield f"{sasl.authzid}\0{sasl.username}\0{reveal(sasl.password)}".encode()


def _scram(sasl: Scram) -> _Exchange:
    client = ScramClient(sasl.mechanism, sasl.username, reveal(sasl.password), sasl.authzid)
    challenge = yield client.first()
    answer = yield client.final(challenge)
    client.verify(answer)


def _oauth_bearer(sasl: OAuthBearer, token: str) -> _Exchange:
    """RFC 7628: a refusal comes as a challenge, which the client has to acknowledge to hear the error."""
    fields = [f"auth=Bearer {token}", *(f"{name}={reveal(value)}" for name, value in sasl.extensions.items())]
    name = sasl.authzid.replace("=", "=3D").replace(",", "=2C")
    header = f"n,{'a=' + name if name else ''},"
    challenge = yield "\x01".join((header, *fields, "", "")).encode()
    if challenge:
        yield b"\x01"
        raise _RefusedError("the broker refuses the token")
