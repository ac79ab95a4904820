"""The client side of SCRAM (RFC 5802, with SHA-256 of RFC 7677 and Kafka's SHA-512), without I/O.

No channel binding ("n"), because Kafka does not offer it. User name and password are encoded in UTF-8 without SASLprep,
as `ScramFormatter` of kafka-clients does.
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
"""The server chooses the number of iterations; a huge one would block the event loop. Kafka's own maximum is 16,384."""


class ScramClient:
    """One SCRAM exchange: send `first()`, then `final(server_first)`, then call `verify(server_final)`.

    `final` and `verify` raise ScramError if the server's message is malformed or its proof is wrong.
    """

    def __init__(
        self, mechanism: str, username: str, password: str, authzid: str = "", nonce: str | None = None
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._header = f"n,{'a=' + escape_saslname(authzid) if authzid else ''},"  # RFC 5802's gs2-header
        self._first_bare = f"n={escape_saslname(username)},r={self._nonce}"  # client-first-message-bare
        self._signature = b""  # the ServerSignature to expect; empty until `final`

    def first(self) -> bytes:
        """Return the client-first-message."""
        return (self._header + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client-final-message, which proves that the client knows the password."""
        attributes = parse_attributes(server_first)
        nonce, salt, iterations = (
            attributes.get("r", ""),
            decode_base64(attributes.get("s", "")),
            attributes.get("i", ""),
        )
        if "m" in attributes:
            raise ScramError("the server requires an extension that this client does not support")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce must be the client's nonce followed by further characters")
        if not salt or not (iterations.isascii() and iterations.isdecimal() and len(iterations) < 10):
            raise ScramError("the server's first message has no valid salt or iteration count")
        if not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
            limits = f"{MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed"
            raise ScramError(f"the server requires {iterations} iterations; {limits}")
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
        """Check the server's signature, which proves that it knows the password."""
        attributes = parse_attributes(server_final)
        if "e" in attributes:
            raise ScramError(
                f"the server refused authentication: {printable(attributes['e'], MAX_TEXT_LENGTH)}"
            )
        signature = decode_base64(attributes.get("v", ""))
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise ScramError("the server's signature is wrong: it does not know the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac_digest(self._mechanism, key, message)
