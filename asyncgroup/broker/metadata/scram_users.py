"""The SCRAM credentials of a cluster (KIP-554)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from asyncgroup.wire.scram import HASHES, MIN_ITERATIONS, hmac_digest, salted_password

__all__ = [
    "MAX_ITERATIONS",
    "MECHANISM_TYPES",
    "ScramCredential",
    "ScramUsers",
    "credential_record",
    "read_credential",
]

MECHANISM_TYPES: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""The mechanisms by their number in requests (`ScramMechanism`)."""

MAX_ITERATIONS: Final = 16_384
"""Largest number of iterations accepted (`ScramControlManager`)."""


class ScramCredential(NamedTuple):
    """A broker's stored form of a password (Kafka's `ScramCredential`): it verifies clients but does not allow to log in."""

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
        """Return the credential of a salted password, the form in AlterUserScramCredentials requests."""
        client_key = hmac_digest(mechanism, salted, b"Client Key")
        stored_key = hashlib.new(HASHES[mechanism], client_key).digest()
        return cls(salt, stored_key, hmac_digest(mechanism, salted, b"Server Key"), iterations)

    @classmethod
    def from_password(
        cls, mechanism: str, password: str, salt: bytes, iterations: int = MIN_ITERATIONS
    ) -> ScramCredential:
        """Return the credential of a password."""
        salted = salted_password(mechanism, password, salt, iterations)
        return cls.from_salted_password(mechanism, salt, salted, iterations)


class ScramUsers:
    """Credentials by mechanism and user name."""

    def __init__(self) -> None:
        self._credentials: dict[str, dict[str, ScramCredential]] = {mechanism: {} for mechanism in HASHES}

    def __repr__(self) -> str:
        return f"<ScramUsers {len(self.names)}>"

    @property
    def names(self) -> list[str]:
        """The names of all users, sorted."""
        return sorted({name for users in self._credentials.values() for name in users})

    def get(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return the user's credential, None if there is none."""
        return self._credentials[mechanism].get(user)

    def put(self, mechanism: str, user: str, credential: ScramCredential) -> None:
        """Create or replace a user's credential."""
        self._credentials[mechanism][user] = credential

    def remove(self, mechanism: str, user: str) -> None:
        """Delete a user's credential; no error if there is none."""
        self._credentials[mechanism].pop(user, None)

    def add_passwords(self, passwords: Mapping[str, str], rng: random.Random) -> None:
        """Create a credential of each mechanism for every user, as `kafka-storage format --add-scram` does."""
        for user, password in passwords.items():
            for mechanism in HASHES:
                credential = ScramCredential.from_password(mechanism, password, rng.randbytes(24))
                self.put(mechanism, user, credential)


def credential_record(credential: ScramCredential | None) -> Mapping[str, Any]:
    """Return the metadata record of a credential (None: deleted).

    A deletion is recorded too: the user may be one that the cluster is started with, and must not return.
    """
    if credential is None:
        return {"credential": None}
    salt, stored, server, iterations = credential
    return {"credential": [salt.hex(), stored.hex(), server.hex(), iterations]}


def read_credential(kept: list[Any]) -> ScramCredential:
    """Return the credential from its metadata record."""
    salt, stored, server = (bytes.fromhex(part) for part in kept[:3])
    return ScramCredential(salt, stored, server, kept[3])
