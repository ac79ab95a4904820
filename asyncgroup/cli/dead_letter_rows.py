"""Dead letters as rows of a table, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from asyncgroup.cli.printing import as_json, json_text
from asyncgroup.cli.tables import ABSENT, shown_time
from asyncgroup.counting import counted
from asyncgroup.escaping import printable
from asyncgroup.model import Record
from asyncgroup.workqueue.copies import (
    DLQ_DELIVERY_COUNT,
    DLQ_GROUP,
    DLQ_MESSAGE,
    DLQ_TOPIC,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    earlier_attempts,
    origin,
)

__all__ = [
    "MAX_REASON",
    "DeadLetterCauses",
    "DeadLetterFields",
    "DeadLetterRow",
    "causes_of",
    "full_dict",
    "full_text",
]

MAX_KEY: Final = 32
"""Characters of a key in the table."""
MAX_NAME: Final = 80
"""Characters of an origin and of a group in the table."""
MAX_REASON: Final = 100
"""Characters of a reason in the table and the summary."""


class DeadLetterFields:
    """The fields of a dead letter that do not depend on where it is stored; None for one that is not known."""

    __slots__ = ()

    timestamp: int
    """In ms since 1970, -1 for none; a copy on Kafka has that of the original."""
    origin_topic: str | None
    group: str | None
    deliveries: int | None
    reason: str | None
    key: bytes | None

    @property
    def place(self) -> str:
        """Where it is in its topic, as an argument of `show` and `replay`."""
        raise NotImplementedError

    @property
    def origin(self) -> str:
        """The place of the original; the topic only, or `-`, if no more is known."""
        raise NotImplementedError

    def named(self, topic: str) -> str:
        """Return the place with the topic."""
        raise NotImplementedError

    def place_fields(self) -> dict[str, Any]:
        """Return the place for JSON."""
        raise NotImplementedError

    def origin_fields(self) -> dict[str, Any]:
        """Return the place of the original in its topic for JSON."""
        raise NotImplementedError

    def cells(self) -> list[str]:
        """Return the columns of the table."""
        return [
            self.place,
            shown_time(self.timestamp),
            printable(self.origin, MAX_NAME),
            printable(self.group or ABSENT, MAX_NAME),
            ABSENT if self.deliveries is None else str(self.deliveries),
            ABSENT if self.key is None else printable(self.key.decode(errors="backslashreplace"), MAX_KEY),
            printable(self.reason or ABSENT, MAX_REASON),
        ]

    def details(self) -> str:
        """Return the fields besides record and reason that are known, for terminals that are too narrow for columns."""
        parts = []
        if self.origin_topic is not None:
            parts.append(printable(self.origin, MAX_NAME))
        if self.group is not None:
            parts.append(f"group {printable(self.group, MAX_NAME)}")
        if self.deliveries is not None:
            parts.append(counted(self.deliveries, "delivery", "deliveries"))
        if self.key is not None:
            parts.append(f"key {printable(self.key.decode(errors='backslashreplace'), MAX_KEY)}")
        if (time := shown_time(self.timestamp)) != ABSENT:
            parts.append(time)
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON; the key is a string, or {"base64": …} if it is not UTF-8."""
        return {
            **self.place_fields(),
            "timestamp": self.timestamp,
            **self.cause_fields(),
            "key": json_text(self.key),
        }

    def cause_fields(self) -> dict[str, Any]:
        """Return what its headers say, for JSON."""
        return {
            "time": shown_time(self.timestamp),
            "origin_topic": self.origin_topic,
            **self.origin_fields(),
            "group": self.group,
            "deliveries": self.deliveries,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class DeadLetterRow(DeadLetterFields):
    """A dead letter on Kafka with the fields of its headers; None for a field that they do not contain."""

    partition: int
    offset: int
    timestamp: int
    origin_topic: str | None
    origin_partition: int | None
    origin_offset: int | None
    group: str | None
    deliveries: int | None
    reason: str | None
    key: bytes | None

    @classmethod
    def of(cls, record: Record) -> DeadLetterRow:
        """Read the headers of KIP-1191 and Pulsar's properties; invalid ones count as missing."""
        found = origin(record)
        causes = causes_of(record)
        return cls(
            record.partition,
            record.first_offset,
            record.timestamp,
            # Pulsar's own clients write message ids of another form, but also the topic
            (causes.topic if found is None else found.topic) or None,
            None if found is None else found.partition,
            None if found is None else found.offset,
            causes.group,
            causes.deliveries,
            causes.reason,
            record.key,
        )

    @property
    def place(self) -> str:
        """`PARTITION@OFFSET`, as the arguments of `show` and `replay`."""
        return f"{self.partition}@{self.offset}"

    @property
    def origin(self) -> str:
        """`topic-partition@offset` of the original; the topic only, or `-`, if no more is known."""
        if self.origin_topic is None:
            return ABSENT
        if self.origin_partition is None:
            return self.origin_topic
        return f"{self.origin_topic}-{self.origin_partition}@{self.origin_offset}"

    def named(self, topic: str) -> str:
        """Return `topic-partition@offset`."""
        return f"{topic}-{self.place}"

    def place_fields(self) -> dict[str, Any]:
        """Return partition and offset for JSON."""
        return {"partition": self.partition, "offset": self.offset}

    def origin_fields(self) -> dict[str, Any]:
        """Return partition and offset of the original for JSON."""
        return {"origin_partition": self.origin_partition, "origin_offset": self.origin_offset}


class DeadLetterCauses(NamedTuple):
    """What the headers of a dead letter say about its failure."""

    topic: str | None
    """The topic of the original."""
    group: str | None
    deliveries: int | None
    reason: str | None


def causes_of(record: Record) -> DeadLetterCauses:
    """Return what the headers of KIP-1191 and Pulsar's properties say; invalid ones count as missing."""
    headers = dict(record.headers)  # of several with one name the last one counts, as in Kafka
    group, real = _text(headers.get(DLQ_GROUP)), _text(headers.get(REAL_SUBSCRIPTION))
    return DeadLetterCauses(
        _text(headers.get(REAL_TOPIC)) or _text(headers.get(DLQ_TOPIC)) or None,
        group or real or None,
        _deliveries(headers.get(DLQ_DELIVERY_COUNT)) or earlier_attempts(record) or None,
        _text(headers.get(DLQ_MESSAGE)) or None,
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _deliveries(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 10 else None


# --- output of `show` -------------------------------------------------------------------------------------------------


def full_dict(record: Record, row: DeadLetterFields) -> dict[str, Any]:
    """Return a record with all headers and its value, and the dead letter fields of the headers, for JSON."""
    fields: dict[str, Any] = json.loads(as_json(record))
    return {**fields, "dead_letter": row.cause_fields()}


def full_text(record: Record, topic: str, row: DeadLetterFields) -> str:
    """Return a record with all headers and its value as lines, without control characters."""
    lines = [
        row.named(topic),
        f"  time        {shown_time(record.timestamp)}",
        f"  origin      {printable(row.origin)}",
        f"  group       {printable(row.group or ABSENT)}",
        f"  deliveries  {ABSENT if row.deliveries is None else row.deliveries}",
        f"  reason      {printable(row.reason or ABSENT)}",
        f"  key         {_shown(record.key)}",
        f"headers ({len(record.headers)})",
        *(f"  {printable(name)}: {_shown(value)}" for name, value in record.headers),
        f"value ({counted(0 if record.value is None else len(record.value), 'byte')})",
    ]
    return "\n".join([*lines, *_value_lines(record.value)])


def _shown(data: bytes | None) -> str:
    return "null" if data is None else printable(data.decode(errors="backslashreplace"))


def _value_lines(value: bytes | None) -> list[str]:
    if value is None:
        return ["null"]
    return [printable(line) for line in value.decode(errors="backslashreplace").split("\n")]
