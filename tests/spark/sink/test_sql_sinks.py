"""Sinks in a database: the SQL itself, and SQLite with a real Spark."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pyspark.sql import DataFrame, SparkSession, functions as F

from asyncgroup.errors import ConfigError
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.sink.offsets_in_sink import (
    OffsetGapError,
    OffsetsInSink,
    OffsetsMovedError,
    OffsetUpdate,
    plan_updates,
)
from asyncgroup.spark.sink.sql import Dialect, transaction
from asyncgroup.spark.sink.upsert import DbApiMerge, Upsert
from tests.spark.sink.frames import batch_frame

pytestmark = pytest.mark.timeout(600)  # the first jobs of a Spark on a busy machine


COLUMNS = ["topic", "partition", "offset", "text"]
KEYS = COLUMNS[:3]


def part(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("orders", partition, start, end)


def table_rows(df: DataFrame) -> DataFrame:
    return df.select("topic", "partition", "offset", F.col("value").cast("string").alias("text"))


@pytest.fixture
def connect(tmp_path: Path) -> Callable[[], sqlite3.Connection]:
    """Return a function that connects to a database with an empty table `orders`."""
    opens = functools.partial(sqlite3.connect, str(tmp_path / "db"), timeout=60.0)
    with transaction(opens) as connection:
        connection.execute(
            'CREATE TABLE orders (topic, "partition", "offset", text, PRIMARY KEY (topic, "partition", "offset"))'
        )
    return opens


def stored(connect: Callable[[], sqlite3.Connection]) -> list[tuple[int, int, str]]:
    with transaction(connect) as connection:
        return connection.execute('SELECT "partition", "offset", text FROM orders ORDER BY 1, 2').fetchall()


def expected(*parts: OffsetRange, word: str = "v") -> list[tuple[int, int, str]]:
    return [(p.partition, o, f"{word}{o}") for p in parts for o in range(p.start, p.end)]


# --- SQL --------------------------------------------------------------------------------------------------------------


def test_statements() -> None:
    lite = Dialect()
    assert lite.merge("orders", COLUMNS, KEYS) == (
        'INSERT INTO "orders" ("topic", "partition", "offset", "text") VALUES (?, ?, ?, ?) '
        'ON CONFLICT ("topic", "partition", "offset") DO UPDATE SET "text" = excluded."text"'
    )
    assert lite.merge("orders", KEYS, KEYS).endswith("DO NOTHING")
    mysql = Dialect("format", "`", "on_duplicate_key")
    assert mysql.merge("shop.orders", ["k", "a"], ["k"]) == (
        "INSERT INTO `shop`.`orders` (`k`, `a`) VALUES (%s, %s) ON DUPLICATE KEY UPDATE `a` = VALUES(`a`)"
    )
    assert mysql.merge("t", ["k"], ["k"]).endswith("UPDATE `k` = VALUES(`k`)")
    oracle = Dialect("numeric", upsert="delete_insert")
    assert oracle.delete('a"b', KEYS[:2]) == 'DELETE FROM "a""b" WHERE "topic" = :1 AND "partition" = :2'
    assert oracle.insert("t", KEYS[:2]) == 'INSERT INTO "t" ("topic", "partition") VALUES (:1, :2)'


@pytest.mark.parametrize("wrong", [{"paramstyle": "named"}, {"upsert": "merge"}])
def test_unknown_dialects(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Dialect(**wrong)


def test_a_transaction_is_rolled_back_and_closed(connect: Callable[[], sqlite3.Connection]) -> None:
    with pytest.raises(RuntimeError), transaction(connect) as connection:
        connection.execute("INSERT INTO orders (topic) VALUES ('x')")
        raise RuntimeError
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")
    assert stored(connect) == []


class Gone(sqlite3.Connection):
    """A connection that the server has closed."""

    def rollback(self) -> None:
        raise sqlite3.ProgrammingError("no rollback on a closed connection")


def test_a_closed_connection_does_not_hide_the_error(
    connect: Callable[[], sqlite3.Connection], caplog: pytest.LogCaptureFixture
) -> None:
    """`Retry(only=…)` depends on the type of the error."""
    with (
        pytest.raises(sqlite3.OperationalError, match="the server has gone"),
        transaction(functools.partial(connect, factory=Gone)),
    ):
        raise sqlite3.OperationalError("the server has gone")
    assert "no rollback on a closed connection" in caplog.text


def test_a_connection_with_autocommit_is_refused(
    connect: Callable[[], sqlite3.Connection],
) -> None:
    class Automatic(sqlite3.Connection):
        autocommit = True

    opens = functools.partial(connect, factory=Automatic)
    with pytest.raises(ConfigError, match="without autocommit"), transaction(opens):
        pytest.fail("it was taken")


# --- upsert -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upsert", ["on_conflict", "delete_insert"])
def test_merging_twice_has_the_same_result_as_once(
    connect: Callable[[], sqlite3.Connection], upsert: Any
) -> None:
    merger = DbApiMerge(connect, "orders", Dialect(upsert=upsert), chunk_rows=7)
    rows = [("orders", 0, offset, f"v{offset}") for offset in range(20)]
    merger.merge(COLUMNS, KEYS, iter(rows))
    merger.merge(COLUMNS, KEYS, iter([(*row[:3], "new") for row in rows[15:]] + [("orders", 0, 20, "new")]))
    merger.merge(COLUMNS, KEYS, [])
    assert [row[2] for row in stored(connect)] == [*(f"v{n}" for n in range(15)), *["new"] * 6]


@pytest.mark.parametrize("upsert", ["on_conflict", "delete_insert"])
def test_the_last_of_rows_with_the_same_keys_wins(tmp_path: Path, upsert: Any) -> None:
    connect = functools.partial(sqlite3.connect, str(tmp_path / "db"))
    with transaction(connect) as connection:
        connection.execute(f"CREATE TABLE t (k{' PRIMARY KEY' if upsert == 'on_conflict' else ''}, v)")
    merger = DbApiMerge(connect, "t", Dialect(upsert=upsert))
    merger.merge(["k", "v"], ["k"], [(1, "a"), (2, "b"), (1, "c")])
    with transaction(connect) as connection:
        assert sorted(connection.execute("SELECT * FROM t").fetchall()) == [(1, "c"), (2, "b")]


@pytest.mark.parametrize("run_on", ["driver", "executors"])
def test_upsert(spark: SparkSession, connect: Callable[[], sqlite3.Connection], run_on: Any) -> None:
    store = Upsert(DbApiMerge(connect, "orders"), transform=table_rows, run_on=run_on)
    store(*batch_frame(spark, [part(0, 30), part(5, 9, 1)]))
    store(*batch_frame(spark, [part(20, 40)], word="new"))
    assert stored(connect) == (
        expected(part(0, 20)) + expected(part(20, 40), word="new") + expected(part(5, 9, 1))
    )


def test_a_failing_task_fails_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    missing = functools.partial(sqlite3.connect, str(tmp_path / "empty"))
    store = Upsert(DbApiMerge(missing, "orders"), transform=table_rows, run_on="executors")
    with pytest.raises(Exception, match="no such table: orders"):
        store(*batch_frame(spark, [part(0, 3)]))


def test_upsert_checks_its_arguments(spark: SparkSession, connect: Callable[[], sqlite3.Connection]) -> None:
    merger = DbApiMerge(connect, "orders")
    with pytest.raises(ConfigError, match="run_on"):
        Upsert(merger, run_on="everywhere")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="keys"):
        Upsert(merger, keys="offset")
    with pytest.raises(ConfigError, match="missing: offset"):
        Upsert(merger, transform=lambda df: df.drop("offset"))(*batch_frame(spark, [part(0, 1)]))


# --- offsets in the sink ----------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.integers(0, 3), st.integers(0, 20)),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10)), max_size=4),
)
def test_planned_updates_store_each_record_once(at: dict[int, int], lengths: list[tuple[int, int]]) -> None:
    ranges = [part(start, start + length, n) for n, (start, length) in enumerate(lengths)]
    stored = {TopicPartition("orders", partition): offset for partition, offset in at.items()}
    try:
        updates = plan_updates(stored, ranges)
    except OffsetGapError:
        assert any(at.get(each.partition, each.start) < each.start for each in ranges)
        return
    taken = {(m.part.partition, offset) for m in updates for offset in range(m.part.start, m.part.end)}
    assert taken == {
        (each.partition, offset)
        for each in ranges
        for offset in range(each.start, each.end)
        if offset >= at.get(each.partition, 0)
    }
    assert all(update.before == at.get(update.part.partition) for update in updates)


def offsets_sink(connect: Callable[[], Any], table: Any = "orders", **options: Any) -> OffsetsInSink:
    store = OffsetsInSink(connect, table, name="to-db", transform=table_rows, **options)
    store.create_offsets_table()
    return store


def test_rows_and_offsets_are_stored_together(
    spark: SparkSession, connect: Callable[[], sqlite3.Connection]
) -> None:
    store = offsets_sink(connect)
    partitions = [TopicPartition("orders", n) for n in range(3)]
    assert store.start_offsets(partitions) == {}
    store(*batch_frame(spark, [part(0, 10), part(5, 9, 1)]))
    assert store.start_offsets(partitions) == {partitions[0]: 10, partitions[1]: 9}
    # redelivered, as after a crash before the commit in Kafka; then a batch that overlaps
    store(*batch_frame(spark, [part(0, 10), part(5, 9, 1)], word="again"))
    store(*batch_frame(spark, [part(0, 15), part(5, 8, 1)], word="new"))
    assert stored(connect) == expected(part(0, 10)) + expected(part(10, 15), word="new") + expected(
        part(5, 9, 1)
    )
    assert store.start_offsets(partitions[:1]) == {partitions[0]: 15}
    other = OffsetsInSink(connect, "orders", name="another")
    assert other.start_offsets(partitions) == {}


def test_a_gap_is_an_error(spark: SparkSession, connect: Callable[[], sqlite3.Connection]) -> None:
    store = offsets_sink(connect)
    store(*batch_frame(spark, [part(0, 5)]))
    with pytest.raises(OffsetGapError, match=r"orders-0: .* before offset 5, the batch starts at 7"):
        store(*batch_frame(spark, [part(7, 9)]))
    assert stored(connect) == expected(part(0, 5))


def test_a_failure_rolls_back_everything(
    spark: SparkSession, connect: Callable[[], sqlite3.Connection]
) -> None:
    sums: list[int] = []

    def add_up(connection: sqlite3.Connection, df: DataFrame) -> None:
        connection.execute("INSERT INTO orders (topic) VALUES (?)", (str(df.count()),))
        sums.append(df.count())
        if len(sums) == 1:
            raise RuntimeError("the power is gone")

    store = offsets_sink(connect, add_up)
    with pytest.raises(RuntimeError):
        store(*batch_frame(spark, [part(0, 4)]))
    assert (stored(connect), store.start_offsets([TopicPartition("orders", 0)])) == ([], {})
    store(*batch_frame(spark, [part(0, 4)]))
    store(*batch_frame(spark, [part(0, 6)]))
    assert sums == [4, 4, 2]


def test_a_zombie_is_fenced(spark: SparkSession, connect: Callable[[], sqlite3.Connection]) -> None:
    """During its transaction, another member stores the same offsets."""

    class Late(sqlite3.Connection):
        def cursor(self, *args: Any) -> Any:
            return LateCursor(super().cursor())

    class LateCursor:
        def __init__(self, cursor: sqlite3.Cursor) -> None:
            self._cursor = cursor

        def execute(self, statement: str, values: Any = ()) -> Any:
            if statement.startswith("UPDATE"):
                store(*batch_frame(spark, [part(5, 8)]))
            return self._cursor.execute(statement, values)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cursor, name)

    store = offsets_sink(connect)
    store(*batch_frame(spark, [part(0, 5)]))
    zombie = OffsetsInSink(
        functools.partial(connect, factory=Late), "orders", name="to-db", transform=table_rows
    )
    with pytest.raises(OffsetsMovedError, match="orders-0 is no longer 5"):
        zombie(*batch_frame(spark, [part(5, 9)], word="late"))
    assert stored(connect) == expected(part(0, 8))


def test_a_batch_id_of_sparks_own_foreach_batch_is_refused(
    connect: Callable[[], sqlite3.Connection],
) -> None:
    store = OffsetsInSink(connect, "orders", name="to-db")
    with pytest.raises(ConfigError, match=r"batch_id=7 .*a BatchId of ForeachBatch"):
        store(None, 7)  # type: ignore[arg-type]


def test_examples_of_planned_updates() -> None:
    tp = TopicPartition("orders", 0)
    assert plan_updates({}, [part(3, 5)]) == [OffsetUpdate(None, part(3, 5))]
    assert plan_updates({tp: 4}, [part(3, 5), part(0, 1, 1)]) == [
        OffsetUpdate(4, part(4, 5)),
        OffsetUpdate(None, part(0, 1, 1)),
    ]
    assert plan_updates({tp: 5}, [part(3, 5)]) == []
