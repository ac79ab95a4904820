"""Messages for TLS failures, with what to change: OpenSSL's reasons and TLS alerts (RFC 8446, 6.2) in plain words."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

__all__ = ["Hints", "describe_certificate_error", "describe_tls_error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What to change when a connection fails, with the names that a protocol's configuration has."""

    plaintext_listener: str
    """With TLS at a listener that has none."""
    tls_listener: str
    """Without TLS at a listener that expects it."""
    tls_versions: str
    """How a broker allows other versions of TLS."""
    trusted: str
    """Where certificates that are trusted are configured."""
    broker: str
    """What the other side is expected to be, with its article."""


_VERSIONS: Final = "this client offers TLS 1.2 and 1.3; {hints.tls_versions}, or use Tls(context=…)"
_OWN_CERTIFICATE: Final = (
    "the broker rejected this client's certificate: has it expired, does the broker trust its CA?"
)
_NOTHING_SHARED: Final = (
    "the broker and this client have no TLS cipher in common, or the listener requires a client certificate: "
    "set cert_file and key_file"
)
_MEANINGS: Final = (
    (
        ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING", "HTTP_REQUEST"),
        "{hints.plaintext_listener}",
    ),
    (("ALERT_PROTOCOL_VERSION",), f"the broker rejected this client's TLS versions: {_VERSIONS}"),
    (
        ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_PROTOCOLS_AVAILABLE", "TLSV1_ALERT_INAPPROPRIATE_FALLBACK"),
        f"this client rejected the broker's TLS version: {_VERSIONS}",
    ),
    (
        ("ALERT_HANDSHAKE_FAILURE", "ALERT_INSUFFICIENT_SECURITY", "NO_SHARED_CIPHER", "NO_CIPHERS_AVAILABLE"),
        _NOTHING_SHARED,
    ),
    (
        ("ALERT_CERTIFICATE_REQUIRED",),
        "the listener requires a client certificate: set cert_file and key_file",
    ),
    (
        (
            *("ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE_UNKNOWN", "ALERT_CERTIFICATE_EXPIRED"),
            *("ALERT_CERTIFICATE_REVOKED", "ALERT_UNSUPPORTED_CERTIFICATE", "ALERT_DECRYPT_ERROR", "ALERT_ACCESS_DENIED"),
        ),
        _OWN_CERTIFICATE,
    ),
    (("UNRECOGNIZED_NAME",), "the broker does not recognize the host name used: use the name in its certificate"),
)  # fmt: skip
"""Suffixes of OpenSSL's reasons (the prefixes differ between its versions), with their meaning, in which `hints` are inserted."""

_DATES: Final = {
    9: "is not yet valid: check the clocks of both machines",
    10: "has expired: renew it on the broker, or renew its CA's certificate (is this machine's clock right?)",
}
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""

_STRICT: Final = range(80, 95)
"""Errors of OpenSSL's strict mode, from X509_V_ERR_PATHLEN_INVALID_FOR_NON_CA to X509_V_ERR_EC_KEY_EXPLICIT_PARAMS."""


def describe_tls_error(error: ssl.SSLError, hints: Hints) -> str:
    """Return OpenSSL's reason, followed by its meaning in parentheses if it is known."""
    reason = error.reason or str(error)
    meaning = next((text for ends, text in _MEANINGS if reason.endswith(ends)), None)
    return f"TLS failed: {reason}" + (f" ({meaning.format(hints=hints)})" if meaning else "")


def describe_certificate_error(host: str, error: ssl.SSLCertVerificationError, hints: Hints) -> str:
    """Return why the certificate of the broker connected to as `host` was rejected."""
    message = error.verify_message.rstrip(".") or str(error)
    if error.verify_code in _DATES:
        return f"the broker's TLS certificate {_DATES[error.verify_code]}"
    # X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL
    if error.verify_code in (62, 64):
        return (
            f"the broker's TLS certificate is not valid for {host!r}: {message} (connect to a name that the certificate has, or "
            "add this one to it)"
        )
    if error.verify_code in _STRICT:
        return (
            f"the broker's TLS certificate, or that of its CA, does not meet RFC 5280: {message} (Python 3.13 requires it: renew "
            "it, or give Tls a context without ssl.VERIFY_X509_STRICT)"
        )
    return f"the broker's TLS certificate is not trusted: {message} (is its CA in {hints.trusted}?)"
