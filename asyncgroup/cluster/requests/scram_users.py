"""SCRAM credentials of users: described by any broker, changed by the controller (KIP-554)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.fan_out import request_each, request_one
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import ByController, Target, ToAnyNode, ToOneTarget
from asyncgroup.cluster.requests.unanswered import Unanswered
from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError, ErrorCode
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = [
    "CredentialKey",
    "SaltedCredential",
    "alter_credentials",
    "describe_all_credentials",
    "describe_credentials",
]

CredentialInfo: TypeAlias = "m.DescribeUserScramCredentialsResponse.CredentialInfo"


class CredentialKey(NamedTuple):
    """A user and the number of a mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512 (`ScramMechanism` in Kafka)."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class SaltedCredential:
    """What the controller stores instead of a password; it is as secret as the password."""

    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)
    iterations: int


async def describe_credentials(
    cluster: ClusterClient, users: Iterable[str], *, retry: RetryLoop | None = None
) -> Results[str, list[CredentialInfo]]:
    """Return the mechanisms and iterations of each of these users. Raises ClosedError."""

    async def ask(target: Target, asked: list[str]) -> Results[str, list[CredentialInfo]]:
        return await _describe(target, asked)

    return await request_each(
        users, ToOneTarget(ToAnyNode(cluster)), ask, api="DescribeUserScramCredentials", retry=retry
    )


async def describe_all_credentials(
    cluster: ClusterClient, *, retry: RetryLoop | None = None
) -> Results[str, list[CredentialInfo]]:
    """As `describe_credentials`, for all users. Raises BrokerError and what `request_one` raises."""

    async def ask(target: Target) -> Results[str, list[CredentialInfo]]:
        # empty, not null: Kafka 4.3 does not respond to a user who is denied a request with null
        return await _describe(target, [])

    route = ToOneTarget[None](ToAnyNode(cluster))
    return await request_one(route, ask, api="DescribeUserScramCredentials", retry=retry)


async def _describe(target: Target, asked: list[str]) -> Results[str, list[CredentialInfo]]:
    names = [m.DescribeUserScramCredentialsRequest.UserName(each) for each in asked]
    request = m.DescribeUserScramCredentialsRequest(names)
    response = await target.request(m.DescribeUserScramCredentialsRequest, lambda _: request)
    if response.error_code:
        raise BrokerError(response.error_code, "describing SCRAM users", response.error_message)
    results: Results[str, list[CredentialInfo]] = Results()
    for found in response.results:
        if found.error_code:
            what = f"describing SCRAM user {found.user!r}"
            results.errors[found.user] = BrokerError(found.error_code, what, found.error_message)
        else:
            results.values[found.user] = found.credential_infos
    return results


async def alter_credentials(
    cluster: ClusterClient,
    wanted: Mapping[CredentialKey, SaltedCredential | None],
    *,
    retry: RetryLoop | None = None,
) -> Results[CredentialKey, None]:
    """Create, replace, or with None delete the credential of each user and mechanism. Raises ClosedError."""
    unanswered: Unanswered[CredentialKey] = Unanswered(ErrorCode.RESOURCE_NOT_FOUND)

    async def ask(target: Target, asked: list[CredentialKey]) -> Results[CredentialKey, None]:
        results: Results[CredentialKey, None] = Results()
        rounds = _rounds(asked)
        for number, part in enumerate(rounds):
            changes = {key: wanted[key] for key in part}
            try:
                found = await unanswered.track(part, partial(_alter, target, changes))
            except ClosedError:
                raise
            except AsyncGroupError as error:
                # only what is left is repeated: a repeated deletion would be refused
                results.errors |= dict.fromkeys((key for each in rounds[number:] for key in each), error)
                break
            found = found.completed(part, f"the response to AlterUserScramCredentials of {target}")
            results.values |= found.values
            results.errors |= found.errors
        return results

    return await request_each(
        wanted, ByController(cluster), ask, api="AlterUserScramCredentials", retry=retry
    )


def _rounds(asked: Iterable[CredentialKey]) -> list[list[CredentialKey]]:
    """Divide the keys into requests: one request may name each user once only, and its results have no mechanism."""
    rounds: list[dict[str, CredentialKey]] = []
    for key in asked:
        found = next((each for each in rounds if key.user not in each), None)
        if found is None:
            rounds.append(found := {})
        found[key.user] = key
    return [list(each.values()) for each in rounds]


async def _alter(
    target: Target, changes: Mapping[CredentialKey, SaltedCredential | None]
) -> Results[CredentialKey, None]:
    cls = m.AlterUserScramCredentialsRequest
    request = cls(
        deletions=[cls.ScramCredentialDeletion(*key) for key, each in changes.items() if each is None],
        upsertions=[
            cls.ScramCredentialUpsertion(*key, each.iterations, each.salt, each.salted_password)
            for key, each in changes.items()
            if each is not None
        ],
    )
    response = await target.request(cls, lambda _: request)
    keys = {key.user: key for key in changes}
    results: Results[CredentialKey, None] = Results()
    for found in response.results:
        if (key := keys.get(found.user)) is None:
            continue
        if found.error_code:
            what = f"altering SCRAM user {found.user!r}"
            results.errors[key] = BrokerError(found.error_code, what, found.error_message)
        else:
            results.values[key] = None
    return results
