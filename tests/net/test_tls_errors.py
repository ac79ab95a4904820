"""Reasons of TLS failures are explained with the words of the client that uses the connection."""

from __future__ import annotations

import ssl

import pytest

from asyncgroup.net.tls_errors import Hints, describe_certificate_error, describe_tls_error

HINTS = Hints(
    plaintext_listener="use pulsar:// for that",
    tls_listener="use pulsar+ssl://",
    tls_versions="set tlsProtocols of the broker",
    trusted="ca_file",
    broker="a Pulsar broker",
)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("WRONG_VERSION_NUMBER", "TLS failed: WRONG_VERSION_NUMBER (use pulsar:// for that)"),
        (
            "X_ALERT_CERTIFICATE_EXPIRED",
            "TLS failed: X_ALERT_CERTIFICATE_EXPIRED (the broker rejected this client's ",
        ),
        ("UNSUPPORTED_PROTOCOL", "; set tlsProtocols of the broker, or use Tls(context=…))"),
        ("SOMETHING_NEW", "TLS failed: SOMETHING_NEW"),
    ],
)
def test_reasons(reason: str, expected: str) -> None:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    assert expected in describe_tls_error(error, HINTS)


def test_a_certificate_that_is_not_trusted() -> None:
    error = ssl.SSLCertVerificationError("x")
    error.verify_code, error.verify_message = 20, "unable to get local issuer certificate"
    assert describe_certificate_error("h", error, HINTS).endswith("certificate (is its CA in ca_file?)")
