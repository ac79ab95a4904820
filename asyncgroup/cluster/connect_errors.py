"""Hints for connections to Kafka that fail, in the words of Kafka's configuration."""

from __future__ import annotations

from typing import Final

from asyncgroup.config import ClientConfig
from asyncgroup.errors import ConnectionLost, ProtocolError
from asyncgroup.net.tls_errors import Hints

__all__ = ["HINTS", "disconnect_hint"]

HINTS: Final = Hints(
    plaintext_listener=(
        "is it a TLS listener? For a plaintext listener remove tls from the configuration: "
        "security.protocol=PLAINTEXT or SASL_PLAINTEXT"
    ),
    tls_listener="set security.protocol=SSL or SASL_SSL, in code security=Security(tls=Tls(…))",
    tls_versions="update the broker's ssl.enabled.protocols",
    trusted="ca_file, or ssl.truststore.location",
    broker="a Kafka broker",
)

_TLS_LISTENER_HINT: Final = f"does the listener expect TLS? Then {HINTS.tls_listener}"
_CLIENT_CERT_REJECTED_HINT: Final = "does the broker trust the CA of this client's certificate?"
_CLIENT_CERT_MISSING_HINT: Final = (
    "does the listener require a client certificate? Then set cert_file and key_file"
)


def disconnect_hint(config: ClientConfig, error: Exception) -> str:
    """Return a clause for the error of a connection that the broker closed before it answered any request, else "".

    A TLS listener closes a plaintext connection. A listener that requires a client certificate rejects the client only
    after the handshake of TLS 1.3, and not always with an alert.
    """
    if (
        not isinstance(error, ConnectionLost)
        or isinstance(error, ProtocolError)
        or "TLS failed" in str(error)
    ):
        return ""
    tls = config.security.tls if config.security is not None else None
    if tls is None:
        return f" before it answered any request ({_TLS_LISTENER_HINT})"
    if tls.context is None and tls.cert_file is None and tls.cert_data is None:
        return f" before it answered any request ({_CLIENT_CERT_MISSING_HINT})"
    return f" before it answered any request ({_CLIENT_CERT_REJECTED_HINT})"
