"""The steps of a batch in the transactional sink: open a slot, commit the batch, abort it.

They are coroutines over a `SinkTransactions`, so that tests can stop them at any request. Each can be repeated, and may
run while another process runs the same or another step for the same prefix.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol, TypeVar

from asyncgroup.errors import AsyncGroupError
from asyncgroup.spark.sink.transactions.decisions import (
    SlotResult,
    check_owner,
    earlier_transaction,
    must_store,
    owns,
    to_abort,
    transactions_to_commit,
    unfinished_transactions,
)
from asyncgroup.spark.sink.transactions.errors import TransactionalSinkError
from asyncgroup.spark.sink.transactions.records import BatchRecord, QueryBatch, SlotTransaction

__all__ = ["SinkTransactions", "abort_batch", "commit_batch", "open_slot"]

_log = logging.getLogger("asyncgroup.spark")

T = TypeVar("T")


class SinkTransactions(Protocol):
    """The requests for the transactions of one prefix."""

    prefix: str

    async def read_record(self) -> BatchRecord | None:
        """Return the last record that a driver has stored."""

    async def store_record(self, record: BatchRecord) -> None:
        """Store a record; when this returns, it is durable."""

    async def has_committed(self, slot: int, batch: QueryBatch) -> bool:
        """Return whether the slot has committed the batch; wait for the end of a transaction that may change it."""

    async def end(self, transaction: SlotTransaction, *, commit: bool) -> bool:
        """Commit or abort a transaction; return False if it is no longer open and may not have ended in this way."""

    async def slots_not_open(self, transactions: Sequence[SlotTransaction]) -> list[int]:
        """Return the slots whose transaction is not open any more."""

    async def open_slots(self) -> Collection[int]:
        """Return the slots that have any open transaction."""

    async def abort_slot(self, slot: int) -> None:
        """Abort the slot's open transaction, and fence the producer that has opened it."""


async def open_slot(
    client: SinkTransactions, batch: QueryBatch, slot: int, init: Callable[[], Awaitable[T]]
) -> tuple[T, bool]:
    """Open the producer of a task; return what `init` returns, and whether the slot has committed this batch already.

    `init` is InitProducerId with the slot's transactional id, which fences earlier attempts and aborts what they have left
    open. Therefore a transaction that a driver has decided to commit is committed first; and only after `init` it is
    certain what the slot has committed, because no other transaction of it can be committed from then on.

    Raises TransactionalSinkError if the prefix belongs to another query; nothing was changed then.
    """
    record = await client.read_record()
    check_owner(client.prefix, record, batch)
    earlier = earlier_transaction(record, batch, slot)
    if earlier is not None:
        await client.end(earlier, commit=True)
    producer = await init()
    return producer, await client.has_committed(slot, batch)


async def commit_batch(
    client: SinkTransactions, batch: QueryBatch, results: Sequence[SlotResult], topic: str | None
) -> None:
    """Commit a batch whose tasks have all succeeded; `results` has one item for each slot.

    `topic` is one to which rows were written, None without any. Raises TransactionalSinkError if the batch cannot be
    committed or was committed in part; whether it can be repeated is in the text. Raises BrokerError and TransportError.
    """
    record = await client.read_record()
    check_owner(client.prefix, record, batch)
    elsewhere = await _finish_slots_without_task(client, record, batch, len(results))
    transactions = transactions_to_commit(client.prefix, record, batch, results, elsewhere)
    for result in results:
        if result.transaction is not None and result.transaction not in transactions:
            await client.end(result.transaction, commit=False)
    await _abort_abandoned_slots(client, len(results))
    if not must_store(record, batch, transactions):
        return
    await _check_open(client, batch, transactions)
    number = 1 if record is None else record.number + 1
    rows = tuple(result.rows for result in results)
    where = topic or ("" if record is None else record.topic)
    await client.store_record(BatchRecord(batch, number, rows, transactions, where))
    await _commit_all(client, batch, transactions)


async def abort_batch(
    client: SinkTransactions, results: Sequence[SlotResult | None], batch: QueryBatch | None
) -> None:
    """Abort a batch that has failed, unless a record of it is stored: then commit it.

    A result is None if the task has failed; `batch` is None if all have. Then nothing is aborted, because the reason may be
    that the prefix belongs to another query: a task that fails aborts its own transaction, and what a killed task leaves
    open is aborted by the next attempt or by its timeout.
    """
    if batch is None:
        return
    record = await client.read_record()
    is_owner = owns(client.prefix, record, batch)
    if is_owner:
        await _end_all(client, unfinished_transactions(record, batch), commit=True)
    await _end_all(client, to_abort(record, results), commit=False)
    failed = [slot for slot, result in enumerate(results) if result is None and is_owner]
    await asyncio.gather(*map(client.abort_slot, failed))


# --- parts ------------------------------------------------------------------------------------------------------------


async def _finish_slots_without_task(
    client: SinkTransactions, record: BatchRecord | None, batch: QueryBatch, slots: int
) -> set[int]:
    """Commit what a record says of slots for which this run has no task; return those that have committed `batch`."""
    left = [each for each in unfinished_transactions(record, batch) if each.slot >= slots]
    await _end_all(client, left, commit=True)
    committed = await asyncio.gather(*(client.has_committed(each.slot, batch) for each in left))
    return {each.slot for each, found in zip(left, committed, strict=True) if found}


async def _abort_abandoned_slots(client: SinkTransactions, slots: int) -> None:
    """Abort transactions that killed tasks have left in slots for which this batch has no task.

    They would hold back readers of committed records until their timeout.
    """
    try:
        abandoned = [slot for slot in await client.open_slots() if slot >= slots]
        await asyncio.gather(*map(client.abort_slot, abandoned))
    except AsyncGroupError as error:
        _log.warning(
            "transactions of killed tasks may stay open until their timeout, and hold back readers of committed "
            "records: %s",
            error,
        )


async def _check_open(
    client: SinkTransactions, batch: QueryBatch, transactions: Sequence[SlotTransaction]
) -> None:
    """Raise TransactionalSinkError if a transaction is not open any more: the batch is then not committed at all."""
    if gone := await client.slots_not_open(transactions):
        raise TransactionalSinkError(
            f"batch {batch.batch_id} cannot be committed: {_names(client, gone)} not open any more. "
            f"{_CAUSES} Nothing of the batch is committed; restart the query, so that Spark repeats it"
        )


async def _commit_all(
    client: SinkTransactions, batch: QueryBatch, transactions: Sequence[SlotTransaction]
) -> None:
    gone = await _end_all(client, transactions, commit=True)
    if gone:
        raise TransactionalSinkError(
            f"batch {batch.batch_id} was committed in part: of {len(transactions)} transactions {_names(client, gone)} not "
            f"open any more. {_CAUSES} Restart the query: Spark repeats the batch, and only the missing part is written"
        )


async def _end_all(
    client: SinkTransactions, transactions: Sequence[SlotTransaction], *, commit: bool
) -> list[int]:
    """End all transactions, also if one fails; return the slots whose transaction was not open any more."""
    ended = await asyncio.gather(
        *(client.end(each, commit=commit) for each in transactions), return_exceptions=True
    )
    for result in ended:
        if isinstance(result, BaseException):
            raise result
    return [each.slot for each, done in zip(transactions, ended, strict=True) if not done]


_CAUSES = (
    "Possible causes: the batch took longer than kafka.transaction.timeout.ms, a second attempt of a task (switch off "
    "spark.speculation), another query with the same transactional.id.prefix."
)


def _names(client: SinkTransactions, slots: Sequence[int]) -> str:
    named = ", ".join(f"{client.prefix}-{slot}" for slot in slots[:5])
    more = f" and {len(slots) - 5} more" if len(slots) > 5 else ""
    return f"{named}{more} {'is' if len(slots) == 1 else 'are'}"
