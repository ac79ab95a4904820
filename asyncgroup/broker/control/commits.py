"""Offsets that a test commits directly, without a client."""

from __future__ import annotations

from collections.abc import Mapping

from asyncgroup.broker.control.seeding import check_int64
from asyncgroup.broker.groups.requests import CommitRequest, OffsetAndMetadata
from asyncgroup.broker.node import ClusterState
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import UsageError
from asyncgroup.model import TopicPartition

__all__ = ["commit_offsets"]


def commit_offsets(state: ClusterState, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Commit offsets of existing partitions, see `EmbeddedCluster.commit`."""
    controller = state.controller
    committed = {}
    for (topic, partition), offset in offsets.items():
        check_int64("offset", offset)
        topic_id = controller.topics[topic].id
        committed[TopicPartition(topic, partition)] = OffsetAndMetadata(offset, topic_id=topic_id)
    node = state.nodes.get(controller.coordinators.group_coordinator(group_id))
    if node is None:
        raise UsageError(f"no node coordinates group {group_id!r}")
    outcomes: list[ErrorCode | dict[TopicPartition, ErrorCode]] = []
    node.coordinator.offsets.commit(CommitRequest(group_id=group_id, offsets=committed), outcomes.append)
    if outcomes and isinstance(outcomes[0], ErrorCode) and outcomes[0]:
        group = node.coordinator.groups.get(group_id)
        members = 0 if group is None else len(group.members)
        raise UsageError(
            f"cannot commit offsets of group {group_id!r}, which has {members} members: {outcomes[0].name}"
        )
