"""`asyncgroup health URL | GROUP`: ask the probes of a process, or judge a group by its state and lag; exit 0 if it is healthy."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult

from asyncgroup.checks import check_group_id
from asyncgroup.cli.administration import Report, add_action, opened_admin
from asyncgroup.cli.common import argument, whole
from asyncgroup.cli.http_get import http_get, parse_url
from asyncgroup.cli.lag_rows import summary_row
from asyncgroup.cli.tables import Column, Row
from asyncgroup.errors import UsageError
from asyncgroup.escaping import printable

if TYPE_CHECKING:
    from asyncgroup.admin import GroupLag
    from asyncgroup.cli.common import Commands

__all__ = ["COLUMNS", "add_parser"]

PROBES: Final = ("live", "ready")
PROBE_TIMEOUT: Final = 5.0
"""Seconds that a probe may take: more than a kubelet gives it, less than an operator waits."""
MAX_REASON: Final = 200
"""Characters of an answer that are shown."""

_PROBE_COLUMNS: Final = (
    Column("probe", is_name=True),
    Column("healthy"),
    Column("http_status", is_number=True),
    Column("reasons", can_shrink=True),
)
_GROUP_COLUMNS: Final = (
    Column("group", is_name=True, can_shrink=True),
    Column("healthy"),
    Column("state"),
    Column("members", "#MEMBERS", is_number=True),
    Column("partitions", "#PARTITIONS", is_number=True),
    Column("lag", is_number=True),
    Column("lag_max", is_number=True),
    Column("lost", is_number=True),
    Column("reasons", can_shrink=True),
)
COLUMNS: Final = {"URL": _PROBE_COLUMNS, "GROUP": _GROUP_COLUMNS}
"""The columns for each kind of argument."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `health`."""
    parser = add_action(
        commands,
        common,
        "health",
        run,
        "Check whether a process or a group is healthy. For a URL asks /live and /ready of serve_probes. A group is healthy if "
        "it has members, the lag of all its partitions is known, and with --max-lag no partition has more. Exits with 0 if healthy, "
        "else 1.",
    )
    parser.add_argument(
        "subject",
        type=argument(_subject),
        metavar="URL|GROUP",
        help="http://127.0.0.1:8080, or the id of a group",
    )
    parser.add_argument(
        "--max-lag",
        type=whole,
        metavar="N",
        help="of a group: the largest lag of a partition that is healthy",
    )


def _subject(text: str) -> SplitResult | str:
    return parse_url(text) if "://" in text else check_group_id(text)


async def run(options: argparse.Namespace) -> int:
    """Check a process or a group."""
    if isinstance(options.subject, str):
        return await _check_group(options)
    if options.max_lag is not None:
        options.usage.error("--max-lag is for a group")
    return await _check_process(options)


# --- a process --------------------------------------------------------------------------------------------------------


async def _check_process(options: argparse.Namespace) -> int:
    report = Report(options)
    timeout = min(options.timeout, PROBE_TIMEOUT)
    rows = await asyncio.gather(*(_probe(options.subject, name, timeout) for name in PROBES))
    report.rows(_PROBE_COLUMNS, rows)
    return 0 if all(row["healthy"] for row in rows) else 1


async def _probe(url: SplitResult, name: str, timeout: float) -> Row:
    try:
        answer = await http_get(url, f"/{name}", timeout)
    except UsageError as error:
        return {"probe": name, "healthy": False, "http_status": None, "reasons": [str(error)]}
    healthy = answer.status == 200
    reasons = [] if healthy else _reasons(answer.body)
    return {"probe": name, "healthy": healthy, "http_status": answer.status, "reasons": reasons}


def _reasons(body: str) -> list[str]:
    """Return the reasons in the JSON of `serve_probes`; of another server the first line."""
    try:
        found: Any = json.loads(body)
    except ValueError:
        found = None
    if isinstance(found, Mapping) and isinstance(found.get("reasons"), list):
        return [printable(str(each), MAX_REASON) for each in found["reasons"]]
    first = body.strip().splitlines()[:1]
    return [printable(line, MAX_REASON) for line in first]


# --- a group ----------------------------------------------------------------------------------------------------------


async def _check_group(options: argparse.Namespace) -> int:
    report = Report(options)
    async with opened_admin(options) as admin:
        found = (await admin.lag([options.subject])).raise_first()[options.subject]
    reasons = _group_reasons(found, options.max_lag)
    row = {**summary_row(found), "healthy": not reasons, "reasons": reasons}
    report.rows(_GROUP_COLUMNS, [row])
    return 1 if reasons else 0


def _group_reasons(found: GroupLag, max_lag: int | None) -> list[str]:
    """Return why a group is not healthy; a rebalance is no reason, as it ends by itself."""
    reasons = [] if found.group.members else [f"no members, state {found.group.state}"]
    reasons += [str(error) for error in found.errors.values()]
    if max_lag is not None and found.lag_max > max_lag:
        reasons.append(f"a partition has a lag of {found.lag_max}, more than {max_lag}")
    return reasons
