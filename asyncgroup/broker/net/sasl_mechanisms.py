"""Server side of PLAIN and SCRAM: client tokens in, challenges out.

`PlainSaslServer` and `ScramSaslServer` of kafka-clients.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import re
from collections.abc import Mapping
from typing import Final, Protocol

from asyncgroup.broker.metadata.scram_users import ScramUsers
from asyncgroup.wire.scram import HASHES, MIN_ITERATIONS, ScramError, decode_base64, hmac_digest, xor_bytes

__all__ = ["InvalidCredentials", "PlainServer", "SaslAuthenticationError", "SaslServer", "ScramServer"]


class SaslAuthenticationError(Exception):
    """Authentication failed; the message is sent to the client (Kafka's `SaslAuthenticationException`)."""


class InvalidCredentials(Exception):
    """Authentication failed; the client gets no reason, which could reveal which users exist (`SaslException`)."""


class SaslServer(Protocol):
    """One authentication exchange with one client; `user` is valid once `complete`."""

    user: str
    complete: bool

    def evaluate(self, token: bytes) -> bytes:
        """Return the challenge for a token. Raise SaslAuthenticationError or InvalidCredentials."""


class PlainServer:
    """PLAIN (RFC 4616): one token with user name and password."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.user = ""
        self.complete = False

    def evaluate(self, token: bytes) -> bytes:
        """See `SaslServer`."""
        parts = token.decode(errors="replace").split("\0", 3)
        if len(parts) != 3:
            raise SaslAuthenticationError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authzid, user, password = parts
        if not user:
            raise SaslAuthenticationError("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationError("Authentication failed: password not specified")
        expected = self._passwords.get(user)
        if expected is None or not hmac.compare_digest(expected.encode(), password.encode()):
            raise SaslAuthenticationError("Authentication failed: Invalid username or password")
        _check_authzid(authzid, user)
        self.user = user
        self.complete = True
        return b""


_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_MORE: Final = r"(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*"
_BASE64: Final = r"(?:[A-Za-z0-9/+]{4})*(?:[A-Za-z0-9/+]{3}=|[A-Za-z0-9/+]{2}==)?"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_NAME}))?,(?P<bare>(?:m=[\x01-\x2b\x2d-\x7f]+,)?n=(?P<name>{_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+){_MORE})"
)
_FINAL: Final = re.compile(
    rf"(?P<unsigned>c={_BASE64},r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+){_MORE}),p=(?P<proof>{_BASE64})"
)
"""The client's first and final message, ASCII only (`ScramMessages`)."""


class ScramServer:
    """SCRAM (RFC 5802): two client messages; `rng` generates the server's part of the nonce."""

    def __init__(self, mechanism: str, users: ScramUsers, rng: random.Random) -> None:
        self._mechanism = mechanism
        self._users = users
        self._rng = rng
        self._first = ""  # both first messages, as they are signed; empty until the client's arrives
        self._nonce = ""
        self.user = ""
        self.complete = False

    def evaluate(self, token: bytes) -> bytes:
        """See `SaslServer`."""
        text = token.decode(errors="replace")
        if self.complete:
            raise InvalidCredentials("the exchange has ended")
        return self._final(text) if self._first else self._challenge(text)

    def _challenge(self, text: str) -> bytes:
        message = _FIRST.fullmatch(text)
        if message is None:
            raise InvalidCredentials("the client's first message is malformed")
        self.user = message["name"].replace("=2C", ",").replace("=3D", "=")
        credential = self._users.get(self._mechanism, self.user)
        if credential is None:
            raise InvalidCredentials(f"no user {self.user!r}")
        _check_authzid(message["authzid"] or "", self.user)
        if credential.iterations < MIN_ITERATIONS:
            raise InvalidCredentials(f"{credential.iterations} iterations are too few")
        self._nonce = f"{message['nonce']}{self._rng.getrandbits(130):026x}"
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._first = f"{message['bare']},{answer}"
        return answer.encode()

    def _final(self, text: str) -> bytes:
        message = _FINAL.fullmatch(text)
        credential = self._users.get(self._mechanism, self.user)
        if message is None or message["nonce"] != self._nonce or credential is None:
            raise InvalidCredentials("the client's final message is malformed")
        signed = f"{self._first},{message['unsigned']}".encode()
        try:
            client_key = xor_bytes(
                hmac_digest(self._mechanism, credential.stored_key, signed), decode_base64(message["proof"])
            )
        except (ScramError, ValueError) as error:
            raise InvalidCredentials("the client's proof is malformed") from error
        stored_key = hashlib.new(HASHES[self._mechanism], client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise InvalidCredentials(f"the password of {self.user!r} is wrong")
        self.complete = True
        signature = hmac_digest(self._mechanism, credential.server_key, signed)
        return b"v=" + base64.b64encode(signature)


def _check_authzid(authzid: str, user: str) -> None:
    if authzid and authzid != user:
        raise SaslAuthenticationError(
            "Authentication failed: Client requested an authorization id that is different from username"
        )
