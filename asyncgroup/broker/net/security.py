"""TLS and SASL on the listeners of an embedded cluster, for testing the security settings of clients."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from asyncgroup.checks import check_duration_or_zero
from asyncgroup.errors import ConfigError
from asyncgroup.secret import HIDDEN, Secret, reduce_with_secrets, reveal
from asyncgroup.wire.scram import HASHES

__all__ = ["MECHANISMS", "ListenerSecurity", "passwords_of"]

MECHANISMS: Final = ("PLAIN", *HASHES)
"""The supported SASL mechanisms."""


@dataclass(frozen=True, kw_only=True)
class ListenerSecurity:
    """Security of the listeners of all nodes; the security protocol follows from the fields that are set.

    - `cert_file` (PEM, with the key in it or in `key_file`, which `key_password` decrypts): the listeners use TLS.
      `client_ca_file`: clients must present a certificate signed by one of these authorities
      (`ssl.client.auth=required`).
    - `users`: passwords by user name. With users, the listeners require SASL with one of `mechanisms`
      (`sasl.enabled.mechanisms`). As in Kafka, SCRAM users can be changed by AlterUserScramCredentials, PLAIN users
      cannot.
    - `max_reauth`: seconds after which a client must re-authenticate (`connections.max.reauth.ms`, KIP-368); 0: never.

    TLS needs real sockets; SASL alone also works in virtual time. There are no ACLs: every user may do everything.
    Passwords are hidden as in the settings of clients (`asyncgroup.secret`), except in pickles. Raise ConfigError for fields
    that contradict each other.
    """

    cert_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None
    key_password: str | Secret | None = field(default=None, repr=False)
    client_ca_file: str | os.PathLike[str] | None = None
    users: Mapping[str, str | Secret] = field(default_factory=dict, repr=False, hash=False)
    mechanisms: str | Sequence[str] = MECHANISMS
    max_reauth: float = 0.0

    def __post_init__(self) -> None:
        for key in ("key_file", "key_password", "client_ca_file"):
            if getattr(self, key) is not None and self.cert_file is None:
                raise ConfigError(key, "given", "only with cert_file")
        if not isinstance(reveal(self.key_password), str | None):
            raise ConfigError("key_password", HIDDEN, "text or None")
        self._check_users()
        mechanisms = (self.mechanisms,) if isinstance(self.mechanisms, str) else tuple(self.mechanisms)
        if not mechanisms or set(mechanisms) - {*MECHANISMS}:
            raise ConfigError("mechanisms", self.mechanisms, f"one or more of {', '.join(MECHANISMS)}")
        check_duration_or_zero("max_reauth", self.max_reauth)
        if not math.isfinite(self.max_reauth):
            raise ConfigError("max_reauth", self.max_reauth, "a finite number of seconds, 0 or more")
        if self.cert_file is None and not self.users:
            raise ConfigError("users", {}, "at least one user, unless cert_file is given")
        # `object.__setattr__` is needed because the dataclass is frozen
        object.__setattr__(self, "mechanisms", mechanisms)
        object.__setattr__(self, "users", {name: _hidden(password) for name, password in self.users.items()})
        object.__setattr__(self, "key_password", _hidden(self.key_password))

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_with_secrets(self)  # for a process that runs the cluster

    def _check_users(self) -> None:
        if not isinstance(self.users, Mapping):
            raise ConfigError("users", type(self.users).__name__, "passwords by user name")
        for name, password in self.users.items():
            if not _is_text(name):
                raise ConfigError("users", name, "names that are text without NUL characters, not empty")
            if not _is_text(reveal(password)):
                raise ConfigError(
                    "users", name, "with passwords that are text without NUL characters, not empty"
                )

    @property
    def sasl(self) -> bool:
        """Whether clients must authenticate with SASL."""
        return bool(self.users)

    @property
    def protocol(self) -> str:
        """The listeners' security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        inner = "PLAINTEXT" if self.cert_file is None else "SSL"
        return f"SASL_{inner}" if self.sasl else inner


def passwords_of(security: ListenerSecurity) -> dict[str, str]:
    """Return the passwords by user name, in plaintext."""
    return {name: reveal(password) for name, password in security.users.items()}


def _hidden(value: str | Secret | None) -> Secret | None:
    return Secret(value) if isinstance(value, str) else value


def _is_text(value: object) -> bool:
    """Return whether PLAIN can transmit the value: a non-empty string that UTF-8 can encode, without NUL characters."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
