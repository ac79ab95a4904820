"""`asyncgroup groups`: list, describe and delete groups, remove members."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.administration import (
    STATUS_COLUMNS,
    Report,
    add_action,
    add_subject,
    comma_separated,
    connected,
    opened_admin,
    status_rows,
)
from asyncgroup.cli.common import argument, group_id
from asyncgroup.cli.group_lag import add_lag
from asyncgroup.cli.group_names import chosen_groups
from asyncgroup.cli.group_reset import RESET_COLUMNS, add_reset
from asyncgroup.cli.group_rows import (
    DESCRIBE_COLUMNS,
    LIST_COLUMNS,
    MEMBER_COLUMNS,
    description_row,
    listing_row,
    member_row,
)
from asyncgroup.cli.lag_rows import LAG_COLUMNS, SUMMARY_COLUMNS, WATCH_COLUMNS
from asyncgroup.cli.tables import Column
from asyncgroup.errors import AsyncGroupError

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands
    from asyncgroup.cluster import Cluster

__all__ = ["COLUMNS", "add_parser"]

_DELETED: Final = (Column("group", is_name=True), *STATUS_COLUMNS)
_REMOVED: Final = (
    Column("group", is_name=True, can_shrink=True),
    Column("member_id", "CONSUMER-ID", is_name=True, can_shrink=True),
    Column("group_instance_id", is_name=True, can_shrink=True),
    *STATUS_COLUMNS,
)
COLUMNS: Final = {
    "list": LIST_COLUMNS,
    "describe": DESCRIBE_COLUMNS,
    "describe --members": MEMBER_COLUMNS,
    "lag": LAG_COLUMNS,
    "lag --summary": SUMMARY_COLUMNS,
    "lag --watch": WATCH_COLUMNS,
    "reset": RESET_COLUMNS,
    "remove-members": _REMOVED,
    "delete": _DELETED,
}
"""The columns of each action."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `groups` with its actions."""
    actions = add_subject(
        commands,
        "groups",
        "list, describe and delete groups: their members, lag and resets",
        "Lists, describes and deletes groups, shows their lag, resets their offsets, and removes members.",
    )
    parser = add_action(actions, common, "list", run_list, "List the groups of all brokers.")
    parser.add_argument(
        "--state",
        type=argument(_states),
        action="extend",
        default=[],
        metavar="A,B",
        help="only groups in these states, by Kafka's names such as Stable or Empty (needs Kafka 2.6)",
    )
    parser.add_argument(
        "--type",
        dest="types",
        type=argument(_types),
        action="extend",
        default=[],
        metavar="A,B",
        help="only groups of these types: classic, consumer, share, streams (needs Kafka 3.8)",
    )
    parser = add_action(
        actions,
        common,
        "describe",
        run_describe,
        "Describe the state of groups, or their members. Classic and consumer groups only.",
        has_wide=True,
    )
    parser.add_argument("groups", nargs="*", type=group_id, metavar="GROUP", help="default: all groups")
    parser.add_argument(
        "--members", action="store_true", help="a row for each member; --wide shows their partitions"
    )
    add_lag(actions, common)
    add_reset(actions, common)
    _add_remove_members(actions, common)
    parser = add_action(actions, common, "delete", run_delete, "Delete groups with their committed offsets.")
    parser.add_argument("groups", nargs="+", type=group_id, metavar="GROUP", help="groups without members")


def _add_remove_members(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = add_action(
        actions,
        common,
        "remove-members",
        run_remove_members,
        "Remove members from a group. A member that still runs joins again: stop it before.",
    )
    parser.add_argument("group", type=group_id, metavar="GROUP", help="the group")
    parser.add_argument(
        "--member", action="append", default=[], metavar="ID", help="a member id; can be repeated"
    )
    parser.add_argument(
        "--instance",
        action="append",
        default=[],
        metavar="ID",
        help="the instance id of a static member (KIP-345); can be repeated",
    )
    parser.add_argument("--all", action="store_true", help="all members")
    parser.add_argument("--reason", default="", help="a text for the coordinator's log (KIP-800)")


def _states(text: str) -> list[str]:
    # imported when the option is given: other commands start without the client
    from asyncgroup.admin.groups import checked_states

    return checked_states(comma_separated(text))


def _types(text: str) -> list[str]:
    from asyncgroup.admin.groups import checked_types

    return checked_types(comma_separated(text))


async def run_list(options: argparse.Namespace) -> int:
    """List the groups of all nodes that answer."""
    report = Report(options)
    async with opened_admin(options) as admin:
        listed = await admin.list_groups(states=options.state, types=options.types)
    report.rows(LIST_COLUMNS, map(listing_row, listed.groups))
    # a node that does not answer hides its groups only; the exit code says that some may be missing
    report.node_errors(listed.errors)
    return report.exit_code


async def run_describe(options: argparse.Namespace) -> int:
    """Describe groups or their members."""
    report = Report(options)
    async with connected(options) as (cluster, admin):
        # without names all groups of the classic and the consumer protocol
        names = await chosen_groups(admin, options.groups, report.node_errors)
        described = await admin.describe_groups(names)
        found = described.values_by_name
        # in the order of the arguments, as the rows of all commands
        groups = [found[name] for name in names if name in found]
        # known since the description, unless a node failed in between
        coordinators = {} if options.members else {name: await _coordinator(cluster, name) for name in found}
    if options.members:
        report.rows(
            MEMBER_COLUMNS, [member_row(group, member) for group in groups for member in group.members]
        )
    else:
        report.rows(
            DESCRIBE_COLUMNS, [description_row(group, coordinators[group.group_id]) for group in groups]
        )
    report.errors(described.errors)
    return report.exit_code


async def _coordinator(cluster: Cluster, group: str) -> int | None:
    try:
        return await cluster.coordinators.find(group)
    # the group was described, so its row is shown, without the column
    except AsyncGroupError:
        return None


async def run_remove_members(options: argparse.Namespace) -> int:
    """Remove members from a group."""
    from asyncgroup.admin import MemberToRemove

    # argparse cannot exclude one option by two that go together
    if bool(options.all) == bool(options.member or options.instance):
        options.usage.error("give either --member and --instance, or --all")
    named = [MemberToRemove(member_id=each) for each in options.member]
    named += [MemberToRemove(group_instance_id=each) for each in options.instance]
    report = Report(options)
    async with opened_admin(options) as admin:
        removed = await admin.remove_members(
            # `all` is looked up by Admin in the same call: members that join later stay
            options.group,
            "all" if options.all else named,
            reason=options.reason,
        )
    rows = status_rows(
        removed,
        removed.errors,
        "removed",
        lambda each: {
            "group": options.group,
            "member_id": each.member_id or None,
            "group_instance_id": each.group_instance_id,
        },
    )
    report.rows(_REMOVED, rows)
    report.errors(removed.errors)
    return report.exit_code


async def run_delete(options: argparse.Namespace) -> int:
    """Delete groups."""
    report = Report(options)
    # a group that is given twice is asked for once, and has one row
    names = list(dict.fromkeys(options.groups))
    async with opened_admin(options) as admin:
        deleted = await admin.delete_groups(names)
    report.rows(_DELETED, status_rows(names, deleted.errors, "deleted", lambda name: {"group": name}))
    report.errors(deleted.errors)
    return report.exit_code
