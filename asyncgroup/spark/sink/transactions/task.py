"""The place of a task: its slot, its query and its batch."""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark import TaskContext

from asyncgroup.spark.sink.transactions.errors import TransactionalSinkError
from asyncgroup.spark.sink.transactions.records import QueryBatch

__all__ = ["TaskPlace", "task_place"]

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a stream (`StreamExecution`, `MicroBatchExecution`)."""


class TaskPlace(NamedTuple):
    """Where a task's rows belong."""

    slot: int
    """The number of its partition: all attempts of a task have the same."""
    batch: QueryBatch


def task_place(job_id: str | None) -> TaskPlace:
    """Return the place of the running task; `job_id` is that of a batch query, None in a stream.

    Raises TransactionalSinkError if Spark does not tell it.
    """
    context = TaskContext.get()
    if context is None:
        raise TransactionalSinkError("transactions need a Spark task: the writer was called outside of one")
    if job_id is not None:
        return TaskPlace(context.partitionId(), QueryBatch(job_id, 0))
    query, batch = (context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
    if query is None or batch is None:
        raise TransactionalSinkError(
            f"transactions need the id of the query and of the batch, and the task's properties {QUERY_PROPERTY} and "
            f"{BATCH_PROPERTY} are {query!r} and {batch!r}"
        )
    return TaskPlace(context.partitionId(), QueryBatch(query, int(batch)))
