"""Authentication at a Pulsar broker: a token, a user with a password, or the certificate of TLS.

A broker asks for a new credential when one expires (PIP-30); the provider is then called again.
"""

from __future__ import annotations

import inspect
import json
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

from asyncgroup.errors import AuthenticationError, ConfigError
from asyncgroup.secret import HIDDEN, HiddenProvider, Secret, reveal

if TYPE_CHECKING:
    from asyncgroup.security import TokenProvider

__all__ = [
    "BasicAuthentication",
    "PulsarAuthentication",
    "TlsAuthentication",
    "TokenAuthentication",
    "TokenSource",
    "expiry_of",
]

_YEAR_10000: Final = 253_402_300_800
"""Seconds since 1970; the times of Python end before it."""

_SENDABLE: Final = "a string of printable ASCII characters, not empty"

TokenSource: TypeAlias = "str | Secret | Callable[[], str | Awaitable[str]]"
"""A token, or a function that returns one that is valid now; it may be async."""


class PulsarAuthentication(Protocol):
    """How a client proves who it is."""

    @property
    def method(self) -> str:
        """Pulsar's name of the method."""
        ...

    async def credential(self) -> bytes:
        """Return what is sent now. Raises AuthenticationError."""
        ...


@dataclass(frozen=True)
class TokenAuthentication:
    """A JSON web token; a function is called for each connection and for each challenge of a broker."""

    token: TokenSource = field(repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.token, str):
            if not _is_sendable(self.token):
                raise ConfigError("token", HIDDEN, f"{_SENDABLE}, or a function that returns one")
            object.__setattr__(self, "token", Secret(self.token))
        elif callable(self.token) and not isinstance(self.token, HiddenProvider):
            object.__setattr__(self, "token", HiddenProvider(cast("TokenProvider", self.token)))
        elif not isinstance(self.token, Secret | HiddenProvider):
            raise ConfigError("token", HIDDEN, f"{_SENDABLE}, or a function that returns one")

    @property
    def method(self) -> str:
        """Pulsar's name of it."""
        return "token"

    async def credential(self) -> bytes:
        """Return the token."""
        source = self.token
        found = source() if callable(source) else reveal(source)
        if inspect.isawaitable(found):
            found = await found
        if not isinstance(found, str) or not _is_sendable(found):
            raise AuthenticationError(f"the function that returns a token has not returned {_SENDABLE}")
        return found.encode()


@dataclass(frozen=True)
class BasicAuthentication:
    """A user and a password, sent as they are: use it together with TLS."""

    username: str
    password: str | Secret = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.username, str) or not self.username or ":" in self.username:
            raise ConfigError("username", self.username, "a string without colons, not empty")
        if not isinstance(self.password, str | Secret) or not reveal(self.password):
            raise ConfigError("password", HIDDEN, "a string, not empty")
        if isinstance(self.password, str):
            object.__setattr__(self, "password", Secret(self.password))

    @property
    def method(self) -> str:
        """Pulsar's name of it."""
        return "basic"

    async def credential(self) -> bytes:
        """Return both, with a colon between them."""
        return f"{self.username}:{reveal(self.password)}".encode()


@dataclass(frozen=True)
class TlsAuthentication:
    """The client certificate of the TLS connection: set `cert_file` and `key_file` of `Tls`."""

    @property
    def method(self) -> str:
        """Pulsar's name of it."""
        return "tls"

    async def credential(self) -> bytes:
        """Return nothing: the broker has the certificate."""
        return b""


def _is_sendable(token: str) -> bool:
    return bool(token) and token.isascii() and token.isprintable()


def expiry_of(token: bytes) -> float | None:
    """Return when a JSON web token expires, in seconds since 1970; None for one without a limit, and for other bytes."""
    try:
        _, claims, _ = token.split(b".")
        expiry = json.loads(urlsafe_b64decode(claims + b"=" * (-len(claims) % 4)))["exp"]
    except (ValueError, LookupError, TypeError):
        return None
    is_time = isinstance(expiry, int | float) and not isinstance(expiry, bool) and 0 <= expiry < _YEAR_10000
    return float(expiry) if is_time else None
