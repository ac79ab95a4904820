"""Build SQL statements, and run transactions, for databases with a DB-API 2.0 module (PEP 249)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from asyncgroup.checks import check_count
from asyncgroup.errors import ConfigError
from asyncgroup.lifecycle import describe_error

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Connect", "Dialect", "execute_in_chunks", "rows_of", "transaction"]

_log = logging.getLogger("asyncgroup.spark")

Connect: TypeAlias = Callable[[], Any]
"""Opens a DB-API connection, which is closed after use. Must be picklable if it is used on executors."""

Row: TypeAlias = tuple[Any, ...]

_PLACEHOLDERS: Final[dict[str, Callable[[int], str]]] = {
    "qmark": lambda _: "?",
    "format": lambda _: "%s",
    "pyformat": lambda _: "%s",  # drivers with this style (psycopg) also accept sequences
    "numeric": lambda number: f":{number}",
}


@dataclass(frozen=True)
class Dialect:
    """The SQL dialect of a database. The defaults are for SQLite; PostgreSQL needs `paramstyle="format"`.

    - `paramstyle`: that of the DB-API module; `named` is not supported.
    - `quote`: the quote around names, as some are SQL keywords (`partition`, `offset`); MySQL needs a backtick.
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
        """Return a column name, quoted."""
        return f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"

    def table(self, name: str) -> str:
        """Return a table name, quoted; the parts of `schema.table` separately."""
        return ".".join(map(self.name, name.split(".")))

    def insert(self, table: str, columns: Sequence[str]) -> str:
        """Return a statement that inserts a row."""
        placeholders = ", ".join(map(self._placeholder, range(1, len(columns) + 1)))
        names = self._names(columns)
        return f"INSERT INTO {self.table(table)} ({names}) VALUES ({placeholders})"  # noqa: S608  names are quoted

    def where(self, columns: Sequence[str], first: int = 1) -> str:
        """Return a condition that compares each column with a parameter, the first with number `first`."""
        return " AND ".join(
            f"{self.name(name)} = {self._placeholder(first + n)}" for n, name in enumerate(columns)
        )

    def merge(self, table: str, columns: Sequence[str], keys: Sequence[str]) -> str:
        """Return a statement that inserts a row or replaces the one with the same keys; not for `delete_insert`."""
        values = [self.name(name) for name in columns if name not in keys]
        insert = self.insert(table, columns)
        if self.upsert == "on_duplicate_key":
            updates = [f"{each} = VALUES({each})" for each in values or [self.name(keys[0])]]
            return f"{insert} ON DUPLICATE KEY UPDATE {', '.join(updates)}"
        updates = [f"{each} = excluded.{each}" for each in values]
        action = f"DO UPDATE SET {', '.join(updates)}" if updates else "DO NOTHING"
        return f"{insert} ON CONFLICT ({self._names(keys)}) {action}"

    def delete(self, table: str, keys: Sequence[str]) -> str:
        """Return a statement that deletes the row with these keys."""
        return f"DELETE FROM {self.table(table)} WHERE {self.where(keys)}"  # noqa: S608

    def _names(self, columns: Iterable[str]) -> str:
        return ", ".join(map(self.name, columns))

    def _placeholder(self, number: int) -> str:
        return _PLACEHOLDERS[self.paramstyle](number)


@contextlib.contextmanager
def transaction(connect: Connect) -> Iterator[Any]:
    """Open a connection; commit at the end of the block, or roll back if it raises; then close the connection.

    Raises ConfigError for a connection in autocommit mode.
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
    """Call `rollback` or `close`; log its error, so that an earlier error of a broken connection is the one raised."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  drivers raise various types
        _log.warning("rollback or close of a sink's database connection failed: %s", describe_error(error))


def rows_of(batch: pyarrow.RecordBatch) -> Iterator[Row]:
    """Yield the rows of an Arrow batch as Python values (bytes, str, int, float, Decimal, date, aware datetime, None, …)."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def execute_in_chunks(cursor: Any, statement: str, rows: Iterable[Row], chunk_rows: int) -> None:
    """Call `executemany` with at most `chunk_rows` rows at a time."""
    check_count("chunk_rows", chunk_rows)
    remaining = iter(rows)
    while chunk := list(islice(remaining, chunk_rows)):
        cursor.executemany(statement, chunk)
