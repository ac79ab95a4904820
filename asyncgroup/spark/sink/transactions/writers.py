"""The writers of format "asyncgroup" with the option `transactional.id.prefix`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from asyncgroup.cluster import Cluster
from asyncgroup.spark.option_words import SINK_WORDS
from asyncgroup.spark.sink.producer_cache import (
    AckRecorder,
    OpenProducer,
    WrittenRange,
    open_retrying,
    producer_cache,
)
from asyncgroup.spark.sink.transactions.decisions import SlotResult
from asyncgroup.spark.sink.transactions.errors import TransactionalSinkError
from asyncgroup.spark.sink.transactions.kafka import KafkaTransactions, slot_offsets
from asyncgroup.spark.sink.transactions.records import QueryBatch, SlotTransaction
from asyncgroup.spark.sink.transactions.steps import abort_batch, commit_batch, open_slot
from asyncgroup.spark.sink.transactions.task import TaskPlace, task_place
from asyncgroup.spark.sink.write_settings import WriteSettings
from asyncgroup.spark.worker_process import freeze_heap, strip_traceback

if TYPE_CHECKING:
    import pyarrow

__all__ = ["SlotCommitMessage", "TransactionalBatchWriter", "TransactionalStreamWriter"]


@dataclass(frozen=True)
class SlotCommitMessage(WriterCommitMessage):
    """The result of a task, whose records are in an open transaction."""

    batch: QueryBatch
    slot: int
    result: SlotResult
    ranges: tuple[WrittenRange, ...] = ()
    """What was written, one for each partition."""


class WrittenRows(Protocol):
    """What was written by a task."""

    @property
    def ranges(self) -> tuple[WrittenRange, ...]: ...
    @property
    def rows(self) -> int: ...


class RowWriter(Protocol):
    """Writes the rows of a task by an open producer; can be pickled."""

    async def write_rows(
        self, batches: Iterator[pyarrow.RecordBatch], open_producer: OpenProducer
    ) -> WrittenRows:
        """Write all rows; return when all are acknowledged."""


class _TransactionalWriter:
    """The common part of both writers. Pickled for the executors, so it holds only settings."""

    def __init__(self, settings: WriteSettings, rows: RowWriter, job_id: str | None = None) -> None:
        assert settings.transactional_id_prefix is not None
        self._settings = settings
        self._prefix = settings.transactional_id_prefix
        self._rows = rows
        self._job_id = job_id  # identifies a batch query; None in a stream

    def __repr__(self) -> str:
        where = self._settings.topic or "topics by column"
        return f"<{type(self).__name__} to {where}, transactions {self._prefix}-*>"

    # --- on executors ---------------------------------------------------------------------------------------------

    @strip_traceback(SINK_WORDS)
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task in a transaction, which is left open. Runs on an executor.

        All rows are read also if the batch has been committed before: the state of Spark's operators depends on that.
        Raises TransactionalSinkError, ConfigError for a row that is not a valid record, TransactionError and BrokerError
        for records that were not written; the transaction is aborted then.
        """
        place = task_place(self._job_id)
        try:
            written = producer_cache.run(self._settings, functools.partial(self._write, place, iterator))
        finally:
            freeze_heap()
        if written is not None:
            return written
        rows = sum(batch.num_rows for batch in iterator)
        return SlotCommitMessage(place.batch, place.slot, SlotResult(rows, committed=True))

    async def _write(
        self, place: TaskPlace, batches: Iterator[pyarrow.RecordBatch], cached: OpenProducer
    ) -> SlotCommitMessage | None:
        """Write the rows; return None without reading any if an earlier run of the batch has committed the slot."""
        client = self._client(cached.producer.cluster)  # its connections are kept between tasks
        acks = AckRecorder()
        async with contextlib.AsyncExitStack() as stack:
            producer = client.producer(place.slot, [acks])
            _, is_committed = await open_slot(
                client, place.batch, place.slot, lambda: client.enter(stack, producer)
            )
            if is_committed:
                return None
            return await self._write_transaction(place, batches, OpenProducer(producer, acks))

    async def _write_transaction(
        self, place: TaskPlace, batches: Iterator[pyarrow.RecordBatch], opened: OpenProducer
    ) -> SlotCommitMessage:
        async with opened.producer.transaction():
            written = await self._rows.write_rows(batches, opened)
            if written.ranges:
                offsets = slot_offsets(self._prefix, place.slot, place.batch, written.ranges[0].topic)
                await opened.producer.send_offsets(offsets)
            detached = await opened.producer.detach_transaction()  # raises if a record was not written
        if not written.ranges:
            return SlotCommitMessage(place.batch, place.slot, SlotResult(0))
        transaction = SlotTransaction(place.slot, *detached[1:4])
        return SlotCommitMessage(
            place.batch, place.slot, SlotResult(written.rows, transaction), written.ranges
        )

    # --- on the driver --------------------------------------------------------------------------------------------

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        found = [each for each in messages if isinstance(each, SlotCommitMessage)]
        if len(found) < len(messages) or len({each.batch for each in found}) != 1:
            raise TransactionalSinkError(f"Spark commits a batch with results that do not match: {messages}")
        results = [each.result for each in found]
        topic = next((each.ranges[0].topic for each in found if each.ranges), None)
        self._run(lambda client: commit_batch(client, found[0].batch, results, topic))

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        found = [each if isinstance(each, SlotCommitMessage) else None for each in messages]
        batch = next((each.batch for each in found if each is not None), None)
        if batch is None:
            return
        results = [None if each is None else each.result for each in found]
        self._run(lambda client: abort_batch(client, results, batch))

    def _run(self, step: Callable[[KafkaTransactions], Awaitable[None]]) -> None:
        async def run() -> None:
            config, servers = self._settings.config, self._settings.bootstrap_servers
            cluster = await open_retrying(self._settings, lambda: Cluster(servers, config))
            try:
                await step(self._client(cluster))
            finally:
                await cluster.aclose()

        asyncio.run(run())

    def _client(self, cluster: Cluster) -> KafkaTransactions:
        settings = self._settings
        return KafkaTransactions(cluster, settings.config, self._prefix, settings.api_timeout)


class TransactionalBatchWriter(_TransactionalWriter, DataSourceArrowWriter):
    """The writer of `df.write`: all rows become visible to readers of committed records, or none."""

    def __init__(self, settings: WriteSettings, rows: RowWriter) -> None:
        super().__init__(settings, rows, f"batch-{uuid.uuid4()}")

    @strip_traceback(SINK_WORDS)
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all transactions. Raises TransactionalSinkError, BrokerError, TransportError."""
        self._commit(messages)

    @strip_traceback(SINK_WORDS)
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort all transactions, unless their commit has begun. Raises BrokerError, TransportError."""
        self._abort(messages)


class TransactionalStreamWriter(_TransactionalWriter, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`: each batch becomes visible once, also if Spark repeats it."""

    @strip_traceback(SINK_WORDS)
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Commit the batch. Raises TransactionalSinkError, BrokerError, TransportError."""
        self._commit(messages)

    @strip_traceback(SINK_WORDS)
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Abort the batch, unless its commit has begun. Raises BrokerError, TransportError."""
        self._abort(messages)
