"""`asyncgroup groups lag`: the lag of groups, once or as a live table with rates and the time to catch up."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.administration import Report, add_action, node_problems, opened_admin
from asyncgroup.cli.advice import with_advice
from asyncgroup.cli.common import group_id, positive, seconds
from asyncgroup.cli.group_names import chosen_groups
from asyncgroup.cli.lag_rates import LagRates
from asyncgroup.cli.lag_rows import (
    LAG_COLUMNS,
    SUMMARY_COLUMNS,
    WATCH_COLUMNS,
    LagPlace,
    frame_lines,
    lag_notes,
    lag_points,
    lag_rows,
    summary_row,
    watch_rows,
)
from asyncgroup.cli.printing import is_terminal
from asyncgroup.cli.tables import Row
from asyncgroup.errors import AsyncGroupError

if TYPE_CHECKING:
    from asyncgroup.admin import Admin, GroupLag
    from asyncgroup.cli.common import Commands

__all__ = ["ISOLATION_LEVELS", "add_isolation_level", "add_lag"]

ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
INTERVAL: Final = 2.0
"""Seconds between two updates of the live table."""

_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"


def add_isolation_level(parser: argparse.ArgumentParser) -> None:
    """Add --isolation-level."""
    parser.add_argument(
        "--isolation-level",
        choices=ISOLATION_LEVELS,
        default=ISOLATION_LEVELS[0],
        help="where a log ends: read_committed ends it at the last stable offset (default: %(default)s)",
    )


def add_lag(actions: Commands, common: argparse.ArgumentParser) -> None:
    """Add the action `lag`."""
    parser = add_action(
        actions,
        common,
        "lag",
        run_lag,
        "Show the committed offsets, log ends and lag of groups. Offsets are counted, as by kafka-consumer-groups; of a work "
        "queue's commit only records that are not acknowledged.",
        has_wide=True,
    )
    parser.add_argument("groups", nargs="*", type=group_id, metavar="GROUP", help="default: all groups")
    add_isolation_level(parser)
    parser.add_argument("--summary", action="store_true", help="a row for each group")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="repeat it, with rates over the last minute and the time until the lag is 0; on a terminal as a live table",
    )
    parser.add_argument(
        "--interval",
        type=seconds,
        default=INTERVAL,
        metavar="S",
        help=f"with --watch: seconds between two updates (default: {INTERVAL:g})",
    )
    parser.add_argument("--count", type=positive, metavar="N", help="with --watch: stop after N updates")


async def run_lag(options: argparse.Namespace) -> int:
    """Show the lag of groups."""
    if options.summary and options.watch:
        options.usage.error("--watch shows a sum for each group: leave --summary out")
    if options.count is not None and not options.watch:
        options.usage.error("--count is for --watch")
    report = Report(options)
    async with opened_admin(options) as admin:
        if options.watch:
            return await _watch(options, report, admin)
        names = await chosen_groups(admin, options.groups, report.node_errors)
        found = await admin.lag(names, isolation_level=options.isolation_level)
    groups = [found.values_by_name[name] for name in names if name in found.values_by_name]
    if options.summary:
        report.rows(SUMMARY_COLUMNS, map(summary_row, groups))
    else:
        report.rows(LAG_COLUMNS, [row for group in groups for row in lag_rows(group)])
    for group in groups:
        for note in lag_notes(group):
            report.note(note)
        report.errors(group.errors)
    report.errors(found.errors)
    return report.exit_code


# --- watch ------------------------------------------------------------------------------------------------------------


async def _watch(options: argparse.Namespace, report: Report, admin: Admin) -> int:
    """Show the lag again and again. A round that fails shows its error, and the next one follows."""
    loop = asyncio.get_running_loop()
    rates = LagRates[LagPlace]()
    on_screen = is_terminal() and not (options.json or options.quiet)
    next_at, number, code = loop.time(), 0, 0
    while True:
        groups, problems = await _round(options, admin)
        rows = list(watch_rows(groups, rates.add(loop.time(), lag_points(groups))))
        if on_screen:
            _draw(options, rows, problems, is_first=number == 0)
        else:
            if number and rows and not (options.json or options.quiet):
                report.text("\n")
            report.rows(WATCH_COLUMNS, rows)
            for problem in problems:
                report.error(problem)
        number, code = number + 1, 1 if problems else 0
        if number == options.count:
            return code
        next_at = max(next_at + options.interval, loop.time())
        await asyncio.sleep(next_at - loop.time())


async def _round(options: argparse.Namespace, admin: Admin) -> tuple[list[GroupLag], list[str]]:
    """Return the lag of the groups now, and the texts of the errors."""
    problems: list[str] = []
    try:
        names = await chosen_groups(
            admin, options.groups, lambda errors: problems.extend(node_problems(errors))
        )
        found = await admin.lag(names, isolation_level=options.isolation_level)
    except AsyncGroupError as error:
        return [], [*problems, with_advice(error)]
    groups = [found.values_by_name[name] for name in names if name in found.values_by_name]
    errors = [*found.errors.values(), *(error for group in groups for error in group.errors.values())]
    return groups, [*problems, *dict.fromkeys(map(with_advice, errors))]


def _draw(
    options: argparse.Namespace, rows: Sequence[Row], problems: Sequence[str], *, is_first: bool
) -> None:
    """Draw the screen over the one before, so that it does not flicker."""
    columns, lines = shutil.get_terminal_size()
    title = f"{', '.join(options.groups) or 'all groups'}, every {options.interval:g} s; Ctrl-C ends"
    shown = frame_lines(title, rows, problems, columns, lines)
    begin = f"{_HOME}{_CLEAR_BELOW}" if is_first else _HOME
    sys.stdout.write(begin + "".join(f"{line}{_CLEAR_LINE}\n" for line in shown) + _CLEAR_BELOW)
    sys.stdout.flush()
