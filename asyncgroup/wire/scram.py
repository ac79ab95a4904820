"""SCRAM arithmetic and message parts that client and broker share (RFC 5802, RFC 7677): pure functions and values.

Names and passwords are taken as UTF-8 without SASLprep, as Kafka does (`ScramFormatter.java`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final, NamedTuple

__all__ = [
    "HASHES",
    "MIN_ITERATIONS",
    "ScramCredential",
    "ScramError",
    "decode_base64",
    "escape_saslname",
    "hmac_digest",
    "parse_attributes",
    "salted_password",
    "xor_bytes",
]

MIN_ITERATIONS: Final = 4096
"""What RFC 5802 asks for; fewer make a stolen exchange cheap to guess a password from."""

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Python's names of the hash functions, by mechanism."""


class ScramError(ValueError):
    """What the other side sent is malformed, too weak, or no proof that it knows the password."""


class ScramCredential(NamedTuple):
    """What a broker keeps of a password (Kafka's `ScramCredential`): enough to check it, not enough to log in with it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"<ScramCredential of {self.iterations} iterations>"

    @classmethod
    def from_salted_password(
        cls, mechanism: str, salt: bytes, salted: bytes, iterations: int
    ) -> ScramCredential:
        """From a password that was salted already, as AlterUserScramCredentials carries it."""
        client_key = hmac_digest(mechanism, salted, b"Client Key")
        stored_key = hashlib.new(HASHES[mechanism], client_key).digest()
        return cls(salt, stored_key, hmac_digest(mechanism, salted, b"Server Key"), iterations)

    @classmethod
    def from_password(
        cls, mechanism: str, password: str, salt: bytes, iterations: int = MIN_ITERATIONS
    ) -> ScramCredential:
        """From the password itself."""
        salted = salted_password(mechanism, password, salt, iterations)
        return cls.from_salted_password(mechanism, salt, salted, iterations)


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """RFC 5802's `SaltedPassword`."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def hmac_digest(mechanism: str, key: bytes, message: bytes) -> bytes:
    """HMAC with the mechanism's hash function."""
    return hmac.new(key, message, HASHES[mechanism]).digest()


def xor_bytes(one: bytes, other: bytes) -> bytes:
    """Both, combined bit by bit; ValueError if their lengths differ."""
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def escape_saslname(name: str) -> str:
    """A saslname: commas and equals signs have a meaning in the messages."""
    return name.replace("=", "=3D").replace(",", "=2C")


def parse_attributes(message: bytes) -> dict[str, str]:
    """The `name=value` parts of a message; raises ScramError if it is not UTF-8."""
    try:
        items = message.decode().split(",")
    except UnicodeDecodeError as error:
        raise ScramError("the server's message is not UTF-8") from error
    return {name: value for name, equals, value in (item.partition("=") for item in items) if equals}


def decode_base64(text: str) -> bytes:
    """The bytes of base64; raises ScramError if it is malformed."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ScramError("the server's message has malformed base64") from error
