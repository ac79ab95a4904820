"""`admin.users`: SCRAM credentials of users. Passwords are salted and hashed here; brokers never get them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from asyncgroup.admin.arguments import check_text, several
from asyncgroup.admin.denied import needs
from asyncgroup.admin.results import AdminResults
from asyncgroup.checks import TEXT
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests import scram_users as requests
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.scram_users import CredentialInfo, CredentialKey, SaltedCredential
from asyncgroup.errors import ConfigError
from asyncgroup.secret import HIDDEN, Secret, reveal
from asyncgroup.wire.scram import MIN_ITERATIONS, salted_password

__all__ = ["AdminUsers", "UserScramCredentialDeletion", "UserScramCredentialUpsertion"]

MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""The numbers of the mechanisms in the protocol (`ScramMechanism` in Kafka)."""

MAX_ITERATIONS: Final = 16384
"""The most iterations that Kafka's controller accepts (`ScramControlManager`)."""

SALT_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class UserScramCredentialUpsertion:
    """A new or changed password of a user, for one mechanism."""

    user: str
    """The name of the user."""
    password: Secret | str
    """The password; kept as a Secret, which is shown as `[hidden]`."""
    mechanism: str = "SCRAM-SHA-512"
    """`SCRAM-SHA-256` or `SCRAM-SHA-512`; a user may have a credential for each."""
    iterations: int = MIN_ITERATIONS
    """Rounds of the hash, 4096 to 16384: the more, the longer an attacker and every login take."""
    salt: bytes | None = None
    """The salt; by default 32 random bytes."""

    def __post_init__(self) -> None:
        if isinstance(self.password, str):
            object.__setattr__(self, "password", Secret(self.password))


@dataclass(frozen=True, slots=True)
class UserScramCredentialDeletion:
    """The end of a user's credential for one mechanism."""

    user: str
    """The name of the user."""
    mechanism: str = "SCRAM-SHA-512"
    """`SCRAM-SHA-256` or `SCRAM-SHA-512`."""


class AdminUsers:
    """Users with SCRAM credentials: `admin.users`. As Kafka's `kafka-configs.sh --entity-type users` (KIP-554, Kafka 2.7).

    await admin.users.alter([UserScramCredentialUpsertion("alice", password)])
    """

    def __init__(self, client: ClusterClient, budget: Callable[[], RequestBudget]) -> None:
        self._client = client
        self._budget = budget

    def __repr__(self) -> str:
        return f"<AdminUsers of {self._client!r}>"

    @needs("DESCRIBE on the cluster")
    async def describe(self, users: Iterable[str] | None = None) -> AdminResults[str, dict[str, int]]:
        """Return the iterations by mechanism of each of these users, or of all. Kafka does not return salts and hashes.

        RESOURCE_NOT_FOUND for a user without a SCRAM credential. Raises ConfigError for invalid names; without names also BrokerError
        and NoBrokersError.
        """
        wanted = None if users is None else [_checked_user(each) for each in several("users", users)]
        retry = self._budget().retry()
        if wanted is None:
            found = await requests.describe_all_credentials(self._client, retry=retry)
        else:
            found = await requests.describe_credentials(self._client, wanted, retry=retry)
        values = {user: _iterations(found.values[user]) for user in sorted(found.values)}
        return AdminResults(Results(values, found.errors))

    @needs("ALTER on the cluster")
    async def alter(
        self,
        changes: UserScramCredentialUpsertion
        | UserScramCredentialDeletion
        | Iterable[UserScramCredentialUpsertion | UserScramCredentialDeletion],
    ) -> AdminResults[tuple[str, str], None]:
        """Create, replace and delete credentials; results by (user, mechanism).

        Brokers know a change a moment after it. RESOURCE_NOT_FOUND for the deletion of a credential that does not exist, except after a request
        of this call without a response, which has deleted it. Raises ConfigError for wrong values, which never contains a password.
        """
        checked = _checked_changes(several("changes", changes))
        budget = self._budget()
        wanted: dict[CredentialKey, SaltedCredential | None] = {}
        for key, change in checked.items():
            wanted[key] = None if isinstance(change, UserScramCredentialDeletion) else _salted(change)
            await asyncio.sleep(0)  # a hash takes some milliseconds
        altered = await requests.alter_credentials(self._client, wanted, retry=budget.retry())
        names = {key: (key.user, checked[key].mechanism) for key in checked}
        values = {names[key]: value for key, value in altered.values.items()}
        return AdminResults(Results(values, {names[key]: error for key, error in altered.errors.items()}))


def _iterations(found: Iterable[CredentialInfo]) -> dict[str, int]:
    names = {number: name for name, number in MECHANISMS.items()}
    return {names.get(each.mechanism, "UNKNOWN"): each.iterations for each in found}


def _salted(change: UserScramCredentialUpsertion) -> SaltedCredential:
    salt = secrets.token_bytes(SALT_BYTES) if change.salt is None else change.salt
    hashed = salted_password(change.mechanism, reveal(change.password), salt, change.iterations)
    return SaltedCredential(salt, hashed, change.iterations)


# --- checks -------------------------------------------------------------------------------------------------------------


def _checked_changes(
    changes: Iterable[object],
) -> Mapping[CredentialKey, UserScramCredentialUpsertion | UserScramCredentialDeletion]:
    found: dict[CredentialKey, UserScramCredentialUpsertion | UserScramCredentialDeletion] = {}
    for change in changes:
        if not isinstance(change, UserScramCredentialUpsertion | UserScramCredentialDeletion):
            kinds = "UserScramCredentialUpsertion and UserScramCredentialDeletion"
            raise ConfigError(
                "a change of a user", type(change).__name__, kinds
            )  # the value may be a password
        user = _checked_user(change.user)
        if change.mechanism not in MECHANISMS:
            raise ConfigError("mechanism", change.mechanism, f"one of {', '.join(MECHANISMS)}")
        if isinstance(change, UserScramCredentialUpsertion):
            _check_upsertion(change)
        key = CredentialKey(user, MECHANISMS[change.mechanism])
        if key in found:
            raise ConfigError("user", user, f"one change for {change.mechanism}")
        found[key] = change
    return found


def _checked_user(user: object) -> str:
    return check_text("user", user, "the name of a user, which is not empty")


def _check_upsertion(change: UserScramCredentialUpsertion) -> None:
    if not isinstance(change.password, Secret) or not change.password:
        raise ConfigError("password", HIDDEN, "text or a Secret that is not empty")
    if not TEXT[0](reveal(change.password)):
        raise ConfigError("password", HIDDEN, TEXT[1])
    iterations = change.iterations
    is_number = isinstance(iterations, int) and not isinstance(iterations, bool)
    if not is_number or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        allowed = f"a whole number from {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        raise ConfigError("iterations", iterations, allowed)
    if change.salt is not None and (not isinstance(change.salt, bytes) or not change.salt):
        raise ConfigError("salt", HIDDEN, "bytes that are not empty, or None")
