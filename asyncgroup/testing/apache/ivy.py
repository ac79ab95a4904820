"""Write a Java trust store with the certificate authorities that Python trusts.

A Java from a wheel has its own list of authorities and ignores the machine's, so that downloads fail behind a company's
proxy. Python's list follows the system and `SSL_CERT_FILE`. The store has Java's old format JKS, which can be written
without `keytool` (runtimes from wheels have none): a header, one entry per certificate, a digest.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Iterable
from typing import Final

__all__ = ["python_authorities", "trust_store"]

# Java's customary default: the digest only detects damage, and Java checks it only if it is given the password.
_PASSWORD: Final = "changeit"  # noqa: S105  the public default

_MAGIC: Final = 0xFEEDFEED
_FORMAT_VERSION: Final = 2
_TRUSTED_CERTIFICATE: Final = 2


def python_authorities() -> list[bytes]:
    """Return the certificate authorities that Python trusts by default, in DER; empty if it finds no list."""
    return ssl.create_default_context().get_ca_certs(binary_form=True)


def trust_store(authorities: Iterable[bytes]) -> bytes:
    """Return a JKS trust store with these DER certificates, for `-Djavax.net.ssl.trustStore`."""
    certificates = list(authorities)
    parts = [struct.pack(">III", _MAGIC, _FORMAT_VERSION, len(certificates))]
    for number, certificate in enumerate(certificates):
        parts += [
            struct.pack(">I", _TRUSTED_CERTIFICATE),
            _text(f"authority-{number}"),
            struct.pack(">q", 0),  # when it was added, in ms
            _text("X.509"),
            struct.pack(">I", len(certificate)),
            certificate,
        ]
    body = b"".join(parts)
    # the format's digest: SHA-1 over the password in UTF-16, a fixed phrase, and the body
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return body + digest.digest()


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data
