"""Access control lists: described by any broker, created and deleted by the controller (KIP-11, KIP-140)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.fan_out import request_each, request_one
from asyncgroup.cluster.requests.results import IncompleteResponse, Results
from asyncgroup.cluster.requests.routes import ByController, Target, ToAnyNode, ToOneTarget
from asyncgroup.errors import AsyncGroupError, BrokerError
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = [
    "ANY",
    "AclFields",
    "AclFilterFields",
    "MatchingAcls",
    "create_acls",
    "delete_acls",
    "describe_acls",
]

ANY: Final = 1
"""In a filter: any resource type, pattern type, operation or permission."""


class AclFields(NamedTuple):
    """An ACL with Kafka's numbers, as in CreateAcls."""

    resource_type: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class AclFilterFields(NamedTuple):
    """A filter with Kafka's numbers; None means any name, principal or host."""

    resource_type: int = ANY
    name: str | None = None
    pattern_type: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission_type: int = ANY


class MatchingAcls(NamedTuple):
    """What the deletion by one filter did."""

    deleted: list[AclFields]
    errors: dict[AclFields, AsyncGroupError]
    """Of ACLs that match, but could not be deleted."""


async def describe_acls(
    cluster: ClusterClient, wanted: AclFilterFields, *, retry: RetryLoop | None = None
) -> list[AclFields]:
    """Return the ACLs that match. Raises BrokerError and what `request_one` raises."""
    request = m.DescribeAclsRequest(*wanted)

    async def ask(target: Target) -> list[AclFields]:
        response = await target.request(m.DescribeAclsRequest, lambda _: request)
        if response.error_code:
            raise BrokerError(response.error_code, "describing ACLs", response.error_message)
        return [
            AclFields(
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for resource in response.resources
            for acl in resource.acls
        ]

    return await request_one(ToOneTarget(ToAnyNode(cluster)), ask, api="DescribeAcls", retry=retry)


async def create_acls(
    cluster: ClusterClient, wanted: Iterable[AclFields], *, retry: RetryLoop | None = None
) -> Results[AclFields, None]:
    """Create ACLs; one that exists is created already. Raises ClosedError."""

    async def ask(target: Target, asked: list[AclFields]) -> Results[AclFields, None]:
        creations = [m.CreateAclsRequest.AclCreation(*each) for each in asked]
        response = await target.request(m.CreateAclsRequest, lambda _: m.CreateAclsRequest(creations))
        _check_count("CreateAcls", len(response.results), len(asked))
        results: Results[AclFields, None] = Results()
        for acl, found in zip(asked, response.results, strict=True):
            if found.error_code:
                what = f"creating the ACL for {acl.principal!r} on {acl.name!r}"
                results.errors[acl] = BrokerError(found.error_code, what, found.error_message)
            else:
                results.values[acl] = None
        return results

    return await request_each(wanted, ByController(cluster), ask, api="CreateAcls", retry=retry)


async def delete_acls(
    cluster: ClusterClient, wanted: Iterable[AclFilterFields], *, retry: RetryLoop | None = None
) -> Results[AclFilterFields, MatchingAcls]:
    """Delete the ACLs that match each filter. Raises ClosedError.

    After a request without a response the ACLs that it deleted are not among those of its repetition.
    """

    async def ask(target: Target, asked: list[AclFilterFields]) -> Results[AclFilterFields, MatchingAcls]:
        filters = [m.DeleteAclsRequest.DeleteAclsFilter(*each) for each in asked]
        response = await target.request(m.DeleteAclsRequest, lambda _: m.DeleteAclsRequest(filters))
        _check_count("DeleteAcls", len(response.filter_results), len(asked))
        results: Results[AclFilterFields, MatchingAcls] = Results()
        for each, found in zip(asked, response.filter_results, strict=True):
            if found.error_code:
                results.errors[each] = BrokerError(found.error_code, "deleting ACLs", found.error_message)
            else:
                results.values[each] = _matching(found.matching_acls)
        return results

    return await request_each(wanted, ByController(cluster), ask, api="DeleteAcls", retry=retry)


def _check_count(api: str, found: int, wanted: int) -> None:
    """Raise IncompleteResponse unless the response has a result for each entry: results have no names, only an order."""
    if found != wanted:
        raise IncompleteResponse(f"the response to {api} has {found} results for {wanted} entries")


def _matching(found: Iterable[m.DeleteAclsResponse.DeleteAclsMatchingAcl]) -> MatchingAcls:
    matching = MatchingAcls([], {})
    for each in found:
        acl = AclFields(
            each.resource_type,
            each.resource_name,
            each.pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        if each.error_code:
            what = f"deleting the ACL for {acl.principal!r} on {acl.name!r}"
            matching.errors[acl] = BrokerError(each.error_code, what, each.error_message)
        else:
            matching.deleted.append(acl)
    return matching
