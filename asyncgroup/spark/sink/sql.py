"""SQL for any database with a DB-API 2.0 module (PEP 249), and one transaction on it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from asyncgroup.checks import check_count
from asyncgroup.errors import ConfigError
from asyncgroup.lifecycle import describe

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Connect", "Dialect", "execute_in_chunks", "rows_of", "transaction"]

_log = logging.getLogger("asyncgroup.spark")

Connect: TypeAlias = Callable[[], Any]
"""Opens a DB-API connection, which is closed after use. To be used on executors it must be picklable."""

Row: TypeAlias = tuple[Any, ...]

_PLACEHOLDERS: Final[dict[str, Callable[[int], str]]] = {
    "qmark": lambda _: "?",
    "format": lambda _: "%s",
    "pyformat": lambda _: "%s",  # drivers of this style (psycopg) take sequences as well
    "numeric": lambda number: f":{number}",
}


@dataclass(frozen=True)
class Dialect:
    """What databases do differently. The defaults suit SQLite; PostgreSQL wants `paramstyle="format"`.

    - `paramstyle`: that of the DB-API module; `named` is not supported.
    - `quote`: what stands around names, some of which are words of SQL (`partition`, `offset`); MySQL has a backtick.
    - `upsert`: `on_conflict` (SQLite 3.24, PostgreSQL), `on_duplicate_key` (MySQL), or `delete_insert`, for any database.
    """

    paramstyle: Literal["qmark", "format", "pyformat", "numeric"] = "qmark"
    quote: str = '"'
    upsert: Literal["on_conflict", "on_duplicate_key", "delete_insert"] = "on_conflict"

    def __post_init__(self) -> None:
        if self.paramstyle not in _PLACEHOLDERS:
            raise ConfigError("paramstyle", self.paramstyle, f"one of {', '.join(_PLACEHOLDERS)}")
        if self.upsert not in ("on_conflict", "on_duplicate_key", "delete_insert"):
            raise ConfigError("upsert", self.upsert, "on_conflict, on_duplicate_key or delete_insert")

    def name(self, name: str) -> str:
        """A column's name, quoted."""
        return f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"

    def table(self, name: str) -> str:
        """A table's name, quoted; `schema.table` in two parts."""
        return ".".join(map(self.name, name.split(".")))

    def insert(self, table: str, columns: Sequence[str]) -> str:
        """Adds a row."""
        places = ", ".join(map(self._placeholder, range(1, len(columns) + 1)))
        return f"INSERT INTO {self.table(table)} ({self._names(columns)}) VALUES ({places})"  # noqa: S608  quoted names

    def where(self, columns: Sequence[str], first: int = 1) -> str:
        """A condition on all of these columns, whose values are the parameters from number `first` on."""
        return " AND ".join(
            f"{self.name(name)} = {self._placeholder(first + n)}" for n, name in enumerate(columns)
        )

    def merge(self, table: str, columns: Sequence[str], keys: Sequence[str]) -> str:
        """Adds a row, or puts it in the place of the one with the same keys; not for `delete_insert`."""
        values = [self.name(name) for name in columns if name not in keys]
        insert = self.insert(table, columns)
        if self.upsert == "on_duplicate_key":
            updates = [f"{each} = VALUES({each})" for each in values or [self.name(keys[0])]]
            return f"{insert} ON DUPLICATE KEY UPDATE {', '.join(updates)}"
        updates = [f"{each} = excluded.{each}" for each in values]
        action = f"DO UPDATE SET {', '.join(updates)}" if updates else "DO NOTHING"
        return f"{insert} ON CONFLICT ({self._names(keys)}) {action}"

    def delete(self, table: str, keys: Sequence[str]) -> str:
        """Removes the row with these keys."""
        return f"DELETE FROM {self.table(table)} WHERE {self.where(keys)}"  # noqa: S608

    def _names(self, columns: Iterable[str]) -> str:
        return ", ".join(map(self.name, columns))

    def _placeholder(self, number: int) -> str:
        return _PLACEHOLDERS[self.paramstyle](number)


@contextlib.contextmanager
def transaction(connect: Connect) -> Iterator[Any]:
    """A connection whose work is committed at the end of the block, or rolled back; then it is closed.

    Raises ConfigError for a connection that would commit each statement by itself.
    """
    connection = connect()
    try:
        if getattr(connection, "autocommit", False) is True:
            raise ConfigError("connect", connection, "a function that opens connections without autocommit")
        yield connection
        connection.commit()
    except BaseException:
        _call_and_log(connection.rollback)
        raise
    finally:
        _call_and_log(connection.close)


def _call_and_log(call: Callable[[], Any]) -> None:
    """Where the connection is gone, this fails as well; what counts is what failed before, or that nothing did."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  each driver has its own
        _log.warning("a connection of a sink was not ended in order: %s", describe(error))


def rows_of(batch: pyarrow.RecordBatch) -> Iterator[Row]:
    """The rows of an Arrow batch as Python values (bytes, str, int, float, Decimal, date, aware datetime, None, …)."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def execute_in_chunks(cursor: Any, statement: str, rows: Iterable[Row], chunk_rows: int) -> None:
    """`executemany` with so many rows at a time."""
    check_count("chunk_rows", chunk_rows)
    remaining = iter(rows)
    while chunk := list(islice(remaining, chunk_rows)):
        cursor.executemany(statement, chunk)
