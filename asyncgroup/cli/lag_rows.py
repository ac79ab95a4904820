"""Rows and columns of `asyncgroup groups lag` and its live table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.lag_rates import LagRate, PartitionLagPoint, total_rate
from asyncgroup.cli.tables import ABSENT, Column, Row, shortened, table_lines
from asyncgroup.counting import counted
from asyncgroup.error_types import short_error_type

if TYPE_CHECKING:
    from asyncgroup.admin import GroupLag, PartitionLag
    from asyncgroup.topic_partition import TopicPartition

__all__ = [
    "LAG_COLUMNS",
    "SUMMARY_COLUMNS",
    "WATCH_COLUMNS",
    "LagPlace",
    "frame_lines",
    "lag_notes",
    "lag_points",
    "lag_rows",
    "shown_duration",
    "summary_row",
    "watch_rows",
]

LagPlace = tuple[str, "TopicPartition"]
"""A partition of a group."""


def shown_duration(seconds: float | None) -> str:
    """Return a duration as an operator reads it: `45s`, `12m30s`, `3h20m`, `9d4h`; `-` for none."""
    if seconds is None:
        return ABSENT
    whole = round(seconds)
    for unit, size, lower, lower_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            # two units at most: 3h20m
            rest = whole % size // lower_size
            return f"{whole // size}{unit}{rest}{lower}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


LAG_COLUMNS: Final = (
    Column("group", can_shrink=True, is_name=True),
    Column("topic", can_shrink=True, is_name=True),
    Column("partition", is_number=True, is_name=True),
    Column("leader_epoch", is_number=True, is_wide=True),
    Column("committed_offset", "CURRENT-OFFSET", is_number=True),
    Column("log_start_offset", is_number=True, is_wide=True),
    Column("log_end_offset", is_number=True),
    Column("lag", is_number=True),
    Column("lost", is_number=True, is_wide=True),
    Column("acked_above", is_number=True, is_wide=True),
    Column("open", is_number=True, is_wide=True),
    Column("failed", is_number=True, is_wide=True),
    Column("member_id", "CONSUMER-ID", can_shrink=True),
    Column("host", can_shrink=True),
    Column("client_id", can_shrink=True),
    Column("error", is_wide=True, can_shrink=True),
)
"""Headings as `kafka-consumer-groups --describe`. `acked_above`, `open` and `failed` are those of a work queue's ack window."""

SUMMARY_COLUMNS: Final = (
    Column("group", can_shrink=True, is_name=True),
    Column("type"),
    Column("state"),
    Column("members", "#MEMBERS", is_number=True),
    Column("partitions", "#PARTITIONS", is_number=True),
    Column("lag", is_number=True),
    Column("lag_max", is_number=True),
    Column("lost", is_number=True),
    Column("without_commit", is_number=True),
)

WATCH_COLUMNS: Final = (
    Column("group", can_shrink=True, is_name=True),
    Column("topic", can_shrink=True, is_name=True),
    Column("partition", is_number=True, is_name=True),
    Column("committed_offset", "CURRENT-OFFSET", is_number=True),
    Column("log_end_offset", is_number=True),
    Column("lag", is_number=True),
    Column("consumed_rate", "CONSUMED/S", is_number=True),
    Column("produced_rate", "PRODUCED/S", is_number=True),
    Column("catch_up", is_number=True, text=shown_duration),
    Column("client_id", can_shrink=True),
)
"""The first row of a group is its sum, without topic and partition."""


# --- one table --------------------------------------------------------------------------------------------------------


def lag_rows(found: GroupLag) -> Iterator[Row]:
    """Yield the row of each partition of a group."""
    for tp, each in found.partitions.items():
        window = each.window
        yield {
            "group": found.group.group_id,
            "topic": tp.topic,
            "partition": tp.partition,
            "leader_epoch": each.leader_epoch,
            "committed_offset": each.committed_offset,
            "log_start_offset": each.log_start,
            "log_end_offset": each.log_end,
            "lag": each.lag,
            "lost": each.lost,
            "acked_above": None if window is None else window.acked_above,
            "open": None if window is None else window.open,
            "failed": None if window is None else window.failed,
            "member_id": each.member_id,
            "host": each.host,
            "client_id": each.client_id,
            "error": None if each.error is None else short_error_type(each.error),
        }


def lag_notes(found: GroupLag) -> Iterator[str]:
    """Yield a sentence for each partition whose lag needs an explanation."""
    for tp, each in found.partitions.items():
        place = f"group {found.group.group_id!r}, {tp}"
        if each.lost:
            yield f"{place}: {counted(each.lost, 'record')} lost: the log deleted them before the group had read them"
        if each.is_beyond_log_end:
            yield f"{place}: the commit {each.committed_offset} is after the log's end {each.log_end}"
        if each.is_of_deleted_topic:
            yield f"{place}: the commit is of a deleted topic with this name"


def summary_row(found: GroupLag) -> Row:
    """Return the row of a group."""
    return {
        "group": found.group.group_id,
        "type": found.group.group_type,
        "state": found.group.state,
        "members": len(found.group.members),
        "partitions": len(found.partitions),
        "lag": found.lag_sum,
        "lag_max": found.lag_max,
        "lost": found.lost_sum,
        "without_commit": len(found.without_commit),
    }


# --- the live table ---------------------------------------------------------------------------------------------------


def lag_points(groups: Sequence[GroupLag]) -> dict[LagPlace, PartitionLagPoint]:
    """Return the lags that are known."""
    return {
        (found.group.group_id, tp): PartitionLagPoint(each.log_end, each.lag)
        for found in groups
        for tp, each in found.partitions.items()
        if each.log_end is not None and each.lag is not None
    }


def watch_rows(groups: Sequence[GroupLag], rates: Mapping[LagPlace, LagRate]) -> Iterator[Row]:
    """Yield for each group its sum, and its partitions with the largest lag first."""
    for found in groups:
        name = found.group.group_id
        # a partition without a rate, as in the first frame, is left out of the sum
        known = [rates[name, tp] for tp in found.partitions if (name, tp) in rates]
        yield {
            "group": name,
            "topic": None,
            "partition": None,
            "committed_offset": None,
            "log_end_offset": None,
            "lag": found.lag_sum,
            **_rate_cells(total_rate(known)),
            "client_id": None,
        }
        # by lag, and then by name, so that rows keep their places between frames
        for tp, each in sorted(found.partitions.items(), key=lambda item: (-(item[1].lag or 0), item[0])):
            yield _watch_row(name, tp, each, rates.get((name, tp)))


def _watch_row(group: str, tp: TopicPartition, each: PartitionLag, rate: LagRate | None) -> Row:
    return {
        "group": group,
        "topic": tp.topic,
        "partition": tp.partition,
        "committed_offset": each.committed_offset,
        "log_end_offset": each.log_end,
        "lag": each.lag,
        **_rate_cells(rate),
        "client_id": each.client_id,
    }


def _rate_cells(rate: LagRate | None) -> Row:
    if rate is None:
        # all columns, so that JSON has the same keys in each row
        return dict.fromkeys(("consumed_rate", "produced_rate", "catch_up"))
    catch_up = rate.catch_up
    return {
        "consumed_rate": round(rate.consumed, 3),
        "produced_rate": round(rate.produced, 3),
        "catch_up": None if catch_up is None else round(catch_up, 3),
    }


def frame_lines(
    title: str, rows: Sequence[Row], problems: Sequence[str], columns: int, lines: int
) -> list[str]:
    """Return the lines of a terminal's screen: title, problems, table; rows that do not fit are counted."""
    head = [title, *problems]
    table = table_lines(WATCH_COLUMNS, rows, width=columns) if rows else []
    room = max(lines - len(head) - 1, 2)  # the cursor has the last line
    if len(table) > room:
        # one line of the room says how many there are
        more = len(table) - (room - 1)
        table = [*table[: room - 1], f"{counted(more, 'more row')}"]
    return [shortened(line, columns) for line in [*head, *table]]
