"""`OffsetsInSink`: store rows and offsets in one database transaction, so that each record is stored exactly once.

    store = OffsetsInSink(connect, "orders", name="orders-to-db", transform=columns_of_the_table)
    store.create_offsets_table()
    await group.run("orders", ForeachBatch(spark, store, …))   # starts at the offsets in the database

After a crash the offsets committed in Kafka may be too small, those in the database are exact: records that are delivered
again are skipped. A fenced member that writes late finds other offsets, and its transaction fails or changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import KEYS, BatchId, OffsetRange, require_columns, require_ranges
from asyncgroup.spark.sink.sql import Connect, Dialect, execute_in_chunks, rows_of, transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["OffsetGapError", "OffsetUpdate", "OffsetsInSink", "OffsetsMovedError", "plan_updates"]

Transform: TypeAlias = "Callable[[DataFrame], DataFrame]"
WriteRows: TypeAlias = "Callable[[Any, DataFrame], None]"

_CONSUMER_COLUMN: Final = "consumer"
_OFFSET_COLUMN: Final = "next_offset"
_KEY_COLUMNS: Final = (_CONSUMER_COLUMN, "topic", "partition")
CHUNK_ROWS: Final = 1_000


class OffsetGapError(AsyncGroupError):
    """A batch starts after the stored offset: the records in between would never be stored.

    This happens, for example, if the table was restored from an older backup while the group's offsets went on. Start the
    session from the sink's offsets (`start_offsets`), or change the stored offsets by hand.
    """


class OffsetsMovedError(AsyncGroupError):
    """Another writer has changed the stored offsets of the same partitions: this writer is late, or there are two."""

    retriable = True


class OffsetUpdate(NamedTuple):
    """A change of a partition's stored offset, to `part.end`."""

    before: int | None
    """The stored offset that is replaced; None: there is none yet."""
    part: OffsetRange
    """The records to be stored."""


def plan_updates(stored: Mapping[TopicPartition, int], ranges: Iterable[OffsetRange]) -> list[OffsetUpdate]:
    """Return an update for each range of a batch that is not stored completely; raise OffsetGapError. Pure."""
    updates = []
    for part in ranges:
        before = stored.get(TopicPartition(part.topic, part.partition))
        if before is None:
            updates.append(OffsetUpdate(None, part))
        elif before < part.start:
            raise OffsetGapError(
                f"{part.topic}-{part.partition}: the sink has everything before offset {before}, "
                f"the batch starts at {part.start}"
            )
        elif before < part.end:
            updates.append(OffsetUpdate(before, part._replace(start=before)))
    return updates


class OffsetsInSink:
    """A function for `ForeachBatch`: adds a batch's rows to a table and its offsets to another, in one transaction.

    - `connect()` opens a DB-API connection without autocommit, to a database with transactions.
    - `table`: the table for the rows, or a function `(connection, df)` that writes them. All that it does on this
      connection is done exactly once, such as updating a sum or deleting a row. It must neither commit nor close.
    - `name`: the key of these offsets in the offsets table, for example the group id.
    - `transform(df)` converts the batch to rows of the table; its columns are the columns that are written.

    A recreated topic starts at offset 0 again: delete its stored offsets, otherwise its first records are skipped as
    stored already.

    Rows are collected on the driver, since executors cannot share a transaction; only the driver needs to reach the
    database.
    """

    _needs_ranges = True  # refused by QueueForeachBatch, whose batches have none

    def __init__(
        self,
        connect: Connect,
        table: str | WriteRows,
        *,
        name: str,
        transform: Transform | None = None,
        offsets_table: str = "kafka_offsets",
        dialect: Dialect | None = None,
    ) -> None:
        self._connect = connect
        self._table = table
        self._name = name
        self._transform = transform
        self._offsets_table = offsets_table
        self._dialect = dialect or Dialect()

    def __repr__(self) -> str:
        return f"<OffsetsInSink of {self._name!r}, in {self._offsets_table}>"

    def create_offsets_table(self) -> None:
        """Create the table of offsets if it does not exist."""
        dialect, names = self._dialect, ", ".join(map(self._dialect.name, _KEY_COLUMNS))
        columns = [
            f"{dialect.name(_CONSUMER_COLUMN)} VARCHAR(255) NOT NULL",
            f"{dialect.name('topic')} VARCHAR(249) NOT NULL",
            f"{dialect.name('partition')} INTEGER NOT NULL",
            f"{dialect.name(_OFFSET_COLUMN)} BIGINT NOT NULL",
            f"PRIMARY KEY ({names})",
        ]
        with transaction(self._connect) as connection:
            table = dialect.table(self._offsets_table)
            connection.cursor().execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})")

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the stored offsets, from which a session starts; partitions without one are left out."""
        with transaction(self._connect) as connection:
            return self._stored(connection.cursor(), partitions)

    def __call__(self, df: DataFrame, batch_id: BatchId) -> None:
        """Store the records of a batch that are not stored yet, all of them or none.

        Raises OffsetGapError, OffsetsMovedError, ConfigError, and what the database raises.
        """
        ranges = require_ranges(batch_id)
        with transaction(self._connect) as connection:
            cursor = connection.cursor()
            stored = self._stored(cursor, (TopicPartition(*part[:2]) for part in ranges))
            updates = plan_updates(stored, ranges)
            # offsets first: another writer of the same partitions then waits for this transaction, or fails
            for update in updates:
                self._update_offset(cursor, update)
            if updates:
                self._write(connection, _unstored_rows(df, ranges, updates))

    def _stored(self, cursor: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        dialect, found = self._dialect, {}
        table, next_offset = dialect.table(self._offsets_table), dialect.name(_OFFSET_COLUMN)
        query = f"SELECT {next_offset} FROM {table} WHERE {dialect.where(_KEY_COLUMNS)}"  # noqa: S608  quoted names
        for tp in partitions:
            cursor.execute(query, (self._name, *tp))
            if (row := cursor.fetchone()) is not None:
                found[tp] = int(row[0])
        return found

    def _update_offset(self, cursor: Any, update: OffsetUpdate) -> None:
        """Replace a stored offset (compare and set); raise OffsetsMovedError if it is not the one that was read."""
        dialect, part = self._dialect, update.part
        key = (self._name, part.topic, part.partition)
        if update.before is None:
            cursor.execute(
                dialect.insert(self._offsets_table, (*_KEY_COLUMNS, _OFFSET_COLUMN)), (*key, part.end)
            )
            return
        setting = dialect.where([_OFFSET_COLUMN])
        condition = dialect.where([*_KEY_COLUMNS, _OFFSET_COLUMN], first=2)
        cursor.execute(
            f"UPDATE {dialect.table(self._offsets_table)} SET {setting} WHERE {condition}",  # noqa: S608
            (part.end, *key, update.before),
        )
        if cursor.rowcount != 1:
            raise OffsetsMovedError(
                f"{self._name}: the offset of {part.topic}-{part.partition} is no longer {update.before}"
            )

    def _write(self, connection: Any, df: DataFrame) -> None:
        rows = df if self._transform is None else self._transform(df)
        if not isinstance(self._table, str):
            self._table(connection, rows)
            return
        statement = self._dialect.insert(self._table, rows.columns)
        batches = rows.toArrow().to_batches()
        execute_in_chunks(
            connection.cursor(), statement, (row for batch in batches for row in rows_of(batch)), CHUNK_ROWS
        )


def _unstored_rows(
    df: DataFrame, ranges: Sequence[OffsetRange], updates: Sequence[OffsetUpdate]
) -> DataFrame:
    """Return the rows that are not stored yet, usually all of them."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    parts = [update.part for update in updates]
    if parts == list(ranges):
        return df
    require_columns(df, KEYS)
    wanted = F.lit(False)
    for part in parts:
        inside = F.col("offset").between(part.start, part.end - 1)
        wanted |= (F.col("topic") == part.topic) & (F.col("partition") == part.partition) & inside
    return df.where(wanted)
