"""SASL authentication of one connection (Kafka's `SaslServerAuthenticator`, with re-authentication of KIP-368).

One difference: Kafka responds to a failure after `connection.failed.authentication.delay.ms`, this broker at once.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from typing import Final

from asyncgroup.broker.errors import CloseConnection
from asyncgroup.broker.metadata.scram_users import ScramUsers
from asyncgroup.broker.net.sasl_mechanisms import (
    InvalidCredentials,
    PlainServer,
    SaslAuthenticationError,
    SaslServer,
    ScramServer,
)
from asyncgroup.broker.net.security import ListenerSecurity, passwords_of
from asyncgroup.error_codes import ErrorCode

__all__ = ["MAX_TOKEN_BYTES", "Authenticator"]

MAX_TOKEN_BYTES: Final = 524_288
"""Kafka's default of `sasl.server.max.receive.size`: the largest frame, in bytes, from an unauthenticated client."""

_HANDSHAKE_APIS: Final = frozenset({"ApiVersions", "SaslHandshake"})
_LEAST_REAUTH_INTERVAL: Final = 1.0
"""Minimum seconds between re-authentications of a connection (`KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS`)."""


class _State(enum.Enum):
    BEGUN = enum.auto()  # ApiVersions or SaslHandshake is expected
    VERSIONS_KNOWN = enum.auto()  # SaslHandshake is expected
    AUTHENTICATE = enum.auto()  # tokens are expected
    COMPLETE = enum.auto()
    FAILED = enum.auto()


class Authenticator:
    """The authentication of one connection; `now` gives the loop's time in seconds."""

    def __init__(
        self,
        security: ListenerSecurity,
        users: ScramUsers,
        rng: random.Random,
        now: Callable[[], float],
    ) -> None:
        self._security = security
        self._users = users
        self._rng = rng
        self._now = now
        self._state = _State.BEGUN
        self._mechanism = ""
        self._server: SaslServer | None = None
        self._raw_tokens = False  # after SaslHandshake v0, tokens are sent without request headers
        self._previous: tuple[str, str] | None = None  # mechanism and user during a re-authentication
        self._ends_at: float | None = None  # when the session expires (loop time), None: never
        self._reauthenticated_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Authenticator {self._mechanism or 'no mechanism yet'} {self._state.name.lower()}>"

    @property
    def complete(self) -> bool:
        """Whether the client is authenticated."""
        return self._state is _State.COMPLETE

    @property
    def failed(self) -> bool:
        """Whether authentication failed and the connection must be closed."""
        return self._state is _State.FAILED

    @property
    def expects_raw_token(self) -> bool:
        """Whether the next frame is a token and not a request."""
        return self._raw_tokens and self._state is _State.AUTHENTICATE

    @property
    def user(self) -> str:
        """The name of the user, "" until the exchange is complete."""
        return self._server.user if self._server is not None and self._server.complete else ""

    # -- requests --------------------------------------------------------------------------------------------

    def admit(self, api: str) -> bool:
        """Return whether the request may be handled in this state; if not, the response is ILLEGAL_SASL_STATE.

        Raise CloseConnection where Kafka closes the connection without a response.
        """
        if self._state is _State.COMPLETE:
            self._check_session(api)
        elif self._state is _State.AUTHENTICATE:
            if self._server is None:
                raise CloseConnection(f"re-authentication must use the SASL mechanism {self._mechanism}")
            if api != "SaslAuthenticate":
                return False
        elif api not in _HANDSHAKE_APIS:
            raise CloseConnection(f"unexpected Kafka request of type {api} during SASL handshake")
        elif api == "ApiVersions" and self._state is _State.VERSIONS_KNOWN:
            raise CloseConnection("a second ApiVersions request during SASL handshake")
        return True

    def _check_session(self, api: str) -> None:
        if self._ends_at is None:
            return
        now = self._now()
        if api == "SaslHandshake" and now - self._reauthenticated_at >= _LEAST_REAUTH_INTERVAL:
            self._reauthenticated_at = now
            self._previous = (self._mechanism, self.user)
            self._state = _State.VERSIONS_KNOWN
        elif now > self._ends_at:
            raise CloseConnection("the SASL session has expired")

    def answered(self, api: str, error: int) -> None:
        """Update the state after a response; an error before the exchange is complete fails authentication."""
        if self._state is _State.COMPLETE:
            return
        if api == "ApiVersions":
            if self._state is _State.BEGUN and not error:
                self._state = _State.VERSIONS_KNOWN
        elif error:
            self._state = _State.FAILED

    # -- the exchange ----------------------------------------------------------------------------------------

    def handshake(self, mechanism: str, version: int) -> tuple[ErrorCode, list[str]]:
        """Handle SaslHandshake; return an error and the enabled mechanisms."""
        offered = list(self._security.mechanisms)
        if self._state is _State.COMPLETE:
            return ErrorCode.ILLEGAL_SASL_STATE, []
        if mechanism not in offered:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM, offered
        self._raw_tokens = version == 0
        self._state = _State.AUTHENTICATE
        self._server = None
        if self._previous is None or self._previous[0] == mechanism:
            self._mechanism = mechanism
            self._server = self._new_server(mechanism)
        return ErrorCode.NONE, offered

    def _new_server(self, mechanism: str) -> SaslServer:
        if mechanism == "PLAIN":
            return PlainServer(passwords_of(self._security))
        return ScramServer(mechanism, self._users, self._rng)

    def authenticate(self, token: bytes) -> tuple[bytes, float]:
        """Return the challenge for a token, and the session lifetime in seconds.

        The lifetime is 0 before the last token, and if it is unlimited. Raise SaslAuthenticationError with the
        message for the client.
        """
        server = self._server
        if server is None or self._state is not _State.AUTHENTICATE:
            raise SaslAuthenticationError("SaslAuthenticate request received after successful authentication")
        try:
            answer = server.evaluate(token)
        except InvalidCredentials as error:
            phase = "re-authentication" if self._previous is not None else "authentication"
            raise SaslAuthenticationError(
                f"Authentication failed during {phase} due to invalid credentials with SASL mechanism {self._mechanism}"
            ) from error
        if not server.complete:
            return answer, 0.0
        self._check_same_user(server.user)
        self._state = _State.COMPLETE
        self._previous = None
        if self._security.max_reauth:
            self._ends_at = self._now() + self._security.max_reauth
        return answer, self._security.max_reauth

    def _check_same_user(self, user: str) -> None:
        if self._previous is not None and self._previous[1] != user:
            raise SaslAuthenticationError(
                f"Cannot change principals during re-authentication from User.{self._previous[1]}: User.{user}"
            )

    def authenticate_raw(self, token: bytes) -> bytes:
        """Return the challenge for a token without request headers.

        Raise CloseConnection on failure: it has no response.
        """
        try:
            return self.authenticate(token)[0]
        except SaslAuthenticationError as error:
            raise CloseConnection(str(error)) from error
