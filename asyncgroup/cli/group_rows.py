"""Rows and columns of `asyncgroup groups`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from asyncgroup.cli.tables import Column, Row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncgroup.admin import GroupDescription, GroupListing, MemberDescription
    from asyncgroup.topic_partition import TopicPartition

__all__ = [
    "DESCRIBE_COLUMNS",
    "LIST_COLUMNS",
    "MEMBER_COLUMNS",
    "description_row",
    "listing_row",
    "member_row",
]

LIST_COLUMNS: Final = (
    Column("group", is_name=True, can_shrink=True),
    Column("type"),
    Column("protocol"),
    Column("state"),
)

DESCRIBE_COLUMNS: Final = (
    Column("group", is_name=True, can_shrink=True),
    Column("type"),
    Column("state"),
    Column("coordinator", is_number=True),
    Column("assignor"),
    Column("members", "#MEMBERS", is_number=True),
    Column("group_epoch", is_number=True),
    Column("assignment_epoch", is_number=True),
)

MEMBER_COLUMNS: Final = (
    Column("group", is_name=True, can_shrink=True),
    Column("member_id", "CONSUMER-ID", is_name=True, can_shrink=True),
    Column("group_instance_id", can_shrink=True),
    Column("host", can_shrink=True),
    Column("client_id", can_shrink=True),
    Column("partitions", "#PARTITIONS", is_number=True),
    Column("epoch", "CURRENT-EPOCH", is_number=True, is_wide=True),
    Column("assignment", "CURRENT-ASSIGNMENT", is_wide=True, can_shrink=True),
    Column("target_assignment", is_wide=True, can_shrink=True),
    Column("upgraded", is_wide=True),
)
"""Headings as `kafka-consumer-groups --members --verbose`."""


def listing_row(group: GroupListing) -> Row:
    """Return the row of a group in a list."""
    return {
        "group": group.group_id,
        "type": group.group_type or None,
        "protocol": group.protocol_type or None,
        "state": group.state or None,
    }


def description_row(group: GroupDescription, coordinator: int | None) -> Row:
    """Return the row of a group; `coordinator` is a node id."""
    return {
        "group": group.group_id,
        "type": group.group_type,
        "state": group.state,
        "coordinator": coordinator,
        "assignor": group.assignor or None,
        "members": len(group.members),
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
    }


def member_row(group: GroupDescription, member: MemberDescription) -> Row:
    """Return the row of a member."""
    target = member.target_assignment
    return {
        "group": group.group_id,
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "host": member.host,
        "client_id": member.client_id,
        "partitions": len(member.assignment),
        "epoch": member.epoch,
        "assignment": _assignment(member.assignment),
        "target_assignment": None if target is None else _assignment(target),
        "upgraded": member.is_upgraded,
    }


def _assignment(partitions: Iterable[TopicPartition]) -> list[str]:
    """Return the partitions of each topic as `orders:0,1`, which other commands take as arguments."""
    by_topic: dict[str, list[str]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, []).append(str(tp.partition))
    return [f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items()]
