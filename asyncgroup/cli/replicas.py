"""Actions of `asyncgroup cluster` on replicas: elect leaders, and list, begin and cancel reassignments."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.administration import (
    STATUS_COLUMNS,
    Report,
    add_action,
    opened_admin,
    status_rows,
)
from asyncgroup.cli.common import whole
from asyncgroup.cli.tables import Column, Row
from asyncgroup.cli.topic_arguments import add_scopes, parse_assignments, parse_partition, partitions_in

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands
    from asyncgroup.topic_partition import TopicPartition

__all__ = ["REPLICA_COLUMNS", "add_replica_actions"]

_PLACE: Final = (
    Column("topic", is_name=True, can_shrink=True),
    Column("partition", is_number=True, is_name=True),
)
_CHANGE: Final = (*_PLACE, *STATUS_COLUMNS)
_MOVING: Final = (*_PLACE, Column("replicas"), Column("adding"), Column("removing"))
REPLICA_COLUMNS: Final = {
    "elect-leaders": _CHANGE,
    "reassignments": _MOVING,
    "reassign": (*_PLACE, Column("replicas"), *STATUS_COLUMNS),
    "cancel-reassignments": _CHANGE,
    "alter-log-dirs": (*_PLACE, Column("path", can_shrink=True), *STATUS_COLUMNS),
}
"""The columns of each action."""

_ASSIGNMENT: Final = re.compile(r"([^=]+)=([0-9,]+)")


def add_replica_actions(actions: Commands, common: argparse.ArgumentParser) -> None:
    """Add the actions on replicas."""
    parser = add_action(
        actions,
        common,
        "elect-leaders",
        run_elect,
        "Elect the preferred leaders of partitions. Of all that need it without arguments.",
    )
    add_scopes(parser, default="all that need it")
    parser.add_argument(
        "--unclean",
        action="store_true",
        help="elect replicas that are not in sync for partitions without a leader: RECORDS ARE LOST. Needs partitions",
    )
    parser = add_action(
        actions, common, "reassignments", run_list, "List the reassignments of replicas that are in progress."
    )
    add_scopes(parser, default="all")
    parser = add_action(
        actions,
        common,
        "reassign",
        run_reassign,
        "Begin to move replicas of partitions to other nodes. `reassignments` shows the progress.",
    )
    parser.add_argument(
        "moves",
        nargs="+",
        type=_move,
        metavar="TOPIC:PARTITION=NODES",
        help="the node ids of all replicas afterwards, the preferred leader first: orders:0=2,3,1",
    )
    parser = add_action(
        actions,
        common,
        "cancel-reassignments",
        run_cancel,
        "Cancel reassignments. The partitions go back to the replicas that they had.",
    )
    add_scopes(parser)
    parser = add_action(
        actions,
        common,
        "alter-log-dirs",
        run_alter_log_dirs,
        "Begin to move a node's replicas to another of its log directories. `log-dirs --replicas` shows the progress.",
    )
    parser.add_argument("node", type=whole, metavar="NODE", help="the id of the node")
    parser.add_argument(
        "paths",
        nargs="+",
        type=_path,
        metavar="TOPIC:PARTITION=PATH",
        help="the directory of the replica afterwards: orders:0=/disk2/kafka",
    )


def _path(text: str) -> tuple[TopicPartition, str]:
    place, equals, path = text.partition("=")
    if not equals or not path:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not TOPIC:PARTITION=PATH, such as orders:0=/disk2/kafka"
        )
    return parse_partition(place), path


def _move(text: str) -> tuple[TopicPartition, list[int]]:
    found = _ASSIGNMENT.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC:PARTITION=NODES, such as orders:0=2,3,1")
    # the same checks as for --replica-assignment, which separates nodes by colons
    (nodes,) = parse_assignments(found[2].replace(",", ":"))
    return parse_partition(found[1]), nodes


def _place(tp: TopicPartition) -> Row:
    return {"topic": tp.topic, "partition": tp.partition}


async def run_elect(options: argparse.Namespace) -> int:
    """Elect leaders."""
    # without partitions the controller elects a leader of each one that has none: a forgotten argument would lose records
    if options.unclean and not options.scopes:
        options.usage.error("--unclean loses records: name the partitions")
    report = Report(options)
    async with opened_admin(options) as admin:
        partitions = await partitions_in(admin, report, options.scopes) if options.scopes else None
        # all scopes were wrong, which is reported; None would mean all partitions
        if partitions == []:
            return report.exit_code
        elected = await admin.replicas.elect_leaders(
            "unclean" if options.unclean else "preferred", partitions
        )
    # False: it was the right leader already
    done = {tp: "elected" if changed else "unchanged" for tp, changed in elected.values_by_name.items()}
    rows = [
        {**row, "status": done.get(tp, row["status"])}
        for tp, row in zip(
            # without scopes the response says which partitions there were
            sorted(elected),
            status_rows(sorted(elected), elected.errors, "", _place),
            strict=True,
        )
    ]
    report.rows(_CHANGE, rows)
    report.errors(elected.errors)
    return report.exit_code


async def run_list(options: argparse.Namespace) -> int:
    """List reassignments."""
    report = Report(options)
    async with opened_admin(options) as admin:
        partitions = await partitions_in(admin, report, options.scopes) if options.scopes else None
        # as above: an empty list must not become all partitions
        found = {} if partitions == [] else await admin.replicas.list_reassignments(partitions)
    rows = [
        {**_place(tp), "replicas": each.replicas, "adding": each.adding, "removing": each.removing}
        for tp, each in found.items()
    ]
    report.rows(_MOVING, rows)
    return report.exit_code


async def run_reassign(options: argparse.Namespace) -> int:
    """Begin reassignments."""
    moves = dict(options.moves)
    # a dict keeps the last one; two plans for a partition are a mistake
    if len(moves) < len(options.moves):
        options.usage.error("a partition is given twice")
    report = Report(options)
    async with opened_admin(options) as admin:
        begun = await admin.replicas.alter_reassignments(moves)
    rows = status_rows(moves, begun.errors, "begun", lambda tp: {**_place(tp), "replicas": moves[tp]})
    report.rows(REPLICA_COLUMNS["reassign"], rows)
    report.errors(begun.errors)
    return report.exit_code


async def run_cancel(options: argparse.Namespace) -> int:
    """Cancel reassignments; of a topic without partitions those that are in progress."""
    report = Report(options)
    async with opened_admin(options) as admin:
        # a topic stands for what moves now; for a partition that does not move, the broker has the error
        moving = await admin.replicas.list_reassignments()
        chosen: set[TopicPartition] = set()
        for scope in options.scopes:
            found = scope.chosen(tp.partition for tp in moving if tp.topic == scope.topic)
            if not found:
                report.error(f"topic {scope.topic!r} has no reassignment in progress")
            chosen.update(found)
        partitions = sorted(chosen)
        cancelled = await admin.replicas.cancel_reassignments(partitions)
    report.rows(_CHANGE, status_rows(partitions, cancelled.errors, "cancelled", _place))
    report.errors(cancelled.errors)
    return report.exit_code


async def run_alter_log_dirs(options: argparse.Namespace) -> int:
    """Begin to move replicas to other log directories of their node."""
    paths = dict(options.paths)
    if len(paths) < len(options.paths):
        options.usage.error("a partition is given twice")
    report = Report(options)
    async with opened_admin(options) as admin:
        begun = await admin.replicas.alter_log_dirs(options.node, paths)
    rows = status_rows(paths, begun.errors, "begun", lambda tp: {**_place(tp), "path": paths[tp]})
    report.rows(REPLICA_COLUMNS["alter-log-dirs"], rows)
    report.errors(begun.errors)
    return report.exit_code
