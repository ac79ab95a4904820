"""`FailedRows`: the rows of a queue's batch that the function returns as failed, and the outcome of their records."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from asyncgroup.checks import wrong_type
from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.spark.ranges import KEYS, MESSAGE_KEYS, require_columns
from asyncgroup.workqueue.policies import check_seconds

__all__ = ["FailedRows", "Outcome", "RowKey", "failed_records", "row_keys"]

RowKey: TypeAlias = tuple[str, int, int] | tuple[str, str]
"""Topic, partition and offset; of a message of Pulsar topic and message id."""

T = TypeVar("T")

_ROWS: Final = {
    KEYS: "a DataFrame with the columns topic, partition and offset, or rows, or tuples of these three",
    MESSAGE_KEYS: "a DataFrame with the columns topic and messageId, or rows, or tuples of these two",
}
_RESULT: Final = "None, a FailedRows, or a list of FailedRows"
_SHOWN: Final = 5
"""Rows that an error message names."""


class Outcome(NamedTuple):
    """The outcome of the records of failed rows; at most one field is set. Without the rows, which may hold a DataFrame."""

    delay: float | None
    reconsume_later: float | None
    reject: str | None

    @property
    def is_copy(self) -> bool:
        """Whether the record is copied to another topic."""
        return self.reject is not None or self.reconsume_later is not None


class FailedRows(AsyncGroupError):
    """Rows of a batch that have failed; the records of all other rows of the batch are acknowledged.

    The function of a QueueForeachBatch raises or returns it, or returns a list with one for each kind of failure:

        raise FailedRows(rows)                              # nacked: delivered again after the queue's nack_backoff
        return FailedRows(rows, delay=30)                   # nacked: delivered again after 30 s
        return FailedRows(rows, reconsume_later=600)        # to the retry topic: delivered again after 600 s
        return FailedRows(rows, reject="not JSON")          # to the dead letter topic, with this reason

    `rows` names the records by topic, partition and offset: a DataFrame with these columns, which is collected after the
    function has ended, or an iterable of rows with these fields or of tuples of these three; it may be empty. Messages of
    Pulsar are named by topic and messageId in the same ways. The
    arguments are those of the methods of Delivery. Raises ConfigError for a delay that is not 0 to 1e9, a reason that
    is not a string, and more than one of the three.
    """

    def __init__(
        self,
        rows: Any,
        *,
        delay: float | None = None,
        reconsume_later: float | None = None,
        reject: str | None = None,
    ) -> None:
        for key, seconds in (("delay", delay), ("reconsume_later", reconsume_later)):
            if seconds is not None:
                check_seconds(key, seconds)
        reason: object = reject
        if reason is not None and not isinstance(reason, str):
            raise ConfigError("reject", reason, "None or a string, the reason")
        given = Outcome(delay, reconsume_later, reject)._asdict()
        named = [key for key, value in given.items() if value is not None]
        if len(named) > 1:
            raise ConfigError(named[-1], given[named[-1]], f"None with {named[0]}: a row has one outcome")
        self.rows = rows
        """The rows, as they were given."""
        self.delay = delay
        """Seconds after which their records are delivered again; None for those of the queue's `nack_backoff`."""
        self.reconsume_later = reconsume_later
        """Seconds after which their copies in the retry topic are delivered; None if they are not copied."""
        self.reject = reject
        """The reason with which they are copied to the dead letter topic; None if they are not."""
        super().__init__("rows of the batch have failed")


def failed_records(
    result: object,
    records: Mapping[RowKey, T],
    check: Callable[[Outcome], None],
    columns: tuple[str, ...] = KEYS,
) -> dict[T, Outcome]:
    """Return the outcome of each record that the result of a function names as failed, of those of its batch.

    `columns` identify a row. A DataFrame is collected: call it in the thread of the function. Raises ConfigError for another result, for rows that are
    not in the batch, for a row that is named by two FailedRows, and what `check` raises of an outcome.
    """
    if result is None:
        return {}
    several = result if isinstance(result, list | tuple) else [result]
    found: dict[T, Outcome] = {}
    for failed in several:
        if not isinstance(failed, FailedRows):
            raise wrong_type("result of the function", failed, _RESULT)
        outcome = Outcome(failed.delay, failed.reconsume_later, failed.reject)
        check(outcome)
        keys = row_keys(failed.rows, columns)
        if unknown := keys - records.keys():
            raise ConfigError("rows", _named(unknown), "rows of the batch that the function was called with")
        if twice := {key for key in keys if records[key] in found}:
            raise ConfigError("rows", _named(twice), "rows that no other FailedRows of the batch names")
        found |= dict.fromkeys((records[key] for key in keys), outcome)
    return found


def row_keys(rows: Any, columns: tuple[str, ...] = KEYS) -> set[RowKey]:
    """Return topic, partition and offset of rows, or topic and message id, see FailedRows. Raises ConfigError."""
    if hasattr(rows, "select") and hasattr(rows, "collect"):
        require_columns(rows, columns)
        rows = rows.select(*columns).collect()
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes):
        raise wrong_type("rows", rows, _ROWS[columns])
    key_of = _offset_key if columns == KEYS else _message_key
    return {key_of(_values(row, columns)) for row in rows}


def _values(row: Any, columns: tuple[str, ...]) -> Sequence[Any]:
    if all(hasattr(row, name) for name in columns):
        return [getattr(row, name) for name in columns]
    if isinstance(row, tuple | list) and len(row) == len(columns):
        return row
    raise wrong_type("rows", row, _ROWS[columns])


def _offset_key(values: Sequence[Any]) -> RowKey:
    topic, partition, offset = values
    try:
        return str(topic), operator.index(partition), operator.index(offset)
    except TypeError:
        raise ConfigError(
            "rows", (topic, partition, offset), "topic, partition and offset, none null"
        ) from None


def _message_key(values: Sequence[Any]) -> RowKey:
    topic, message_id = values
    if message_id is None:
        raise ConfigError("rows", (topic, message_id), "topic and messageId, none null")
    return str(topic), str(message_id)


def _named(keys: Iterable[RowKey]) -> str:
    first = sorted(keys)
    more = f" and {len(first) - _SHOWN} more" if len(first) > _SHOWN else ""
    texts = ("{}-{}@{}" if len(key) == len(KEYS) else "{} {}" for key in first)
    return ", ".join(text.format(*key) for text, key in zip(texts, first[:_SHOWN], strict=False)) + more
