"""SCRAM (RFC 5802, RFC 7677): hashes and message attributes, shared by client and embedded broker.

Names and passwords are encoded in UTF-8 without SASLprep, as in Kafka (`ScramFormatter.java`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

__all__ = [
    "HASHES",
    "MIN_ITERATIONS",
    "ScramError",
    "decode_base64",
    "escape_saslname",
    "hmac_digest",
    "parse_attributes",
    "salted_password",
    "xor_bytes",
]

MIN_ITERATIONS: Final = 4096
"""The minimum of RFC 5802; with fewer iterations a password is cheap to guess from a recorded exchange."""

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Python's names of the hash functions, by mechanism."""


class ScramError(ValueError):
    """The peer's message is malformed, its iteration count is not allowed, or its proof of the password is wrong."""


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return RFC 5802's `SaltedPassword`."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def hmac_digest(mechanism: str, key: bytes, message: bytes) -> bytes:
    """Return the HMAC with the mechanism's hash function."""
    return hmac.new(key, message, HASHES[mechanism]).digest()


def xor_bytes(one: bytes, other: bytes) -> bytes:
    """Return the bitwise exclusive or; raises ValueError if the lengths differ."""
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def escape_saslname(name: str) -> str:
    """Return the name as RFC 5802's `saslname`: with commas and equals signs escaped."""
    return name.replace("=", "=3D").replace(",", "=2C")


def parse_attributes(message: bytes) -> dict[str, str]:
    """Return the `name=value` attributes of a message; raises ScramError if it is not UTF-8."""
    try:
        items = message.decode().split(",")
    except UnicodeDecodeError as error:
        raise ScramError("the peer's SCRAM message is not UTF-8") from error
    return {name: value for name, equals, value in (item.partition("=") for item in items) if equals}


def decode_base64(text: str) -> bytes:
    """Decode base64; raises ScramError if it is malformed."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ScramError("the peer's SCRAM message has malformed base64") from error
