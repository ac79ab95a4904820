"""Security of a client's connections: TLS, and SASL with PLAIN, SCRAM or OAUTHBEARER.

    Security(tls=Tls(ca_file="ca.pem"), sasl=Scram("alice", password))

Passwords, keys and tokens are hidden in reprs, log lines, errors, `vars`, `asdict` and pickles (`asyncgroup.secret` has
the table). `Plain(…).password.reveal()` returns the text.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from asyncgroup.checks import may_be_async, wrong_type
from asyncgroup.errors import ConfigError
from asyncgroup.secret import HIDDEN, HiddenProvider, Secret, reveal

__all__ = ["HIDDEN", "OAuthBearer", "Plain", "Sasl", "Scram", "Security", "Tls", "TokenProvider"]

TokenProvider: TypeAlias = Callable[[], Awaitable[str]]
"""An async function that returns a currently valid token; awaited for each new connection, within `connect_timeout`."""

_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+\Z")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+\Z")


def _check_text(key: str, value: object, *, secret: bool = False, empty: bool = False) -> None:
    """Raise ConfigError if a value is not a string, is empty unless allowed, or has a NUL: it separates PLAIN's fields."""
    if not isinstance(value, str) or "\0" in value or not (value or empty):
        shown = HIDDEN if secret else value
        raise ConfigError(key, shown, "a string without NUL characters" + ("" if empty else ", not empty"))


def _hidden(value: Any) -> Any:
    return Secret(value) if isinstance(value, str) else value


def _hide(settings: object, key: str) -> None:
    """Replace a string by a Secret; `object.__setattr__` is needed because the dataclass is frozen."""
    object.__setattr__(settings, key, _hidden(getattr(settings, key)))


def _check_credentials(settings: Plain | Scram) -> None:
    """Raise ConfigError for texts that cannot be sent, and hide the password."""
    _check_text("username", settings.username)
    _check_text("password", reveal(settings.password), secret=True)
    _check_text("authzid", settings.authzid, empty=True)
    _hide(settings, "password")


@dataclass(frozen=True)
class Plain:
    """SASL/PLAIN (RFC 4616): the password itself is sent to the broker, so use it together with TLS.

    `authzid` is the identity to act as, if it differs from `username`.
    """

    username: str
    password: str | Secret = field(repr=False)
    authzid: str = ""

    def __post_init__(self) -> None:
        _check_credentials(self)

    @property
    def mechanism(self) -> str:
        """Kafka's name of it."""
        return "PLAIN"


@dataclass(frozen=True)
class Scram:
    """SASL/SCRAM (RFC 5802, RFC 7677): both sides prove that they know the password; it is never sent.

    Name and password are encoded as UTF-8, without SASLprep, as Kafka does (`ScramFormatter.java`).
    """

    username: str
    password: str | Secret = field(repr=False)
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    authzid: str = ""

    def __post_init__(self) -> None:
        _check_credentials(self)
        if self.mechanism not in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            raise ConfigError("mechanism", self.mechanism, "SCRAM-SHA-256 or SCRAM-SHA-512")


@dataclass(frozen=True)
class OAuthBearer:
    """SASL/OAUTHBEARER (RFC 7628, KIP-255): `token_provider` is an async function without arguments; it returns a token.

    `extensions` are sent with the token (KIP-342): names consist of letters and must not be `auth`, values are
    printable.
    """

    token_provider: TokenProvider
    extensions: Mapping[str, str | Secret] = field(default_factory=dict, repr=False, hash=False)
    authzid: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.token_provider, HiddenProvider) and not may_be_async(self.token_provider):
            allowed = "an async function () -> str (functools.partial(…) of one if it needs arguments, not a lambda)"
            raise ConfigError("token_provider", HIDDEN, allowed)
        _check_text("authzid", self.authzid, empty=True)
        _check_type("extensions", self.extensions, Mapping)
        hidden = {name: _hidden(value) for name, value in self.extensions.items()}
        for name, value in self.extensions.items():
            text = reveal(value)
            if not isinstance(name, str) or not _EXTENSION_NAME.match(name) or name.lower() == "auth":
                raise ConfigError("extensions", name, "names of the letters a-z A-Z, and not auth")
            if not isinstance(text, str) or not _EXTENSION_VALUE.match(text):
                raise ConfigError("extensions", name, "values of printable ASCII characters, not empty")
        object.__setattr__(self, "extensions", hidden)
        if not isinstance(self.token_provider, HiddenProvider):
            object.__setattr__(self, "token_provider", HiddenProvider(self.token_provider))

    @property
    def mechanism(self) -> str:
        """Kafka's name of it."""
        return "OAUTHBEARER"


Sasl: TypeAlias = Plain | Scram | OAuthBearer


@dataclass(frozen=True, kw_only=True)
class Tls:
    """TLS settings; by default the system's certificate authorities are trusted.

    - `ca_file`, or `ca_data` (PEM): the certificate authorities to trust instead.
    - `cert_file` and `key_file`, or `cert_data` and `key_data` (PEM): the client certificate, for brokers that require
      one. The certificate's file may contain the key. `key_password` decrypts an encrypted key.
    - `check_hostname`: whether a broker's certificate must match the host name that the client connects to.
    - `context`: an `ssl.SSLContext` for all other needs (ciphers, versions, stores); it replaces all of the above.
    """

    ca_file: str | os.PathLike[str] | None = None
    ca_data: str | None = field(default=None, repr=False)
    cert_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None
    cert_data: str | Secret | None = field(default=None, repr=False)
    key_data: str | Secret | None = field(default=None, repr=False)
    key_password: str | Secret | None = field(default=None, repr=False)
    check_hostname: bool = True
    context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        _check_type("context", self.context, ssl.SSLContext)
        for key in _TLS_KEYS:
            _check_type(
                key, reveal(getattr(self, key)), str, *((os.PathLike,) if key.endswith("_file") else ())
            )
        if not isinstance(self.check_hostname, bool):
            raise wrong_type("check_hostname", self.check_hostname, "True or False")
        given = [key for key in _TLS_KEYS if getattr(self, key) is not None]
        if self.context is not None and (given or not self.check_hostname):
            other = given[0] if given else "check_hostname"
            raise ConfigError(
                "context", self.context, f"an SSL context replaces all other settings; leave {other} out"
            )
        for one, other in (("ca_file", "ca_data"), ("cert_file", "cert_data"), ("key_file", "key_data")):
            if one in given and other in given:
                raise ConfigError(one, getattr(self, one), f"None, as {other} is given")
        for key, needed in (("key_file", "cert_file"), ("key_data", "cert_data"), ("cert_data", "key_data")):
            if key in given and needed not in given:
                raise ConfigError(key, HIDDEN if key == "key_data" else "given", f"only with {needed}")
        if self.key_password is not None and not {"cert_file", "cert_data"} & set(given):
            raise ConfigError("key_password", HIDDEN, "only with cert_file or cert_data")
        for key in ("cert_data", "key_data", "key_password"):
            _hide(self, key)

    def make_context(self) -> ssl.SSLContext:
        """Create the SSL context; reads the files. Raises ConfigError with the key whose file or data cannot be loaded."""
        if self.context is not None:
            return self.context
        try:
            context = ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_data)
        except (OSError, ValueError) as error:
            key = "ca_file" if self.ca_file is not None else "ca_data"
            raise ConfigError(key, self.ca_file or "given", f"readable PEM: {_why(error)}") from error
        context.check_hostname = self.check_hostname
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load_certificate(context)
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        # without a password OpenSSL would prompt for that of an encrypted key on the terminal
        password = reveal(self.key_password) or ""
        try:
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file, lambda: password)
            elif self.cert_data is not None and self.key_data is not None:
                # OpenSSL loads a certificate from a file only: a temporary one, readable by this user only
                with tempfile.TemporaryDirectory(prefix="asyncgroup-") as folder:
                    both = Path(folder, "both.pem")
                    both.touch(mode=0o600)
                    both.write_text(f"{reveal(self.key_data)}\n{reveal(self.cert_data)}\n", encoding="ascii")
                    context.load_cert_chain(both, password=lambda: password)
        except (OSError, ValueError) as error:
            key = "cert_file" if self.cert_file is not None else "cert_data"
            hint = " (or key_password is wrong)" if isinstance(error, ssl.SSLError) else ""
            rule = f"a readable PEM certificate with its key: {_why(error)}{hint}"
            raise ConfigError(key, self.cert_file or "given", rule) from error


_TLS_KEYS: Final = ("ca_file", "ca_data", "cert_file", "key_file", "cert_data", "key_data", "key_password")


def _why(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


@dataclass(frozen=True, kw_only=True, init=False)
class Security:
    """TLS and SASL settings of a client; if both are None, connections are Kafka's PLAINTEXT.

    `tls=True` is `Tls()`, which trusts the system's certificate authorities, and an `ssl.SSLContext` is `Tls(context=…)`.
    """

    tls: Tls | None = None
    sasl: Sasl | None = None

    def __init__(self, *, tls: Tls | ssl.SSLContext | bool | None = None, sasl: Sasl | None = None) -> None:
        if isinstance(tls, ssl.SSLContext):
            tls = Tls(context=tls)
        elif isinstance(tls, bool):
            tls = Tls() if tls else None
        _check_type("tls", tls, Tls)
        _check_type("sasl", sasl, Plain, Scram, OAuthBearer)
        object.__setattr__(self, "tls", tls)  # the dataclass is frozen
        object.__setattr__(self, "sasl", sasl)

    @property
    def protocol(self) -> str:
        """Kafka's `security.protocol`."""
        inner = "PLAINTEXT" if self.tls is None else "SSL"
        return inner if self.sasl is None else f"SASL_{inner}"


def _check_type(key: str, value: Any, *types: type) -> None:
    """Raise ConfigError for a wrong type; it shows only the type, because the value may contain a secret."""
    if value is not None and not isinstance(value, types):
        names = ", ".join(f"{one.__module__}.{one.__name__}" for one in types)
        raise wrong_type(key, value, f"None or one of {names}")
