"""`asyncgroup groups reset`: print the plan of a reset, and commit it with --execute; CSV as Kafka's own tool writes and reads it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.cli.administration import (
    STATUS_COLUMNS,
    Report,
    add_action,
    opened_admin,
    status_rows,
)
from asyncgroup.cli.common import group_id
from asyncgroup.cli.instants import parse_duration, parse_time
from asyncgroup.cli.tables import Column, Row
from asyncgroup.cli.topic_arguments import parse_scope, whole_64
from asyncgroup.errors import ConfigError

if TYPE_CHECKING:
    from asyncgroup.admin import ResetPlan
    from asyncgroup.cli.common import Commands
    from asyncgroup.topic_partition import TopicPartition

__all__ = ["RESET_COLUMNS", "add_reset"]

RESET_COLUMNS: Final = (
    Column("group", is_name=True, can_shrink=True),
    Column("topic", is_name=True, can_shrink=True),
    Column("partition", is_number=True, is_name=True),
    Column("old_offset", is_number=True),
    Column("new_offset", is_number=True),
    Column("log_start", "LOG-START-OFFSET", is_number=True, is_wide=True),
    Column("log_end", "LOG-END-OFFSET", is_number=True, is_wide=True),
    Column("adjusted", is_wide=True),
    Column("acked_above", is_number=True, is_wide=True),
    *STATUS_COLUMNS,
)
"""`adjusted` says why an offset is not the one that was asked for; `acked_above` are the records of an ack window that is cleared."""

_MAX_CSV: Final = 64 * 1024 * 1024
"""Bytes of a file for --from-file: far more than any group has partitions."""


def add_reset(actions: Commands, common: argparse.ArgumentParser) -> None:
    """Add the action `reset`."""
    parser = add_action(
        actions,
        common,
        "reset",
        run_reset,
        "Reset the committed offsets of a group without members. Prints the plan; nothing is changed without --execute. "
        "Offsets outside of the log are moved into it. The metadata of the commits is cleared, with the ack windows of work queues.",
        has_wide=True,
    )
    parser.add_argument("group", type=group_id, metavar="GROUP", help="a group without members")
    target = parser.add_mutually_exclusive_group(required=True)
    for word, text in (
        ("earliest", "to the start of each log"),
        ("latest", "to the end of each log"),
        ("current", "to the committed offset itself, for --export; without a commit to the end of the log"),
    ):
        target.add_argument(f"--to-{word}", dest="target", action="store_const", const=word, help=text)
    target.add_argument("--to-offset", dest="target", type=whole_64, metavar="N", help="to this offset")
    target.add_argument(
        "--shift-by", type=_shift, metavar="N", help="N offsets forwards, or backwards if N is negative"
    )
    target.add_argument(
        "--to-datetime",
        dest="target",
        type=parse_time,
        metavar="TIME",
        help="to the first record at or after a time with its zone, such as 2026-11-27T10:00Z or +01:00",
    )
    target.add_argument(
        "--by-duration",
        dest="target",
        type=parse_duration,
        metavar="DURATION",
        help="to the first record that is not older than 90s, 30m, 24h, 7d or PT24H",
    )
    target.add_argument(
        "--from-file", type=Path, metavar="FILE", help="to the offsets of a CSV file, as --export writes it"
    )
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "--all-topics", action="store_true", help="all partitions that the group has commits of"
    )
    scope.add_argument(
        "--topic",
        dest="scopes",
        type=parse_scope,
        action="append",
        default=[],
        metavar="TOPIC[:PARTITIONS]",
        help="all partitions of a topic, or some; can be repeated",
    )
    run = parser.add_mutually_exclusive_group()
    run.add_argument("--execute", action="store_true", help="commit the plan")
    run.add_argument("--dry-run", action="store_true", help="only print the plan: the default")
    run.add_argument("--export", action="store_true", help="print the plan as CSV: topic,partition,offset")


def _shift(text: str) -> int:
    digits = text.removeprefix("-").removeprefix("+")
    # both signs would be removed from `-+5`
    if len(text) - len(digits) > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as -10")
    number = whole_64(digits)
    return -number if text.startswith("-") else number


async def run_reset(options: argparse.Namespace) -> int:
    """Print the plan of a reset, and commit it with --execute."""
    # here and not above: --help and usage errors start without the client
    from asyncgroup.admin import ResetRefused

    _check(options)
    target = _target(options)
    report = Report(options)
    # all partitions of a topic are looked up with the plan; of others the arguments name them
    topics = [each.topic for each in options.scopes if each.partitions is None]
    partitions = [tp for each in options.scopes if each.partitions is not None for tp in each.chosen(())]
    async with opened_admin(options) as admin:
        try:
            plan = await admin.plan_reset(
                # None and not an empty list, which would name no partition at all
                options.group,
                target,
                topics=topics or None,
                partitions=partitions or None,
            )
        except ResetRefused as refused:
            # the whole reset is refused, so there is no plan to show
            for name, reason in refused.reasons.items():
                report.error(f"{name}: {reason}")
            report.error(f"the offsets of group {options.group!r} are not reset")
            return report.exit_code
        # by the connections that have looked the offsets up; the plan is printed in any case
        errors = (await admin.reset_offsets(plan)).errors if options.execute else {}
    for warning in plan.warnings:
        report.note(warning)
    _print(options, report, plan, errors)
    return report.exit_code


def _check(options: argparse.Namespace) -> None:
    """Exit with a usage error for options that exclude each other beyond what argparse knows."""
    has_scope = options.all_topics or bool(options.scopes)
    if options.from_file is not None and has_scope:
        options.usage.error("--from-file names the partitions: leave --all-topics and --topic out")
    if options.from_file is None and not has_scope:
        options.usage.error("give --all-topics, or --topic for some topics")
    if options.export and (options.json or options.quiet):
        options.usage.error("--export prints CSV: leave --json and --quiet out")


def _target(options: argparse.Namespace) -> Any:
    """Return the target for `Admin.plan_reset`; exit with a usage error for a file that is not CSV of offsets."""
    from asyncgroup.admin import ShiftBy

    if options.from_file is not None:
        return _offsets_of_file(options)
    return options.target if options.shift_by is None else ShiftBy(options.shift_by)


def _offsets_of_file(options: argparse.Namespace) -> Mapping[TopicPartition, int]:
    from asyncgroup.admin import parse_offsets_csv

    try:
        with options.from_file.open("rb") as file:
            # one byte more than allowed: a pipe has no size to ask for
            data: bytes = file.read(_MAX_CSV + 1)
        if len(data) > _MAX_CSV:
            options.usage.error(f"--from-file {options.from_file}: larger than {_MAX_CSV >> 20} MiB")
        return parse_offsets_csv(data.decode(), options.group)
    except OSError as error:
        options.usage.error(f"--from-file {options.from_file}: {error.strerror or error}")
    except UnicodeDecodeError as error:
        options.usage.error(f"--from-file {options.from_file}: byte {error.start} is not valid UTF-8")
    except ConfigError as error:
        options.usage.error(f"--from-file {options.from_file}: {error}")
    # argparse says nothing about that in its types
    raise AssertionError("a usage error exits")


def _print(
    options: argparse.Namespace, report: Report, plan: ResetPlan, errors: Mapping[TopicPartition, Exception]
) -> None:
    if options.export:
        # nothing else on standard output: it is the input of --from-file
        report.text(plan.to_csv())
        return
    done = "reset" if options.execute else "planned"
    report.rows(RESET_COLUMNS, status_rows(plan.partitions, errors, done, lambda tp: _row(plan, tp)))
    report.errors(errors)
    if not plan.partitions:
        report.note(
            f"group {options.group!r} has no committed offsets; --topic resets topics that it has none of"
        )
    elif not options.execute:
        report.note("this is only the plan, nothing is changed; --execute commits it")


def _row(plan: ResetPlan, tp: TopicPartition) -> Row:
    each = plan.partitions[tp]
    return {
        "group": plan.group_id,
        "topic": tp.topic,
        "partition": tp.partition,
        "old_offset": each.old_offset,
        "new_offset": each.new_offset,
        "log_start": each.log_start,
        "log_end": each.log_end,
        "adjusted": each.adjusted,
        "acked_above": each.acked_above,
    }
