"""`Upsert`: store rows in a table by key, so that redelivered rows replace those of the first delivery.

connect = functools.partial(psycopg.connect, "host=db dbname=orders")
store = Upsert(DbApiMerge(connect, "orders", Dialect(paramstyle="format")), transform=columns_of_the_table)
await group.run("orders", ForeachBatch(spark, store))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from asyncgroup.checks import check_count
from asyncgroup.errors import ConfigError
from asyncgroup.spark.ranges import KEYS, BatchId, require_columns
from asyncgroup.spark.sink.sql import Connect, Dialect, execute_in_chunks, rows_of, transaction

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["DbApiMerge", "Merger", "Upsert"]

Transform: TypeAlias = "Callable[[DataFrame], DataFrame]"

CHUNK_ROWS: Final = 1_000


class Merger(Protocol):
    """Inserts or replaces rows of a table by key. Must be picklable if it is used on executors."""

    def merge(self, columns: Sequence[str], keys: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert each row or replace the one with the same keys, also one of the same call; the rows are durable at return."""


class DbApiMerge:
    """Merges rows into a database table through a DB-API module, with one transaction per call.

    `connect()` opens a connection; `table` may be `schema.table` and must have a unique index on the keys (not needed with
    `delete_insert`). Rows are sent in chunks of `chunk_rows`.
    """

    def __init__(
        self,
        connect: Connect,
        table: str,
        dialect: Dialect | None = None,
        *,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        check_count("chunk_rows", chunk_rows)
        self._connect = connect
        self._table = table
        self._chunk_rows = chunk_rows
        self._dialect = dialect or Dialect()

    def __repr__(self) -> str:
        return f"<DbApiMerge into {self._table}>"

    def merge(self, columns: Sequence[str], keys: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert or replace rows; if the driver raises, nothing is changed."""
        dialect = self._dialect
        with transaction(self._connect) as connection:
            cursor = connection.cursor()
            if dialect.upsert == "delete_insert":
                places = [columns.index(key) for key in keys]
                newest = {tuple(row[place] for place in places): row for row in rows}
                rows = newest.values()
                execute_in_chunks(cursor, dialect.delete(self._table, keys), newest, self._chunk_rows)
                statement = dialect.insert(self._table, columns)
            else:
                statement = dialect.merge(self._table, columns, keys)
            execute_in_chunks(cursor, statement, rows, self._chunk_rows)
            cursor.close()


class Upsert:
    """A function for `ForeachBatch`: merges a batch's rows into a table by topic, partition and offset.

    - `merger`: `DbApiMerge`, or another object that replaces rows by keys.
    - `transform(df)` converts the batch to rows of the table; its columns are the columns that are written.
    - `keys`: messages of Pulsar, see QueueForeachBatch, have `("topic", "messageId")`. It needs more columns if a record becomes several rows. A record must always become the same rows: a row that
      only the first delivery has would remain.
    - `run_on`: `driver` collects the batch (whose size the bridge limits) and merges it; only the driver needs to reach the
      database. With `executors` each task merges its own rows: the merger is sent to the executors, all of which must
      reach the database (a SQLite file on a local disk cannot be used).
    """

    def __init__(
        self,
        merger: Merger,
        *,
        transform: Transform | None = None,
        keys: Sequence[str] = KEYS,
        run_on: Literal["driver", "executors"] = "driver",
    ) -> None:
        if run_on not in ("driver", "executors"):
            raise ConfigError("run_on", run_on, "driver or executors")
        if isinstance(keys, str) or not keys:
            raise ConfigError("keys", keys, "names of columns, at least one")
        self._merger = merger
        self._transform = transform
        self._keys = tuple(keys)
        self._run_on = run_on
        self._needs_offsets = "offset" in self._keys and transform is None
        """Whether it fails for rows without the column, as those of Pulsar's messages; `transform` may add it."""

    def __repr__(self) -> str:
        return f"<Upsert by {', '.join(self._keys)}: {self._merger!r}>"

    def __call__(self, df: DataFrame, batch_id: BatchId) -> None:  # noqa: ARG002  the keys are sufficient
        """Merge a batch; return when all rows are stored. Raises ConfigError, and what the merger raises."""
        rows = df if self._transform is None else self._transform(df)
        require_columns(rows, self._keys)
        merge = _MergeJob(self._merger, tuple(rows.columns), self._keys)
        if self._run_on == "driver":
            merge.all(rows.toArrow().to_batches())
        else:
            rows.mapInArrow(merge.in_task, "merged long").collect()


class _MergeJob:
    """Merges rows on the driver or in a task; pickled for the executors."""

    def __init__(self, merger: Merger, columns: tuple[str, ...], keys: tuple[str, ...]) -> None:
        self._merger = merger
        self._columns = columns
        self._keys = keys

    def all(self, batches: Iterable[pyarrow.RecordBatch]) -> None:
        self._merger.merge(self._columns, self._keys, (row for batch in batches for row in rows_of(batch)))

    def in_task(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        self.all(batches)
        yield from ()
