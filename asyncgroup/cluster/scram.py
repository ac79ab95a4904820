"""The client's side of SCRAM (RFC 5802, with SHA-256 of RFC 7677 and Kafka's SHA-512): pure, three messages.

No channel binding ("n"), as Kafka offers none. Name and password are taken as UTF-8 without SASLprep (`ScramFormatter`
of kafka-clients).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

__all__ = ["ScramClient", "ScramError"]

LEAST_ITERATIONS: Final = 4096
"""What RFC 5802 asks for; fewer make a stolen exchange cheap to guess a password from."""

MOST_ITERATIONS: Final = 131_072
"""Kafka allows 16,384. The count is the server's choice, and an absurd one would hold up the event loop."""

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class ScramError(ValueError):
    """What the server says is malformed, too weak, or no proof that it knows the password."""


class ScramClient:
    """One exchange: send `first()`, then `final(answer)`, then `verify(answer)`. Each raises ScramError."""

    def __init__(
        self, mechanism: str, username: str, password: str, authzid: str = "", nonce: str | None = None
    ) -> None:
        self._hash, self._password = HASHES[mechanism], password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._header = f"n,{'a=' + _escaped(authzid) if authzid else ''},"
        self._first_bare = f"n={_escaped(username)},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """The client-first-message."""
        return (self._header + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The client-final-message, with the proof that we know the password."""
        fields = _fields(server_first)
        nonce, salt, iterations = fields.get("r", ""), _decoded(fields.get("s", "")), fields.get("i", "")
        if "m" in fields:
            raise ScramError("the server asks for an extension that this client does not know")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not begin with ours, or adds nothing to it")
        if not salt or not (iterations.isascii() and iterations.isdecimal() and len(iterations) < 10):
            raise ScramError("the server's first message lacks a salt or a number of iterations")
        if not LEAST_ITERATIONS <= int(iterations) <= MOST_ITERATIONS:
            limits = f"{LEAST_ITERATIONS} to {MOST_ITERATIONS} are allowed"
            raise ScramError(f"the server asks for {iterations} iterations; {limits}")
        binding = base64.b64encode(self._header.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        message = b",".join((self._first_bare.encode(), server_first, without_proof.encode()))
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, int(iterations))
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        mask = self._hmac(stored_key, message)
        proof = bytes(a ^ b for a, b in zip(client_key, mask, strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check the server's own proof."""
        fields = _fields(server_final)
        if "e" in fields:
            raise ScramError(f"the server refuses: {fields['e']}")
        signature = _decoded(fields.get("v", ""))
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise ScramError("the server's signature is wrong: it does not know the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


def _escaped(name: str) -> str:
    """A saslname: commas and equals signs have a meaning in the messages."""
    return name.replace("=", "=3D").replace(",", "=2C")


def _fields(message: bytes) -> dict[str, str]:
    try:
        items = message.decode().split(",")
    except UnicodeDecodeError as error:
        raise ScramError("the server's message is no UTF-8") from error
    return {name: value for name, equals, value in (item.partition("=") for item in items) if equals}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ScramError("the server's message has malformed base64") from error
