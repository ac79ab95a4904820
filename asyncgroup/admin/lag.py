"""The lag of groups: their members, their commits, then the logs of all their partitions at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from asyncgroup.admin.denied import explained
from asyncgroup.admin.group_offsets import GroupOffset, list_offsets_of_groups
from asyncgroup.admin.groups import GroupDescription, describe_groups, other_types
from asyncgroup.admin.lag_values import GroupLag, PartitionFacts, group_lag
from asyncgroup.admin.partitions import existing_partitions
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.fan_out import run_together
from asyncgroup.cluster.requests.list_offsets import (
    EARLIEST,
    LATEST,
    Isolation,
    ListedOffset,
    list_offsets_of_leaders,
)
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode
from asyncgroup.topic_partition import TopicPartition
from asyncgroup.wire.messages import NO_UUID

__all__ = ["lag_of_groups"]


async def lag_of_groups(
    cluster: ClusterClient,
    group_ids: Iterable[str],
    isolation: Isolation,
    budget: RequestBudget,
    *,
    require_stable: bool,
) -> Results[str, GroupLag]:
    """Return the lag of each group, or its error. A coordinator or leader that does not answer delays the result by `NODE_TIMEOUT`."""
    wanted = list(dict.fromkeys(group_ids))
    found = await _committed(cluster, wanted, budget, require_stable=require_stable)
    # after the commits: a log that grows in between makes the lag a little larger, never negative
    logs = await _logs(
        cluster, {tp for each in found.values.values() for tp in each.partitions}, isolation, budget
    )
    values = {
        name: group_lag(each.group, {tp: _facts(tp, each, logs) for tp in each.partitions})
        for name, each in found.values.items()
    }
    return Results(values, found.errors)


class _Committed(NamedTuple):
    """A group, and what it has committed."""

    group: GroupDescription
    offsets: Results[TopicPartition, GroupOffset]

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions that the group has commits of, and those that its members have."""
        assigned = {tp for member in self.group.members for tp in member.assignment}
        return assigned | self.offsets.values.keys() | self.offsets.errors.keys()


# --- groups -----------------------------------------------------------------------------------------------------------


async def _committed(
    cluster: ClusterClient, group_ids: list[str], budget: RequestBudget, *, require_stable: bool
) -> Results[str, _Committed]:
    """Return each group with its commits, or its error."""
    limits = (
        budget if len(group_ids) > 1 else budget.for_node()
    )  # of several, each request has the limit of a node
    described = await describe_groups(cluster, group_ids, limits)
    commits = await list_offsets_of_groups(cluster, described.values, budget, require_stable=require_stable)
    errors = described.errors | commits.errors
    values = {name: _Committed(described.values[name], offsets) for name, offsets in commits.values.items()}
    return Results(values, errors | await _other_types(cluster, errors, budget))


async def _other_types(
    cluster: ClusterClient, errors: Mapping[str, AsyncGroupError], budget: RequestBudget
) -> dict[str, AsyncGroupError]:
    """Return a better error for the groups that were not found because they are share or streams groups."""
    missing = {
        name
        for name, error in errors.items()
        if isinstance(error, BrokerError) and error.code == ErrorCode.GROUP_ID_NOT_FOUND
    }
    types = await other_types(cluster, missing, budget)
    return {
        name: BrokerError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"lag of group {name!r}",
            f"it is a {group_type} group; the lag is that of classic and consumer groups",
        )
        for name, group_type in types.items()
    }


# --- logs -------------------------------------------------------------------------------------------------------------


class _Logs(NamedTuple):
    """Where logs begin and end, and to which topics they belong."""

    starts: Results[TopicPartition, ListedOffset]
    ends: Results[TopicPartition, ListedOffset]
    topic_ids: Mapping[str, UUID]


async def _logs(
    cluster: ClusterClient, partitions: set[TopicPartition], isolation: Isolation, budget: RequestBudget
) -> _Logs:
    async with existing_partitions(cluster, sorted(partitions), "offset of", budget.deadline) as (
        found,
        errors,
    ):
        starts, ends = await run_together(
            [
                (
                    f"{what} offsets",
                    list_offsets_of_leaders(
                        cluster, dict.fromkeys(found, at), isolation, retry=budget.node_retry()
                    ),
                )
                for what, at in (("start", EARLIEST), ("end", LATEST))
            ]
        )
        topic_ids = {name: topic.topic_id for name, topic in cluster.view.topics.items()}
    ends.errors |= errors
    return _Logs(starts, ends, topic_ids)


def _facts(tp: TopicPartition, group: _Committed, logs: _Logs) -> PartitionFacts:
    start, end = logs.starts.values.get(tp), logs.ends.values.get(tp)
    places = (group.offsets.errors, logs.ends.errors, logs.starts.errors)
    error = next((errors[tp] for errors in places if tp in errors), None)
    return PartitionFacts(
        commit=group.offsets.values.get(tp),
        log_start=None if start is None else start.offset,
        log_end=None if end is None else end.offset,
        topic_id=logs.topic_ids.get(tp.topic, NO_UUID),
        error=None if error is None else explained(error, "DESCRIBE on the topic"),
    )
