"""SASL authentication of one connection: which requests are accepted in which state (Kafka's `SaslServerAuthenticator`;
sessions that expire: KIP-368).

One difference: Kafka answers a failure after `connection.failed.authentication.delay.ms`, this broker at once.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from typing import Final

from asyncgroup.broker.errors import CloseConnection
from asyncgroup.broker.sasl_mechanisms import (
    InvalidCredentials,
    PlainServer,
    SaslRefused,
    SaslServer,
    ScramServer,
)
from asyncgroup.broker.scram_users import ScramUsers
from asyncgroup.broker.security import ListenerSecurity
from asyncgroup.error_codes import ErrorCode

__all__ = ["MAX_TOKEN_BYTES", "Authenticator"]

MAX_TOKEN_BYTES: Final = 524_288
"""Kafka's default of `sasl.server.max.receive.size`: the largest frame of a client that is not authenticated."""

_HANDSHAKE_APIS: Final = frozenset({"ApiVersions", "SaslHandshake"})
_LEAST_REAUTH_INTERVAL: Final = 1.0
"""Seconds between two re-authentications of a connection (`KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS`)."""


class _State(enum.Enum):
    BEGUN = enum.auto()  # ApiVersions or SaslHandshake may come
    VERSIONS_KNOWN = enum.auto()  # SaslHandshake must come
    AUTHENTICATE = enum.auto()  # tokens must come
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
        self._bare_tokens = False  # after SaslHandshake v0 tokens come without Kafka's headers
        self._former: tuple[str, str] | None = None  # mechanism and user, while a connection re-authenticates
        self._ends_at: float | None = None  # when the session ends (loop time)
        self._reauthenticated_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Authenticator {self._mechanism or 'no mechanism yet'} {self._state.name.lower()}>"

    @property
    def complete(self) -> bool:
        """Whether the client is authenticated."""
        return self._state is _State.COMPLETE

    @property
    def failed(self) -> bool:
        """Whether the connection is to be closed."""
        return self._state is _State.FAILED

    @property
    def takes_bare_token(self) -> bool:
        """Whether the next frame is a token and not a request."""
        return self._bare_tokens and self._state is _State.AUTHENTICATE

    @property
    def user(self) -> str:
        """The name of the user, "" before the end of the exchange."""
        return self._server.user if self._server is not None and self._server.complete else ""

    # -- requests --------------------------------------------------------------------------------------------

    def admit(self, api: str) -> bool:
        """Whether a request is handled now; if not, it is answered with ILLEGAL_SASL_STATE.

        Raises CloseConnection where Kafka closes without an answer.
        """
        if self._state is _State.COMPLETE:
            self._check_session(api)
        elif self._state is _State.AUTHENTICATE:
            if self._server is None:
                raise CloseConnection(f"another SASL mechanism than {self._mechanism} for re-authentication")
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
            self._former = (self._mechanism, self.user)
            self._state = _State.VERSIONS_KNOWN
        elif now > self._ends_at:
            raise CloseConnection("the SASL session has ended")

    def answered(self, api: str, error: int) -> None:
        """Note the answer to a request: an error before the end of the exchange means that authentication failed."""
        if self._state is _State.COMPLETE:
            return
        if api == "ApiVersions":
            if self._state is _State.BEGUN and not error:
                self._state = _State.VERSIONS_KNOWN
        elif error:
            self._state = _State.FAILED

    # -- the exchange ----------------------------------------------------------------------------------------

    def handshake(self, mechanism: str, version: int) -> tuple[ErrorCode, list[str]]:
        """The answer to SaslHandshake: an error, and the mechanisms that are served."""
        offered = list(self._security.mechanisms)
        if self._state is _State.COMPLETE:
            return ErrorCode.ILLEGAL_SASL_STATE, []
        if mechanism not in offered:
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM, offered
        self._bare_tokens = version == 0
        self._state = _State.AUTHENTICATE
        self._server = None
        if self._former is None or self._former[0] == mechanism:
            self._mechanism, self._server = mechanism, self._new_server(mechanism)
        return ErrorCode.NONE, offered

    def _new_server(self, mechanism: str) -> SaslServer:
        if mechanism == "PLAIN":
            return PlainServer(self._security.users)
        return ScramServer(mechanism, self._users, self._rng)

    def authenticate(self, token: bytes) -> tuple[bytes, float]:
        """Return the challenge that answers a token, and the session's lifetime in seconds: 0 before the last token, and for
        sessions that do not expire.

        Raises SaslRefused with the message for the client.
        """
        server = self._server
        if server is None or self._state is not _State.AUTHENTICATE:
            raise SaslRefused("SaslAuthenticate request received after successful authentication")
        try:
            answer = server.evaluate(token)
        except InvalidCredentials as error:
            phase = "re-authentication" if self._former is not None else "authentication"
            raise SaslRefused(
                f"Authentication failed during {phase} due to invalid credentials with SASL mechanism {self._mechanism}"
            ) from error
        if not server.complete:
            return answer, 0.0
        self._check_same_user(server.user)
        self._state, self._former = _State.COMPLETE, None
        if self._security.max_reauth:
            self._ends_at = self._now() + self._security.max_reauth
        return answer, self._security.max_reauth

    def _check_same_user(self, user: str) -> None:
        if self._former is not None and self._former[1] != user:
            raise SaslRefused(
                f"Cannot change principals during re-authentication from User.{self._former[1]}: User.{user}"
            )

    def take_bare_token(self, token: bytes) -> bytes:
        """The answer to a token without Kafka's headers; raises CloseConnection for a refusal, which has no answer."""
        try:
            return self.authenticate(token)[0]
        except SaslRefused as error:
            raise CloseConnection(str(error)) from error
