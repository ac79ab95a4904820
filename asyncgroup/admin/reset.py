"""Reset the offsets of a group without members: look up what a plan needs, and commit a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from asyncgroup.admin.denied import explained
from asyncgroup.admin.group_offsets import GroupOffset, alter_group_offsets, list_group_offsets
from asyncgroup.admin.groups import GroupDescription, describe_groups, other_types
from asyncgroup.admin.partitions import existing_partitions
from asyncgroup.admin.reset_plan import ResetFacts, ResetPlan, ResetRefused, plan_offsets
from asyncgroup.admin.reset_target import ParsedTarget, ResetScope, TargetKind
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.list_offsets import EARLIEST, LATEST, list_offsets_of_leaders
from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode
from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.topic_partition import TopicPartition
from asyncgroup.wire.message import NO_UUID

__all__ = ["commit_plan", "plan_reset"]

_INACTIVE: Final = ("Empty", "Dead")
"""The states in which offsets are reset, as in `ConsumerGroupCommand.resetOffsets` of Kafka."""

_SHOWN_MEMBERS: Final = 3

_REASONS: Final[Mapping[int, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "it does not exist",
    ErrorCode.LEADER_NOT_AVAILABLE: "it has no leader",
}
"""The reasons of a refused plan in words; other errors have a text that says it."""


async def plan_reset(
    cluster: ClusterClient,
    group_id: str,
    target: ParsedTarget,
    scope: ResetScope,
    budget: RequestBudget,
) -> ResetPlan:
    """Return the plan for a group without members. Raises ResetRefused, and the error of the group."""
    await _require_inactive(cluster, group_id, budget)
    # not stable ones: those of an open transaction do not delay a plan, which is only looked at first
    committed = (await list_group_offsets(cluster, group_id, budget.retry(), require_stable=False)).require()
    wanted = await _partitions(cluster, group_id, scope, committed, budget)
    facts = await _facts(cluster, target, wanted, committed, budget)
    return plan_offsets(group_id, target, wanted, facts)


async def _require_inactive(cluster: ClusterClient, group_id: str, budget: RequestBudget) -> None:
    """Raise ResetRefused for a group with members or of another type; one that does not exist is created by the commit."""
    described = await describe_groups(cluster, [group_id], budget)
    error = described.errors.get(group_id)
    # also the error of a group of another type, which has nothing that is reset
    if isinstance(error, BrokerError) and error.code == ErrorCode.GROUP_ID_NOT_FOUND:
        for group_type in (await other_types(cluster, [group_id], budget)).values():
            reason = "only classic and consumer groups have committed offsets that are reset"
            raise ResetRefused(group_id, {f"type {group_type}": reason})
        return
    group = described.require()[group_id]
    if group.state not in _INACTIVE:
        raise ResetRefused(group_id, dict([_activity(group)]))


def _activity(group: GroupDescription) -> tuple[str, str]:
    """Return the state of a group and what to do with its members, for messages."""
    shown = [
        f"{printable(each.member_id, MAX_TEXT_LENGTH)} at {printable(each.host.removeprefix('/'))}"
        for each in group.members[:_SHOWN_MEMBERS]
    ]
    more = len(group.members) - len(shown)
    names = ", ".join(shown) + (f" and {more} more" if more else "")
    return f"state {group.state}", "stop its members first" + (f": {names}" if names else "")


async def _partitions(
    cluster: ClusterClient,
    group_id: str,
    scope: ResetScope,
    committed: Mapping[TopicPartition, GroupOffset],
    budget: RequestBudget,
) -> list[TopicPartition]:
    """Return the partitions of a scope. Raises ResetRefused for topics that do not exist."""
    # all that the group has commits of, also in topics that are gone: the lookup of their logs reports those
    if scope.topics is None and scope.partitions is None:
        return list(committed)
    found = await budget.limit(cluster.existing_topics(scope.topics)) if scope.topics else {}
    reasons: dict[str, str] = {}
    for name in scope.topics or ():
        if name not in found:
            reasons[f"topic {name}"] = "it does not exist"
        elif code := found[name].error_code:
            reasons[f"topic {name}"] = _reason(BrokerError(code, "its partitions"))
    if reasons:
        raise ResetRefused(group_id, reasons)
    of_topics = [
        TopicPartition(name, number) for name in scope.topics or () for number in found[name].numbers
    ]
    return [*of_topics, *(scope.partitions or ())]


async def _facts(
    cluster: ClusterClient,
    target: ParsedTarget,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, GroupOffset],
    budget: RequestBudget,
) -> ResetFacts:
    """Look the logs up. One partition without a leader refuses the plan at once, as `checkAllTopicPartitionsValid` in Kafka."""
    async with existing_partitions(cluster, partitions, "offset of", budget.deadline) as (found, errors):
        problems = dict(errors)
        for tp in found:
            # known from the metadata: a request for it would wait for an election until the deadline
            if cluster.view.leader(tp) < 0:
                problems[tp] = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"offset of {tp}")

        async def listed(timestamp: int) -> dict[TopicPartition, int]:
            # the plan is refused already: the remaining lookups would only delay that
            wanted = {} if problems else dict.fromkeys(found, timestamp)
            results = await list_offsets_of_leaders(cluster, wanted, retry=budget.node_retry())
            problems.update(results.errors)
            return {tp: each.offset for tp, each in results.values.items()}

        topics = {name: cluster.view.topics[name] for name in {tp.topic for tp in found}}
        # of the same metadata as the leaders that were asked; brokers before 2.8 have none
        topic_ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id != NO_UUID}
        # one after the other: a record that arrives in between moves only the end
        starts, ends = await listed(EARLIEST), await listed(LATEST)
        at_time = await listed(target.number) if target.kind is TargetKind.TIME else {}
    return ResetFacts(
        committed,
        starts,
        ends,
        {tp: offset if offset >= 0 else None for tp, offset in at_time.items()},
        {tp: _reason(error) for tp, error in problems.items()},
        topic_ids,
    )


def _reason(error: AsyncGroupError) -> str:
    text = str(explained(error, "DESCRIBE on the topic"))
    return _REASONS.get(error.code, text) if isinstance(error, BrokerError) else text


async def commit_plan(
    cluster: ClusterClient, plan: ResetPlan, budget: RequestBudget
) -> Results[TopicPartition, int]:
    """Commit a plan; return the new offset of each partition, or its error.

    Without metadata and without a leader epoch, as `OffsetsUtils` in Kafka: the epoch of the record before an offset is not known.
    The offsets of a topic that was recreated after the plan was made say nothing about its new log: they are not committed.
    """
    # right before the commit: a plan may lie for hours between its making and its execution
    recreated = await _recreated(cluster, plan, budget)
    offsets = {tp: GroupOffset(offset) for tp, offset in plan.offsets.items() if tp.topic not in recreated}
    done = await alter_group_offsets(cluster, plan.group_id, offsets, budget.retry())
    results: Results[TopicPartition, int] = Results(
        {tp: offsets[tp].offset for tp in done.values}, dict(done.errors)
    )
    for tp in plan.offsets:
        if tp.topic in recreated:
            what = f"resetting the offset of group {plan.group_id!r}, partition {tp}"
            detail = "the topic was recreated after the plan was made: make a new plan"
            results.errors[tp] = BrokerError(ErrorCode.INCONSISTENT_TOPIC_ID, what, detail)
    # keep the order of the plan, although values and errors are in two mappings
    results = results.in_order(plan.offsets)
    # a member has joined since the plan: its name helps more than the code
    if any(_has_members(error) for error in results.errors.values()):
        await _explain(cluster, plan.group_id, results, budget)
    return results


async def _recreated(cluster: ClusterClient, plan: ResetPlan, budget: RequestBudget) -> set[str]:
    """Return the topics of a plan that have another id now; one that does not exist any more is refused by its commit."""
    if not plan.topic_ids:
        return set()
    now = await budget.limit(cluster.existing_topics(plan.topic_ids))
    return {
        name
        for name, topic in now.items()
        if not topic.error_code and topic.topic_id not in (plan.topic_ids[name], NO_UUID)
    }


def _has_members(error: AsyncGroupError) -> bool:
    return isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_MEMBER_ID


async def _explain(
    cluster: ClusterClient,
    group_id: str,
    results: Results[TopicPartition, int],
    budget: RequestBudget,
) -> None:
    """Add the state and the members of the group to the errors of a reset that came after a member."""
    described = (await describe_groups(cluster, [group_id], budget)).values.get(group_id)
    if described is None or described.state in _INACTIVE:
        return  # its members have left again
    detail = ": ".join(_activity(described))
    for tp, error in results.errors.items():
        if _has_members(error):
            what = f"resetting the offset of group {group_id!r}, partition {tp}"
            results.errors[tp] = BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, what, detail)
