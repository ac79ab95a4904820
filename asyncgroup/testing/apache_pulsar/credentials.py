"""What a Pulsar with authentication or TLS reads: its secret key, and a certificate; and tokens signed with that key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from pathlib import Path
from typing import Final

from asyncgroup.errors import ConfigError

__all__ = ["CERTIFICATE", "PRIVATE_KEY", "SECRET_KEY", "create_token", "split_certificate"]

SECRET_KEY: Final = "secret.key"  # noqa: S105  the name of a file
PRIVATE_KEY: Final = "private-key.pem"
CERTIFICATE: Final = "certificate.pem"
"""Names of files in the directory of the standalone."""


def create_token(secret: bytes, subject: str, lifetime: float | None = None) -> str:
    """Return a JSON web token (HS256) for the role `subject`; without a `lifetime` in seconds, which may be negative, it does not expire."""
    claims: dict[str, str | int] = {"sub": subject}
    if lifetime is not None:
        claims["exp"] = round(time.time() + lifetime)
    signed = f"{_encoded(json.dumps({'alg': 'HS256'}).encode())}.{_encoded(json.dumps(claims).encode())}"
    return f"{signed}.{_encoded(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def split_certificate(pem: Path, directory: Path) -> None:
    """Write the private key and the certificates of a PEM file to two files: Pulsar reads no file with both."""
    found = re.finditer(r"-----BEGIN ([A-Z0-9 ]+)-----.+?-----END \1-----\n?", pem.read_text(), re.DOTALL)
    parts = {CERTIFICATE: "", PRIVATE_KEY: ""}
    for part in found:
        if part[1] == "CERTIFICATE":
            parts[CERTIFICATE] += part[0]
        elif part[1].endswith("PRIVATE KEY"):
            parts[PRIVATE_KEY] += part[0]
    for name, text in parts.items():
        if not text:
            raise ConfigError("certificate", str(pem), "a PEM file with a private key and its certificate")
        (directory / name).write_text(text)
