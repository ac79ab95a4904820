"""TLS and SASL on the listeners of an embedded cluster, for testing the security settings of clients."""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from asyncgroup.errors import ConfigError
from asyncgroup.wire.scram import HASHES

__all__ = ["MECHANISMS", "ListenerSecurity"]

MECHANISMS: Final = ("PLAIN", *HASHES)
"""The SASL mechanisms that are served."""


@dataclass(frozen=True, kw_only=True)
class ListenerSecurity:
    """What clients must use at every node of a cluster; the protocol follows from what is given.

    - `cert_file` (PEM, its key in it or in `key_file`, which `key_password` opens): the listeners speak TLS.
      `client_ca_file`: clients must show a certificate that one of these authorities signed (`ssl.client.auth=required`).
    - `users`: passwords by user name. With users the listeners ask for SASL, by one of `mechanisms`
      (`sasl.enabled.mechanisms`). SCRAM users can be changed by AlterUserScramCredentials, users of PLAIN cannot, as in
      Kafka.
    - `max_reauth`: seconds after which a client must authenticate again (`connections.max.reauth.ms`, KIP-368); 0: never.

    TLS needs real sockets; SASL alone works in virtual time too. Every user may do everything: there are no ACLs.
    Raises ConfigError for settings that do not fit together.
    """

    cert_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None
    key_password: str | None = field(default=None, repr=False)
    client_ca_file: str | os.PathLike[str] | None = None
    users: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    mechanisms: Sequence[str] = MECHANISMS
    max_reauth: float = 0.0

    def __post_init__(self) -> None:
        for key in ("key_file", "key_password", "client_ca_file"):
            if getattr(self, key) is not None and self.cert_file is None:
                raise ConfigError(key, "given", "only with cert_file")
        if not isinstance(self.users, Mapping):
            raise ConfigError("users", type(self.users).__name__, "passwords by user name")
        for name, password in self.users.items():
            if not _is_text(name):
                raise ConfigError("users", name, "names that are text without NUL characters, not empty")
            if not _is_text(password):
                raise ConfigError(
                    "users", name, "with passwords that are text without NUL characters, not empty"
                )
        if isinstance(self.mechanisms, str) or not self.mechanisms or set(self.mechanisms) - {*MECHANISMS}:
            raise ConfigError("mechanisms", self.mechanisms, f"one or more of {', '.join(MECHANISMS)}")
        if not (math.isfinite(self.max_reauth) and self.max_reauth >= 0):
            raise ConfigError("max_reauth", self.max_reauth, "seconds, 0 or more")
        if self.cert_file is None and not self.users:
            raise ConfigError("users", {}, "one or more, or a cert_file: else there is nothing to secure")

    @property
    def sasl(self) -> bool:
        """Whether clients have to authenticate by SASL."""
        return bool(self.users)

    @property
    def protocol(self) -> str:
        """Kafka's name of the listeners' protocol."""
        inner = "PLAINTEXT" if self.cert_file is None else "SSL"
        return f"SASL_{inner}" if self.sasl else inner

    def tls_context(self) -> ssl.SSLContext | None:
        """The server's side of TLS, None without it; reads the files. Raises ConfigError naming one that won't load."""
        if self.cert_file is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        password = self.key_password or ""  # without one OpenSSL would ask at the terminal
        try:
            context.load_cert_chain(self.cert_file, self.key_file, lambda: password)
        except (OSError, ValueError) as error:
            rule = f"a readable PEM certificate with its key: {_why(error)}"
            raise ConfigError("cert_file", str(self.cert_file), rule) from error
        if self.client_ca_file is not None:
            try:
                context.load_verify_locations(self.client_ca_file)
            except (OSError, ValueError) as error:
                rule = f"readable PEM certificates: {_why(error)}"
                raise ConfigError("client_ca_file", str(self.client_ca_file), rule) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _is_text(value: object) -> bool:
    """Whether PLAIN can carry the value: it has UTF-8, which half of a surrogate pair has not, and ends at a NUL."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _why(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
