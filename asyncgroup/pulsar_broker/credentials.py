"""AcceptedCredentials: which credentials the brokers accept, and whose they are (Pulsar's `AuthenticationService`).

Of a client that is connected ClientCredential has the one that it was accepted with. A token may expire: its clients are asked for
another one then (PIP-30).
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Final

from asyncgroup.errors import UsageError
from asyncgroup.pulsar.wire.commands import AuthData

__all__ = ["CREDENTIAL_INTERVAL", "REFRESH", "AcceptedCredentials", "ClientCredential", "CredentialRefused"]

CREDENTIAL_INTERVAL: Final = 60.0
"""Seconds between two looks at whether the credentials of connected clients have expired (`authenticationRefreshCheckSeconds`)."""

REFRESH: Final = AuthData(auth_method_name="token", auth_data=b"PulsarAuthRefresh")
"""What a broker asks for another token with (`AuthData.REFRESH_AUTH_DATA`)."""

_METHODS: Final = {"bearer": "token", "basic": "basic"}
"""The method of each scheme of HTTP."""


class CredentialRefused(Exception):
    """A credential that is unknown or has expired, or none."""


class AcceptedCredentials:
    """Tokens with their roles, and users with their passwords; with neither of them clients need no credential."""

    def __init__(
        self, tokens: Mapping[str, str] | None = None, users: Mapping[str, str] | None = None
    ) -> None:
        self._tokens = dict(tokens or {})
        self._users = dict(users or {})
        self._expired: set[str] = set()
        self.are_required = bool(self._tokens or self._users)
        """Whether clients need a credential."""

    def __repr__(self) -> str:
        return f"<AcceptedCredentials {len(self._tokens)} tokens, {len(self._users)} users>"

    def accept_token(self, token: str, role: str) -> None:
        """Accept another token, also one that has expired."""
        if not self.are_required:
            raise UsageError("these brokers accept any client: EmbeddedPulsar(tokens={'secret': 'ann'})")
        self._tokens[token] = role
        self._expired.discard(token)

    def expire_token(self, token: str) -> None:
        """Accept a token no longer."""
        if token not in self._tokens:
            raise UsageError("there is no such token")  # its text is a secret
        self._expired.add(token)

    def is_expired(self, method: str, data: bytes) -> bool:
        """Whether a credential that was accepted has expired since."""
        return method == "token" and data.decode(errors="replace") in self._expired

    def role_of(self, method: str, data: bytes) -> str:
        """Return whose credential it is. Raises CredentialRefused."""
        text = data.decode(errors="replace")
        if method == "token" and text in self._tokens and text not in self._expired:
            return self._tokens[text]
        if method == "basic":
            user, separator, password = text.partition(":")
            if separator and self._users.get(user) == password:
                return user
        raise CredentialRefused(method)

    def role_of_header(self, authorization: str, method: str = "") -> str:
        """Return whose credential the `Authorization` of an HTTP request is. Raises CredentialRefused.

        `method` is the one that `X-Pulsar-Auth-Method-Name` has, if there is such a header.
        """
        scheme, _, data = authorization.strip().partition(" ")
        found = _METHODS.get(scheme.lower())
        if found is None or method not in ("", found):
            raise CredentialRefused(method or scheme)
        if found == "token":
            return self.role_of(found, data.strip().encode())
        try:
            return self.role_of(found, b64decode(data, validate=True))
        except ValueError:
            raise CredentialRefused(found) from None


class ClientCredential:
    """The credential of a connected client (Pulsar's `AuthenticationState`). `can_refresh`: the client answers when it is asked for another one."""

    def __init__(self, accepted: AcceptedCredentials, method: str, data: bytes, *, can_refresh: bool) -> None:
        """Raises CredentialRefused."""
        self.role = accepted.role_of(method, data)
        self.can_refresh = can_refresh
        self.is_asked = False
        """Whether the client was asked for another one and has not answered."""
        self._accepted = accepted
        self._method = method
        self._data = data

    def __repr__(self) -> str:
        return f"<ClientCredential of {self.role!r}, {self._method}>"

    @property
    def is_expired(self) -> bool:
        """Whether it is not accepted any more."""
        return self._accepted.is_expired(self._method, self._data)

    def renew(self, data: bytes) -> bool:
        """Take the place of the former one; return whether the role is the same, else it stays. Raises CredentialRefused."""
        self.is_asked = False
        if self._accepted.role_of(self._method, data) != self.role:
            return False
        self._data = data
        return True
