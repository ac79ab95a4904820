"""The values that the transactional sink stores in Kafka: the driver's record of a batch, and the batch that a slot has committed.

Both are committed offsets with a text as metadata, of groups that have no members:

- group `<prefix>-driver`: the transactions of the last batch whose commit has begun (`BatchRecord`). The offset is a number
  that grows with each record, because records of different topics are kept side by side.
- group `<prefix>-<slot>`: the last batch that this slot has committed (`QueryBatch`), written by TxnOffsetCommit in the
  same transaction as the slot's records.
"""

from __future__ import annotations

import binascii
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from asyncgroup.spark.sink.transactions.errors import TransactionalSinkError

__all__ = [
    "BatchRecord",
    "QueryBatch",
    "SlotTransaction",
    "decode_batch",
    "decode_record",
    "encode_batch",
    "encode_record",
    "newest_record",
]

FORMAT: Final = "asyncgroup-sink"
"""The key of the JSON object that has the format's version."""

VERSION: Final = 1

NOT_OURS: Final = "a stored commit is not one of the transactional sink: use another transactional.id.prefix"


class QueryBatch(NamedTuple):
    """A batch of a query; a replay of it has the same values."""

    query_id: str
    """Spark's query id, which its checkpoint keeps; for `df.write` a new id."""
    batch_id: int


class SlotTransaction(NamedTuple):
    """An open transaction that a task has written and flushed; its transactional id is `<prefix>-<slot>`."""

    slot: int
    """The number of the task's partition."""
    producer_id: int
    producer_epoch: int
    version: int
    """The transaction version under which it was written (`transaction.version`, KIP-890)."""


@dataclass(frozen=True)
class BatchRecord:
    """The driver's record of a batch; once it is stored, the batch is committed and never aborted."""

    batch: QueryBatch
    number: int
    """Grows with each stored record."""
    rows: tuple[int, ...]
    """The number of rows of each slot, also of those without a transaction."""
    transactions: tuple[SlotTransaction, ...]
    topic: str = ""
    """The topic for whose partition 0 the record is committed; it must exist."""


# --- text -------------------------------------------------------------------------------------------------------------


def encode_batch(batch: QueryBatch) -> str:
    """Return the metadata of a slot's commit."""
    return _dump({"query": batch.query_id, "batch": batch.batch_id})


def decode_batch(text: str) -> QueryBatch:
    """Return the batch that a slot has committed. Raises TransactionalSinkError for another text."""
    found = _load(text)
    try:
        return QueryBatch(str(found["query"]), int(found["batch"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TransactionalSinkError(NOT_OURS) from error


def encode_record(record: BatchRecord) -> str:
    """Return the metadata of the driver's commit; topic and number are not in it but in the commit itself.

    One slot takes about 5 bytes, so the broker's limit of 4,096 (`offset.metadata.max.bytes`) is enough for about 700.
    """
    fields = {
        "query": record.batch.query_id,
        "batch": record.batch.batch_id,
        "slots": _pack([len(record.rows), *record.rows, *_columns(record.transactions)]),
    }
    return _dump(fields)


def decode_record(topic: str, number: int, text: str) -> BatchRecord:
    """Return the driver's record. Raises TransactionalSinkError for another text."""
    found, batch = _load(text), decode_batch(text)
    try:
        numbers = list(_unpack(found["slots"]))
        slots = numbers[0]
        rows, rest = tuple(numbers[1 : slots + 1]), numbers[slots + 1 :]
        if len(rows) < slots:
            raise ValueError("incomplete rows")
        transactions = tuple(_transactions(rest))
    except (KeyError, TypeError, ValueError, IndexError, binascii.Error, zlib.error) as error:
        raise TransactionalSinkError(NOT_OURS) from error
    return BatchRecord(batch, number, rows, transactions, topic)


def newest_record(commits: Mapping[str, tuple[int, str]]) -> BatchRecord | None:
    """Return the record with the highest number of all topics' (offset, metadata), None without any."""
    if not commits:
        return None
    topic = max(commits, key=lambda name: commits[name][0])
    return decode_record(topic, *commits[topic])


def _dump(fields: Mapping[str, Any]) -> str:
    return json.dumps({FORMAT: VERSION, **fields}, separators=(",", ":"))


def _load(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise TransactionalSinkError(NOT_OURS) from error
    if not isinstance(found, dict) or found.get(FORMAT) != VERSION:
        raise TransactionalSinkError(NOT_OURS)
    return found


# --- numbers ----------------------------------------------------------------------------------------------------------


def _columns(transactions: Sequence[SlotTransaction]) -> list[int]:
    """Return the numbers column by column, slots and producer ids as differences: they compress well."""
    slots, ids, epochs, versions = zip(*transactions, strict=True) if transactions else ((), (), (), ())
    return [*_differences(slots), *_differences(ids), *epochs, *versions]


def _transactions(columns: Sequence[int]) -> Iterator[SlotTransaction]:
    count, odd = divmod(len(columns), len(SlotTransaction._fields))
    if odd:
        raise ValueError("incomplete columns")
    slots, ids, epochs, versions = (columns[at * count : (at + 1) * count] for at in range(4))
    return map(SlotTransaction, _sums(slots), _sums(ids), epochs, versions)


def _differences(numbers: Iterable[int]) -> Iterator[int]:
    before = 0
    for number in numbers:
        yield number - before
        before = number


def _sums(differences: Iterable[int]) -> Iterator[int]:
    total = 0
    for difference in differences:
        total += difference
        yield total


def _pack(numbers: Iterable[int]) -> str:
    """Return the numbers as zigzag varints, compressed, in base64."""
    data = bytearray()
    for number in numbers:
        rest = number << 1 if number >= 0 else (-number << 1) - 1
        while rest > 0x7F:
            data.append(rest & 0x7F | 0x80)
            rest >>= 7
        data.append(rest)
    return b64encode(zlib.compress(bytes(data), 9)).decode()


def _unpack(text: str) -> Iterator[int]:
    value = shift = 0
    for byte in zlib.decompress(b64decode(text, validate=True)):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield -(value + 1 >> 1) if value & 1 else value >> 1
            value = shift = 0
    if shift:
        raise ValueError("the last number is not complete")
