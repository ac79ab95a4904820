"""Offsets as CSV, as `kafka-consumer-groups --export` writes and `--from-file` reads them.

Rows are `topic,partition,offset`, or `group,topic,partition,offset` for several groups; there is no line of headings. The first
row decides (`OffsetsUtils.parseResetPlan` in Kafka).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Final

from asyncgroup.checks import check_offset, check_topic
from asyncgroup.errors import ConfigError
from asyncgroup.topic_partition import TopicPartition

__all__ = ["offsets_to_csv", "parse_offsets_csv"]

_RULE: Final = "rows of topic,partition,offset or of group,topic,partition,offset"
_INT32_MAX: Final = 0x7FFFFFFF

_ALWAYS_QUOTED: Final = 24
"""Characters from which on Jackson, which Kafka writes CSV with, quotes a value without looking at it."""
_FIRST_SAFE: Final = "-"
"""The first character that it does not quote: those up to the comma it does."""


def parse_offsets_csv(text: str, group_id: str) -> dict[TopicPartition, int]:
    """Return the offsets of the group; rows of other groups are left out, those without a group are of this one.

    Raises ConfigError, with the number of the row, for rows of another form, for two different offsets of a partition, and if
    there is no row of this group.
    """
    found: dict[TopicPartition, int] = {}
    columns: int | None = None
    try:
        lines = io.StringIO(
            text.removeprefix("\ufeff"), newline=""
        )  # a byte order mark, as spreadsheets write it
        rows = [row for row in csv.reader(lines, strict=True) if row]
    except csv.Error as error:
        raise ConfigError("CSV", str(error), _RULE) from None
    for number, row in enumerate(rows, 1):
        columns = columns or len(row)
        if len(row) != columns or columns not in (3, 4):
            raise ConfigError(f"row {number} of the CSV", ",".join(row), _RULE)
        if columns == 4 and row[0] != group_id:
            continue
        tp, offset = _parsed(number, row[-3:])
        if found.setdefault(tp, offset) != offset:
            raise ConfigError(f"row {number} of the CSV", ",".join(row), f"one offset for {tp}")
    if not found:
        raise ConfigError("CSV", f"{len(rows)} rows", f"at least one row of group {group_id!r}")
    return found


def _parsed(number: int, row: list[str]) -> tuple[TopicPartition, int]:
    topic, partition, offset = (value.strip() for value in row)
    if not _is_number(partition) or int(partition) > _INT32_MAX or not _is_number(offset):
        raise ConfigError(f"row {number} of the CSV", ",".join(row), _RULE)
    try:
        return TopicPartition(check_topic(topic), int(partition)), check_offset(int(offset))
    except ConfigError as error:
        raise ConfigError(f"row {number} of the CSV: {error.key}", error.value, error.allowed) from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19


def offsets_to_csv(groups: Mapping[str, Mapping[TopicPartition, int]]) -> str:
    """Return a row for each partition: with the group's id if there are several groups, as Kafka does."""
    with_group = len(groups) > 1
    return "".join(
        _row([*([group_id] if with_group else []), tp.topic, str(tp.partition), str(offset)])
        for group_id, offsets in groups.items()
        for tp, offset in sorted(offsets.items())
    )


def _row(values: Iterable[str]) -> str:
    return ",".join(map(_quoted, values)) + "\n"


def _quoted(value: str) -> str:
    if len(value) <= _ALWAYS_QUOTED and all(character >= _FIRST_SAFE for character in value):
        return value
    return '"' + value.replace('"', '""') + '"'
