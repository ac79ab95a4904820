"""The client's side of SCRAM (RFC 5802, with SHA-256 of RFC 7677 and Kafka's SHA-512): pure, three messages.

No channel binding ("n"), as Kafka offers none. Name and password are taken as UTF-8 without SASLprep (`ScramFormatter`
of kafka-clients).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Final

from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.wire.scram import (
    HASHES,
    MIN_ITERATIONS,
    ScramError,
    decode_base64,
    escape_saslname,
    hmac_digest,
    parse_attributes,
    salted_password,
    xor_bytes,
)

__all__ = ["HASHES", "ScramClient", "ScramError"]

MAX_ITERATIONS: Final = 131_072
"""Kafka allows 16,384. The count is the server's choice, and an absurd one would hold up the event loop."""


class ScramClient:
    """One exchange: send `first()`, then `final(answer)`, then `verify(answer)`. Each raises ScramError."""

    def __init__(
        self, mechanism: str, username: str, password: str, authzid: str = "", nonce: str | None = None
    ) -> None:
        self._mechanism, self._password = mechanism, password
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._header = f"n,{'a=' + escape_saslname(authzid) if authzid else ''},"
        self._first_bare = f"n={escape_saslname(username)},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """The client-first-message."""
        return (self._header + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The client-final-message, with the proof that we know the password."""
        attributes = parse_attributes(server_first)
        nonce, salt, iterations = (
            attributes.get("r", ""),
            decode_base64(attributes.get("s", "")),
            attributes.get("i", ""),
        )
        if "m" in attributes:
            raise ScramError("the server asks for an extension that this client does not know")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not begin with ours, or adds nothing to it")
        if not salt or not (iterations.isascii() and iterations.isdecimal() and len(iterations) < 10):
            raise ScramError("the server's first message lacks a salt or a number of iterations")
        if not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
            limits = f"{MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed"
            raise ScramError(f"the server asks for {iterations} iterations; {limits}")
        binding = base64.b64encode(self._header.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        message = b",".join((self._first_bare.encode(), server_first, without_proof.encode()))
        salted = salted_password(self._mechanism, self._password, salt, int(iterations))
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(HASHES[self._mechanism], client_key).digest()
        mask = self._hmac(stored_key, message)
        proof = xor_bytes(client_key, mask)
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check the server's own proof."""
        attributes = parse_attributes(server_final)
        if "e" in attributes:
            raise ScramError(f"the server refuses: {printable(attributes['e'], MAX_TEXT_LENGTH)}")
        signature = decode_base64(attributes.get("v", ""))
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise ScramError("the server's signature is wrong: it does not know the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac_digest(self._mechanism, key, message)
