"""Rows of a work queue's batch: their columns, and those that identify a row.

A record of Kafka is identified by its offset. A message of Pulsar has an id, and the queue knows it by a number that another
process gives to another message: its rows have no `offset`, so that no table keeps such a number as a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from asyncgroup.columns import MalformedTimestamp, RecordColumns, message_arrow_schema
from asyncgroup.model import Record, add_records
from asyncgroup.spark.bridge.failed_rows import RowKey
from asyncgroup.spark.ranges import KEYS, MESSAGE_KEYS

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncgroup.pulsar import PulsarMessage

__all__ = ["MessageRows", "OffsetRows", "QueueRows"]

_FIRST_MS: Final = -(2**63 // 1000)
_LAST_MS: Final = (2**63 - 1) // 1000
"""Limits of a time in 64-bit microseconds."""


class QueueRows(Protocol):
    """How the records of a queue become rows."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        ...

    def key(self, record: Record) -> RowKey:
        """Return the values of these columns."""
        ...

    def to_arrow(self, records: Sequence[Record], *, include_headers: bool) -> pa.RecordBatch:
        """Return the rows. Raises MalformedTimestamp, which names a record by the queue's offset."""
        ...


class OffsetRows:
    """Rows with the columns of Spark's Kafka source."""

    keys: ClassVar = KEYS

    def key(self, record: Record) -> RowKey:
        """Return topic, partition and offset."""
        return record.topic, record.partition, record.offset

    def to_arrow(self, records: Sequence[Record], *, include_headers: bool) -> pa.RecordBatch:
        """Return the rows."""
        columns = RecordColumns(include_headers=include_headers)
        add_records(records, columns)
        return columns.to_arrow()


class MessageRows:
    """Rows of messages of Pulsar: without `offset`, and with `messageId`, `eventTime` and `orderingKey`."""

    keys: ClassVar = MESSAGE_KEYS

    def key(self, record: Any) -> RowKey:
        """Return topic and message id."""
        message: PulsarMessage = record
        return message.topic, str(message.message_id)

    def to_arrow(self, records: Sequence[Any], *, include_headers: bool) -> pa.RecordBatch:
        """Return the rows."""
        import pyarrow as pa

        messages: Sequence[PulsarMessage] = records
        events = [message.event_time for message in messages]
        for message, event in zip(messages, events, strict=True):
            # Pulsar's times are any 64-bit numbers, which pyarrow does not take
            for time in (message.timestamp, event):
                if time is not None and not _FIRST_MS <= time <= _LAST_MS:
                    raise MalformedTimestamp(message.topic, message.partition, message.offset, time)
        common = OffsetRows().to_arrow(messages, include_headers=include_headers)
        columns = [common.column(name) for name in common.schema.names if name != "offset"]
        columns += [
            pa.array([str(message.message_id) for message in messages], pa.string()),
            pa.array(events, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
            pa.array([message.ordering_key for message in messages], pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(
            columns, schema=message_arrow_schema(include_headers=include_headers)
        )
