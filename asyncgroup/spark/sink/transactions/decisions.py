"""Decisions of the transactional sink, as functions of what is stored and what the tasks returned; no I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from asyncgroup.spark.sink.transactions.errors import TransactionalSinkError
from asyncgroup.spark.sink.transactions.records import BatchRecord, QueryBatch, SlotTransaction

__all__ = [
    "SlotResult",
    "check_owner",
    "earlier_transaction",
    "must_store",
    "owns",
    "to_abort",
    "transactions_to_commit",
    "unfinished_transactions",
]


@dataclass(frozen=True)
class SlotResult:
    """What a task returned for its slot."""

    rows: int
    """The number of rows of the slot in this run of the batch, written or not."""
    transaction: SlotTransaction | None = None
    """The open transaction with the rows; None if nothing was written."""
    committed: bool = False
    """Whether an earlier run of the batch has committed the slot, so that nothing was written."""


# --- who may write ----------------------------------------------------------------------------------------------------


def check_owner(prefix: str, record: BatchRecord | None, batch: QueryBatch) -> None:
    """Raise TransactionalSinkError if the prefix belongs to another query, or the batch is older than the stored one.

    A query takes over a prefix with its first batch: a new checkpoint is a new query. The former owner is refused then.
    """
    if record is None:
        return
    stored = record.batch
    if stored.query_id != batch.query_id and batch.batch_id > 0:
        raise TransactionalSinkError(
            f"transactional.id.prefix={prefix!r} is used by another query: {stored.query_id} has written batch "
            f"{stored.batch_id} with it. This is batch {batch.batch_id} of query {batch.query_id}; each query needs "
            "its own prefix"
        )
    if stored.query_id == batch.query_id and batch.batch_id < stored.batch_id:
        raise TransactionalSinkError(
            f"batch {batch.batch_id} of query {batch.query_id} is older than batch {stored.batch_id}, the last one that "
            f"it has written with transactional.id.prefix={prefix!r}: the checkpoint was restored from an older copy, "
            "or a task of an earlier batch is still running. Use another prefix to write old batches again"
        )


def owns(prefix: str, record: BatchRecord | None, batch: QueryBatch) -> bool:
    """Return whether `check_owner` allows the batch."""
    try:
        check_owner(prefix, record, batch)
    except TransactionalSinkError:
        return False
    return True


def unfinished_transactions(record: BatchRecord | None, batch: QueryBatch) -> tuple[SlotTransaction, ...]:
    """Return the transactions of the record that may still have to be committed when `batch` runs.

    Spark begins a query's next batch only after the commit of the one before has returned, so then there are none.
    """
    if record is None or (record.batch.query_id == batch.query_id and record.batch.batch_id < batch.batch_id):
        return ()
    return record.transactions


def earlier_transaction(record: BatchRecord | None, batch: QueryBatch, slot: int) -> SlotTransaction | None:
    """Return the transaction that a task must commit before it opens its own for the same slot; None if there is none."""
    return next((each for each in unfinished_transactions(record, batch) if each.slot == slot), None)


# --- commit -----------------------------------------------------------------------------------------------------------


def transactions_to_commit(
    prefix: str,
    record: BatchRecord | None,
    batch: QueryBatch,
    results: Sequence[SlotResult],
    committed_elsewhere: Collection[int] = (),
) -> tuple[SlotTransaction, ...]:
    """Return the transactions of `results` to commit; the others, if any, are to be aborted.

    If an earlier run of the batch has committed
    - all its transactions, the batch is complete: none of this run;
    - some of them, this run must have the same number of rows in each slot, and its transactions complete the batch;
    - none of them, this run's transactions are the batch.

    `committed_elsewhere` are the committed slots of the earlier run for which this run has no task. Raises
    TransactionalSinkError if the rows differ.
    """
    new = tuple(result.transaction for result in results if result.transaction is not None)
    if record is None or record.batch != batch:
        return new
    committed = {slot for slot, result in enumerate(results) if result.committed} | set(committed_elsewhere)
    missing = [each.slot for each in record.transactions if each.slot not in committed]
    if not missing:
        return ()
    if not committed:
        return new
    rows = tuple(result.rows for result in results)
    if rows != record.rows:
        raise TransactionalSinkError(_different_rows(prefix, record, committed, missing, rows))
    return new


def _different_rows(
    prefix: str,
    record: BatchRecord,
    committed: Collection[int],
    missing: Collection[int],
    rows: Sequence[int],
) -> str:
    if len(rows) != len(record.rows):
        what = f"{len(rows)} tasks instead of {len(record.rows)}"
    else:
        slot = next(at for at, (now, then) in enumerate(zip(rows, record.rows, strict=True)) if now != then)
        what = f"{rows[slot]} rows instead of {record.rows[slot]} in task {slot}"
    return (
        f"batch {record.batch.batch_id} was committed in part ({len(committed)} of {len(committed) + len(missing)} "
        f"transactions; the others were aborted by their timeout or another task), and its repetition has {what}: "
        "the query's plan is not deterministic, so the missing rows cannot be determined. "
        f"With another transactional.id.prefix than {prefix!r} the whole batch is written once more"
    )


def must_store(
    record: BatchRecord | None, batch: QueryBatch, transactions: Sequence[SlotTransaction]
) -> bool:
    """Return whether the driver stores a record: there is something to commit, or the prefix changes its owner."""
    return bool(transactions) or (record is not None and record.batch.query_id != batch.query_id)


# --- abort ------------------------------------------------------------------------------------------------------------


def to_abort(record: BatchRecord | None, results: Sequence[SlotResult | None]) -> tuple[SlotTransaction, ...]:
    """Return the transactions of `results` that no record says to commit."""
    kept = set() if record is None else set(record.transactions)
    open_ones = [result.transaction for result in results if result is not None]
    return tuple(each for each in open_ones if each is not None and each not in kept)
