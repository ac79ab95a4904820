"""SASL authentication of a new connection: SaslHandshake, then SaslAuthenticate requests (KIP-152, KIP-368).

Mechanisms: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator
from typing import Final

from asyncgroup.cluster.connection import Connection
from asyncgroup.errors import AuthenticationError, BrokerError, ConnectError, ErrorCode
from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.secret import reveal
from asyncgroup.security import OAuthBearer, Plain, Sasl, Scram
from asyncgroup.wire import messages as m
from asyncgroup.wire.scram import (
    HASHES,
    MIN_ITERATIONS,
    ScramError,
    decode_base64,
    escape_saslname,
    hmac_digest,
    parse_attributes,
    salted_password,
    xor_bytes,
)

__all__ = ["ScramClient", "TokenTime", "authenticate"]

MAX_ITERATIONS: Final = 131_072
"""The server chooses the number of iterations; a huge one would block the event loop. Kafka's own maximum is 16,384."""

_Exchange = Generator[bytes, bytes, None]
"""One SASL exchange: yields each client token and is sent the broker's answer; returns when authentication is complete."""


class _RefusedError(Exception):
    """The broker refused the credentials in its SASL answer, without an error code."""


class TokenTime:
    """The time that one connection waits for its token provider: part of `connect_timeout`."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._began: float | None = None
        self._ended: float | None = None

    def __enter__(self) -> None:
        self._began = self._time()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._ended = self._time()

    def describe(self, timeout: float) -> str | None:
        """Return what to say of a connection that was not ready after `timeout` seconds; None if the provider was fast."""
        if self._began is None:
            return None
        if self._ended is None:
            return f"the token provider returned no token within {timeout:g} s (connect_timeout)"
        seconds = self._ended - self._began
        return f"the token provider took {seconds:.1f} of {timeout:g} s" if seconds > timeout / 2 else None


async def authenticate(connection: Connection, sasl: Sasl, timeout: float, token_time: TokenTime) -> None:
    """Authenticate, and store the SASL session's lifetime on the connection (KIP-368).

    `timeout` (seconds) applies to each request. Raises AuthenticationError if a retry cannot help, ConnectError if it
    can: the token provider failed, or the broker answered with a retriable error. The provider's exception is its
    `__cause__`; its text, which may contain the token, is not in ours.
    """
    subject = _subject(connection, sasl)
    exchange = await _exchange(sasl, subject, token_time)
    await _choose_mechanism(connection, sasl, timeout)
    lifetime_ms = 0
    try:
        token = next(exchange)
        while True:
            answer = await _send_token(connection, token, subject, timeout)
            # the lifetime of the session is in the last response
            lifetime_ms = answer.session_lifetime_ms
            token = exchange.send(answer.auth_bytes)
    except StopIteration:
        pass
    except (ScramError, _RefusedError) as error:
        raise AuthenticationError(f"{subject}: {error}") from error
    if lifetime_ms > 0:
        connection.set_session_lifetime(lifetime_ms / 1000)


def _subject(connection: Connection, sasl: Sasl) -> str:
    """Return the address, mechanism and user name, as the beginning of error messages."""
    user = "" if isinstance(sasl, OAuthBearer) else f" as user {sasl.username!r}"
    return f"{connection.address}: SASL/{sasl.mechanism}{user}"


async def _choose_mechanism(connection: Connection, sasl: Sasl, timeout: float) -> None:
    if m.SaslHandshakeRequest.API_KEY not in connection.versions:
        raise AuthenticationError(f"{connection.address}: {_no_sasl(sasl)}")
    # From version 1 on tokens are sent in SaslAuthenticate requests; version 0 (Kafka 0.10) sends them unframed.
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
        f"this listener does not support SASL/{sasl.mechanism} or any other mechanism (remove sasl from the "
        "configuration, or use the port of a SASL listener)"
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


async def _exchange(sasl: Sasl, subject: str, token_time: TokenTime) -> _Exchange:
    if isinstance(sasl, Plain):
        return _plain(sasl)
    if isinstance(sasl, Scram):
        return _scram(sasl)
    return _oauth_bearer(sasl, await _token(sasl, subject, token_time))


async def _token(sasl: OAuthBearer, subject: str, token_time: TokenTime) -> str:
    try:
        with token_time:
            token = await sasl.token_provider()
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        # Raised by a task inside the provider; the current task itself was not cancelled.
        raise ConnectError(f"{subject}: the token provider failed: it was cancelled") from error
    except Exception as error:
        text = f"the token provider raised {type(error).__name__} (see __cause__; its text may contain the token)"
        raise ConnectError(f"{subject}: {text}") from error
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise AuthenticationError(
            f"{subject}: the token provider did not return a token (a non-empty string of printable ASCII characters)"
        )
    return token


def _plain(sasl: Plain) -> _Exchange:
    """RFC 4616: a single client message; the broker answers with an empty token or an error code."""
    yield f"{sasl.authzid}\0{sasl.username}\0{reveal(sasl.password)}".encode()


def _scram(sasl: Scram) -> _Exchange:
    client = ScramClient(sasl.mechanism, sasl.username, reveal(sasl.password), sasl.authzid)
    challenge = yield client.first()
    answer = yield client.final(challenge)
    client.verify(answer)


def _oauth_bearer(sasl: OAuthBearer, token: str) -> _Exchange:
    """RFC 7628: a refusal arrives as a challenge; the client must acknowledge it to receive the error code."""
    fields = [f"auth=Bearer {token}", *(f"{name}={reveal(value)}" for name, value in sasl.extensions.items())]
    name = escape_saslname(sasl.authzid)
    header = f"n,{'a=' + name if name else ''},"
    challenge = yield "\x01".join((header, *fields, "", "")).encode()
    if challenge:
        yield b"\x01"
        raise _RefusedError("the broker refuses the token")


class ScramClient:
    """One SCRAM exchange (RFC 5802, with SHA-256 of RFC 7677 and Kafka's SHA-512), without I/O.

    No channel binding ("n"), because Kafka does not offer it. Send `first()`, then `final(server_first)`, then call
    `verify(server_final)`. `final` and `verify` raise ScramError if the server's message is malformed or its proof is wrong.
    """

    def __init__(
        self, mechanism: str, username: str, password: str, authzid: str = "", nonce: str | None = None
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._header = f"n,{'a=' + escape_saslname(authzid) if authzid else ''},"  # RFC 5802's gs2-header
        self._first_bare = f"n={escape_saslname(username)},r={self._nonce}"  # client-first-message-bare
        self._signature = b""  # the ServerSignature to expect; empty until `final`

    def first(self) -> bytes:
        """Return the client-first-message."""
        return (self._header + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client-final-message, which proves that the client knows the password."""
        attributes = parse_attributes(server_first)
        nonce, salt, iterations = (
            attributes.get("r", ""),
            decode_base64(attributes.get("s", "")),
            attributes.get("i", ""),
        )
        if "m" in attributes:
            raise ScramError("the server requires an extension that this client does not support")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce must be the client's nonce followed by further characters")
        # `int` of a very long number takes long
        if not salt or not (iterations.isascii() and iterations.isdecimal() and len(iterations) < 10):
            raise ScramError("the server's first message has no valid salt or iteration count")
        if not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
            limits = f"{MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed"
            raise ScramError(f"the server requires {iterations} iterations; {limits}")
        binding = base64.b64encode(self._header.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        message = b",".join((self._first_bare.encode(), server_first, without_proof.encode()))
        salted = salted_password(self._mechanism, self._password, salt, int(iterations))
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(HASHES[self._mechanism], client_key).digest()
        mask = self._hmac(stored_key, message)
        proof = xor_bytes(client_key, mask)
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check the server's signature, which proves that it knows the password."""
        attributes = parse_attributes(server_final)
        if "e" in attributes:
            raise ScramError(
                f"the server refused authentication: {printable(attributes['e'], MAX_TEXT_LENGTH)}"
            )
        signature = decode_base64(attributes.get("v", ""))
        # without `final` no signature is expected; the comparison takes the same time for any bytes
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise ScramError("the server's signature is wrong: it does not know the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac_digest(self._mechanism, key, message)
