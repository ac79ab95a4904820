"""A trust store for Java with the certificate authorities that Python trusts.

A Java from a wheel brings its own list of authorities and knows none of the machine's: behind a company's
proxy it can fetch nothing. Python's own list follows the system and `SSL_CERT_FILE`. Java reads it in its
classic format JKS, which is simple enough to be written without `keytool` (runtimes from wheels have none): a
header, one entry per certificate, a digest.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Iterable
from typing import Final

__all__ = ["python_authorities", "trust_store"]

# By custom always the same: the digest guards against accidents, and Java checks it only if told the word.
_PASSWORD: Final = "changeit"

_MAGIC: Final = 0xFEEDFEED
_FORMAT_VERSION: Final = 2
_TRUSTED_CERTIFICATE: Final = 2


def python_authorities() -> list[bytes]:
    """The certificate authorities that Python trusts by default, in DER; empty where it finds no list."""
    return ssl.create_default_context().get_ca_certs(binary_form=True)


def trust_store(authorities: Iterable[bytes]) -> bytes:
    """A JKS trust store with these DER certificates, for `-Djavax.net.ssl.trustStore`."""
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
    # The format's digest: SHA-1 over the password in UTF-16, a phrase that the format fixes, and the body.
    seal = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return body + seal.digest()


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data
