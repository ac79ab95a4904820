"""Sinks in a database that drops the connection before or after any statement or the commit."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.spark.ranges import BatchId, OffsetRange
from asyncgroup.spark.sink.offsets_in_sink import OffsetsInSink
from asyncgroup.spark.sink.sql import Dialect
from asyncgroup.spark.sink.upsert import DbApiMerge

COLUMNS = ("topic", "partition", "offset", "text")
BATCHES = [
    BatchId(n, [OffsetRange("t", partition, 5 * n, 5 * n + 5) for partition in (0, 1)]) for n in range(3)
]

Store = Callable[[BatchId], None]


class DroppedError(Exception):
    """Raised by a connection that the server has closed."""


class Server:
    """A database that closes its connections after `steps` steps in total; -1: never."""

    def __init__(self, path: Path) -> None:
        self._path, self.steps = path, -1

    def connect(self) -> Connection:
        connection = sqlite3.connect(self._path)
        connection.execute("PRAGMA synchronous = OFF")  # from here on connections work
        return Connection(self, connection)

    def rows(self) -> list[tuple[int, int]]:
        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            return sorted(connection.execute('SELECT "partition", "offset" FROM numbers').fetchall())


class Connection:
    """A connection, or a cursor (`of`), that counts calls as steps; after it was dropped even `rollback` fails."""

    def __init__(self, server: Server, connection: sqlite3.Connection, of: Any = None) -> None:
        self._server, self._connection, self._of = server, connection, of or connection

    def cursor(self) -> Connection:
        self._step()
        return Connection(self._server, self._connection, self._connection.cursor())

    @property
    def rowcount(self) -> int:
        found: int = self._of.rowcount
        return found

    def _step(self) -> None:
        if self._server.steps == 0:
            self._connection.close()
            raise DroppedError
        self._server.steps -= 1

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._step()
            found = getattr(self._of, name)(*arguments)
            self._step()
            return found

        return call


def rows_of(ranges: Sequence[OffsetRange]) -> list[tuple[str, int, int, str]]:
    return [
        (part.topic, part.partition, offset, "v") for part in ranges for offset in range(part.start, part.end)
    ]


def with_offsets(server: Server) -> Store:
    def write(connection: Any, ranges: Any) -> None:
        connection.cursor().executemany("INSERT INTO numbers VALUES (?, ?, ?, ?)", rows_of(ranges))

    sink = OffsetsInSink(server.connect, write, name="test")
    sink.create_offsets_table()
    return lambda batch_id: sink(batch_id.ranges, batch_id)  # type: ignore[arg-type]  # passed on as it is


def merging(server: Server) -> Store:
    merger = DbApiMerge(server.connect, "numbers", Dialect(upsert="delete_insert"), chunk_rows=4)
    return lambda batch_id: merger.merge(COLUMNS, COLUMNS[:3], rows_of(batch_id.ranges))


@pytest.mark.parametrize("sink", [with_offsets, merging])
def test_each_row_is_stored_once_if_the_connection_is_dropped_at_any_step(
    tmp_path: Path, sink: Callable[[Server], Store]
) -> None:
    """A failed batch is redelivered, whether it had been committed or not."""
    for steps in itertools.count():
        server = Server(tmp_path / f"{steps}.db")
        with contextlib.closing(server.connect()) as connection:
            connection.execute('CREATE TABLE numbers (topic, "partition", "offset", text)')
        store = sink(server)
        server.steps = steps
        for batch_id in BATCHES:
            with contextlib.suppress(DroppedError):
                store(batch_id)
                continue
            server.steps = -1
            store(batch_id)
        assert server.rows() == sorted((row[1], row[2]) for batch in BATCHES for row in rows_of(batch.ranges))
        if server.steps >= 0:
            break
    assert steps > 30
