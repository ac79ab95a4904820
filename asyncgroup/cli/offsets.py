"""`asyncgroup offsets`: committed offsets of a group (list, alter, delete), and offsets of partitions (earliest, latest, at)."""

from __future__ import annotations

import argparse
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.cli.administration import (
    STATUS_COLUMNS,
    Report,
    add_action,
    add_subject,
    opened_admin,
    status_rows,
)
from asyncgroup.cli.common import group_id
from asyncgroup.cli.group_lag import add_isolation_level
from asyncgroup.cli.instants import parse_instant, timestamp_of_instant
from asyncgroup.cli.tables import Column, Row, shown_timestamp
from asyncgroup.cli.topic_arguments import (
    PartitionScope,
    add_scopes,
    partitions_in,
    topic_name,
)
from asyncgroup.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncgroup.cli.common import Commands

__all__ = ["COLUMNS", "add_parser"]

_NAME: Final = (
    Column("group", can_shrink=True),
    Column("topic", is_name=True, can_shrink=True),
    Column("partition", is_number=True, is_name=True),
)
_LISTED: Final = (
    *_NAME,
    Column("offset", "CURRENT-OFFSET", is_number=True),
    Column("leader_epoch", is_number=True),
    Column("metadata", is_wide=True, can_shrink=True),
)
_ALTERED: Final = (*_NAME, Column("offset", "NEW-OFFSET", is_number=True), *STATUS_COLUMNS)
_DELETED: Final = (*_NAME, *STATUS_COLUMNS)
_OF_PARTITIONS: Final = (
    *_NAME[1:],
    Column("offset", is_number=True),
    Column("timestamp", text=shown_timestamp),
    Column("leader_epoch", is_number=True),
)
COLUMNS: Final = {
    "list": _LISTED,
    "alter": _ALTERED,
    "delete": _DELETED,
    "earliest": _OF_PARTITIONS,
    "latest": _OF_PARTITIONS,
    "at": _OF_PARTITIONS,
}
"""The columns of each action."""

_ALTERATION: Final = re.compile(r"(.+):(\d{1,10})=(\d{1,19})", re.ASCII)


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `offsets` with its actions."""
    actions = add_subject(
        commands,
        "offsets",
        "committed offsets of groups, and offsets of partitions",
        "Lists, alters and deletes the committed offsets of a group, and shows the offsets of partitions.",
    )
    parser = add_action(
        actions, common, "list", run_list, "List the offsets that a group has committed.", has_wide=True
    )
    parser.add_argument("group", type=group_id, metavar="GROUP", help="the group")
    add_scopes(parser, default="all that it has")
    parser.add_argument(
        "--require-stable",
        action="store_true",
        help="an error for partitions whose offset an open transaction may still change",
    )
    parser = add_action(
        actions,
        common,
        "alter",
        run_alter,
        "Commit offsets for a group without members. A group that does not exist is created.",
    )
    parser.add_argument("group", type=group_id, metavar="GROUP", help="the group")
    parser.add_argument(
        "offsets",
        nargs="+",
        type=_alteration,
        metavar="TOPIC:PARTITION=OFFSET",
        help="such as orders:0=42: the next offset to read",
    )
    parser = add_action(
        actions,
        common,
        "delete",
        run_delete,
        "Delete committed offsets of topics that no member subscribes to.",
    )
    parser.add_argument("group", type=group_id, metavar="GROUP", help="the group")
    add_scopes(parser)
    _add_of_partitions(actions, common)


def _add_of_partitions(actions: Commands, common: argparse.ArgumentParser) -> None:
    for name, description in (
        ("earliest", "Show the start of each partition's log."),
        (
            "latest",
            "Show the end of each partition's log. With --isolation-level read_committed the last stable offset.",
        ),
        ("at", "Show the first record at or after a time in each partition."),
    ):
        parser = add_action(actions, common, name, run_of_partitions, description)
        if name == "at":
            parser.add_argument("when", type=_time, metavar="TIME", help=_TIME_HELP)
        else:
            # the actions have Admin's names
            parser.set_defaults(when=name)
        add_scopes(parser, default="all topics but Kafka's own")
        add_isolation_level(parser)


_TIME_HELP: Final = (
    "2026-11-27T10:00Z or with another zone such as +01:00, ms or seconds since 1970, a duration before now such as 90s, 30m, "
    "24h or 7d; or max-timestamp, earliest-local, latest-tiered or earliest-pending-upload, as for kafka-get-offsets"
)

_SPECIAL: Final = ("max-timestamp", "earliest-local", "latest-tiered", "earliest-pending-upload")


def _time(text: str) -> str | datetime | timedelta:
    # the words first: none of them is a time
    return text if text in _SPECIAL else parse_instant(text)


def _alteration(text: str) -> tuple[TopicPartition, int]:
    found = _ALTERATION.fullmatch(text)
    # larger numbers do not fit their fields on the wire
    if found is None or int(found[2]) >= 2**31 or int(found[3]) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC:PARTITION=OFFSET, such as orders:0=42")
    return TopicPartition(topic_name(found[1]), int(found[2])), int(found[3])


def _name(group: str, tp: TopicPartition) -> Row:
    return {"group": group, "topic": tp.topic, "partition": tp.partition}


# --- committed offsets ------------------------------------------------------------------------------------------------


async def run_list(options: argparse.Namespace) -> int:
    """List the committed offsets of a group."""
    report = Report(options)
    async with opened_admin(options) as admin:
        listed = await admin.list_group_offsets(options.group, require_stable=options.require_stable)
    found = listed.values_by_name
    rows = [
        {
            **_name(options.group, tp),
            "offset": found[tp].offset,
            # -1 on the wire; a commit of another client may have none
            "leader_epoch": None if found[tp].leader_epoch < 0 else found[tp].leader_epoch,
            "metadata": found[tp].metadata,
        }
        for tp in _within(found, options.scopes)
    ]
    report.rows(_LISTED, rows)
    # all offsets are fetched, but errors of other partitions are not the user's concern
    report.errors({tp: listed.errors[tp] for tp in _within(listed.errors, options.scopes)})
    # brokers answer without an error for a group that does not exist: it has no offsets
    if not rows and not report.exit_code:
        report.note(
            f"group {options.group!r} has no committed offsets here; `asyncgroup groups list` shows the groups"
        )
    return report.exit_code


def _within(partitions: Iterable[TopicPartition], scopes: Sequence[PartitionScope]) -> list[TopicPartition]:
    """Return the partitions in the scopes, sorted; all if there are no scopes."""
    return sorted(
        tp
        for tp in partitions
        if not scopes
        or any(
            # a topic without partitions stands for all of them
            tp.topic == each.topic and tp.partition in (each.partitions or [tp.partition])
            for each in scopes
        )
    )


async def run_alter(options: argparse.Namespace) -> int:
    """Commit offsets for a group without members."""
    offsets = dict(options.offsets)
    # a dict keeps the last one; two offsets for a partition are a mistake
    if len(offsets) < len(options.offsets):
        options.usage.error("a partition is given twice")
    report = Report(options)
    async with opened_admin(options) as admin:
        altered = await admin.alter_group_offsets(options.group, offsets)
    rows = status_rows(
        offsets,
        altered.errors,
        "altered",
        lambda tp: {**_name(options.group, tp), "offset": offsets[tp]},
    )
    report.rows(_ALTERED, rows)
    report.errors(altered.errors)
    return report.exit_code


async def run_delete(options: argparse.Namespace) -> int:
    """Delete committed offsets; of a topic without partitions all that are committed."""
    report = Report(options)
    async with opened_admin(options) as admin:
        # with those that have an error: they may be deleted as well
        committed = (await admin.list_group_offsets(options.group)).keys()
        chosen: set[TopicPartition] = set()
        for scope in options.scopes:
            # a topic stands for what is committed, also if the topic is gone
            found = scope.chosen(tp.partition for tp in committed if tp.topic == scope.topic)
            if not found:
                report.error(f"group {options.group!r} has no committed offsets of topic {scope.topic!r}")
            chosen.update(found)
        partitions = sorted(chosen)
        deleted = await admin.delete_group_offsets(options.group, partitions)
    report.rows(
        _DELETED, status_rows(partitions, deleted.errors, "deleted", lambda tp: _name(options.group, tp))
    )
    report.errors(deleted.errors)
    return report.exit_code


# --- offsets of partitions --------------------------------------------------------------------------------------------


async def run_of_partitions(options: argparse.Namespace) -> int:
    """Show an offset of each partition."""
    report = Report(options)
    when: Any = options.when if isinstance(options.when, str) else timestamp_of_instant(options.when)
    async with opened_admin(options) as admin:
        # all topics by the metadata, without those of Kafka itself
        scopes = options.scopes or [PartitionScope(topic.name, None) for topic in await admin.list_topics()]
        partitions = await partitions_in(admin, report, scopes)
        found = await admin.list_offsets(
            dict.fromkeys(partitions, when), isolation_level=options.isolation_level
        )
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": each.offset,
            "timestamp": each.timestamp,
            "leader_epoch": each.leader_epoch,
        }
        for tp, each in sorted(found.values_by_name.items())
    ]
    report.rows(_OF_PARTITIONS, rows)
    report.errors(found.errors)
    return report.exit_code
