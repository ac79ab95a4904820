"""Describe and delete groups, at their coordinators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.requests.fan_out import request_each
from asyncgroup.cluster.requests.results import Results
from asyncgroup.cluster.requests.routes import ByCoordinator, Target
from asyncgroup.errors import BrokerError
from asyncgroup.net.backoff import RetryLoop
from asyncgroup.wire import messages as m

__all__ = ["ClassicGroup", "ModernGroup", "delete_groups", "describe_consumer_groups", "describe_groups"]

ClassicGroup: TypeAlias = "m.DescribeGroupsResponse.DescribedGroup"
ModernGroup: TypeAlias = "m.ConsumerGroupDescribeResponse.DescribedGroup"


async def describe_groups(
    cluster: ClusterClient,
    group_ids: Iterable[str],
    *,
    lane: str = CONTROL,
    retry: RetryLoop | None = None,
) -> Results[str, ClassicGroup]:
    """Return what the coordinators know of groups of the classic protocol (DescribeGroups). Raises ClosedError.

    `lane` is the purpose of the connections. A group that does not exist has the state "Dead", from version 6 on the error
    GROUP_ID_NOT_FOUND; so has one of the consumer protocol.
    """

    async def ask(target: Target, asked: list[str]) -> Results[str, ClassicGroup]:
        request = m.DescribeGroupsRequest(groups=asked)
        response = await target.request(m.DescribeGroupsRequest, lambda _: request, lane=lane)
        results: Results[str, ClassicGroup] = Results()
        for group in response.groups:
            if group.error_code:
                results.errors[group.group_id] = _error(group.error_code, group.group_id, group.error_message)
            else:
                results.values[group.group_id] = group
        return results

    return await request_each(group_ids, ByCoordinator(cluster), ask, api="DescribeGroups", retry=retry)


async def describe_consumer_groups(
    cluster: ClusterClient,
    group_ids: Iterable[str],
    *,
    lane: str = CONTROL,
    retry: RetryLoop | None = None,
) -> Results[str, ModernGroup]:
    """As `describe_groups`, of groups of the consumer protocol (ConsumerGroupDescribe, KIP-848)."""

    async def ask(target: Target, asked: list[str]) -> Results[str, ModernGroup]:
        request = m.ConsumerGroupDescribeRequest(group_ids=asked)
        response = await target.request(m.ConsumerGroupDescribeRequest, lambda _: request, lane=lane)
        results: Results[str, ModernGroup] = Results()
        for group in response.groups:
            if group.error_code:
                results.errors[group.group_id] = _error(group.error_code, group.group_id, group.error_message)
            else:
                results.values[group.group_id] = group
        return results

    return await request_each(
        group_ids, ByCoordinator(cluster), ask, api="ConsumerGroupDescribe", retry=retry
    )


def _error(code: int, group_id: str, detail: str | None) -> BrokerError:
    return BrokerError(code, f"members of group {group_id!r}", detail)


async def delete_groups(
    cluster: ClusterClient, group_ids: Iterable[str], *, retry: RetryLoop | None = None
) -> Results[str, None]:
    """Delete groups without members; return the error of each one that could not be deleted. Raises ClosedError."""

    async def ask(target: Target, asked: list[str]) -> Results[str, None]:
        request = m.DeleteGroupsRequest(groups_names=asked)
        response = await target.request(m.DeleteGroupsRequest, lambda _: request)
        codes = {result.group_id: result.error_code for result in response.results}
        errors = {name: BrokerError(code, f"deleting group {name!r}") for name, code in codes.items() if code}
        return Results({name: None for name, code in codes.items() if not code}, {**errors})

    return await request_each(group_ids, ByCoordinator(cluster), ask, api="DeleteGroups", retry=retry)
