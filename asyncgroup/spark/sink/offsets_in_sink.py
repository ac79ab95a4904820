"""`OffsetsInSink`: rows and offsets in one transaction, so that each record is stored exactly once.

    store = OffsetsInSink(connect, "orders", name="orders-to-db", transform=columns_of_the_table)
    store.create_offsets_table()
    await group.run("orders", ForeachBatch(spark, store, …))   # starts where the sink says it is

The offsets in Kafka lag behind after a crash, those in the database never do: whatever is delivered again is passed over.
A zombie that writes late finds the offsets moved on, and its transaction fails or changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.sink.batches import KEYS, RangedBatch, require_columns, require_ranges
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
    """A batch starts beyond what the sink has: records in between would be missing for ever.

    The table was restored from an older copy, say, while the group's own offsets went on. Start the session from the
    sink's offsets (`start_offsets`), or move the stored offsets by hand.
    """


class OffsetsMovedError(AsyncGroupError):
    """Another writer has stored offsets of the same partitions meanwhile: this one is late, or there are two of them."""

    retriable = True


class OffsetUpdate(NamedTuple):
    """A partition's stored offset goes from `before` (None: there is none yet) to `part.end`; `part` is to be stored."""

    before: int | None
    part: OffsetRange


def plan_updates(stored: Mapping[TopicPartition, int], ranges: Iterable[OffsetRange]) -> list[OffsetUpdate]:
    """What of a batch is not in the sink yet; raises OffsetGapError. Pure."""
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

    - `connect()` opens a DB-API connection with a transaction of its own, to a database that has transactions.
    - `table`: where the rows go, or a function `(connection, df)` that writes them; whatever it does by the connection,
      a sum updated or a row deleted, is done exactly once. It must neither commit nor close.
    - `name`: whose offsets these are; the group's id will do.
    - `transform(df)` makes the table's rows of the batch; what it gives are the columns that are written.

    A topic that was deleted and made anew begins at offset 0 again: remove its stored offsets, or its first records pass
    for ones that were stored before.

    Rows are collected on the driver, which alone must reach the database: a transaction cannot be shared by executors.
    """

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
        self._connect, self._table, self._name, self._transform = connect, table, name, transform
        self._offsets_table, self._dialect = offsets_table, dialect or Dialect()

    def __repr__(self) -> str:
        return f"<OffsetsInSink of {self._name!r}, in {self._offsets_table}>"

    def create_offsets_table(self) -> None:
        """Make the table of offsets, unless it is there."""
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
        """The next offset to read of each partition that the sink has something of; a session starts there."""
        with transaction(self._connect) as connection:
            return self._stored(connection.cursor(), partitions)

    def __call__(self, df: DataFrame, batch_id: RangedBatch) -> None:
        """Store what the sink does not have of a batch; all of it or nothing.

        Raises OffsetGapError, OffsetsMovedError, ConfigError, and what the database raises.
        """
        ranges = require_ranges(batch_id)
        with transaction(self._connect) as connection:
            cursor = connection.cursor()
            stored = self._stored(cursor, (TopicPartition(*part[:2]) for part in ranges))
            updates = plan_updates(stored, ranges)
            # the offsets first: whoever else wants to move them waits for this transaction, or fails
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
        """Compare and set: the stored offset must be what was read."""
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
    """The rows that are not in the sink yet: usually all of them."""
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
