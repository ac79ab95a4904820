"""Producer: write records to topics, batched per partition."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from asyncgroup.checks import check_clock, check_rng
from asyncgroup.cluster import Cluster, start_tasks
from asyncgroup.cluster.bootstrap import BootstrapServers
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import DeliveryFailedError, NotTransactionalError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.hooks import Hooks
from asyncgroup.interceptor import ProduceInterceptor, ProducerRecord
from asyncgroup.lifecycle import BackgroundTasks, add_note, start_task, wait_shielded
from asyncgroup.memory.memory_budget import MemoryBudget, check_budget
from asyncgroup.model import GroupOffsets, Header, MillisClock, RecordMetadata, wall_clock
from asyncgroup.named_arguments import ClientArguments
from asyncgroup.producer.arguments import RecordFields, add_delivery_headers
from asyncgroup.producer.batches.results import CallerFuture
from asyncgroup.producer.foreign_names import PRODUCER
from asyncgroup.producer.open_transaction import OpenTransaction
from asyncgroup.producer.records.chunks import ChunkWriter
from asyncgroup.producer.records.pipeline import RecordPipeline, loop_time
from asyncgroup.producer.records.send_steps import send_steps
from asyncgroup.producer.records.writer import RecordWriter
from asyncgroup.producer.transaction import HasGroupOffsets, Transaction, group_offsets
from asyncgroup.producer.transaction_client import TransactionClient

__all__ = ["Producer"]

_log = logging.getLogger("asyncgroup.producer")


class Producer(ClientArguments):
    """Writes records to topics, in batches by partition.

        async with Producer("localhost:9092") as producer:
            where = await producer.send("orders", b"one dozen", key=b"eggs")

    - `send` waits until the record is acknowledged and returns its metadata.
    - `send_nowait` never waits: it returns a future, or raises QueueFull when the buffer is full.
    - `enqueue` waits only for buffer memory, and so does `enqueue_all` for many records; `flush` or `aclose` raises what
      fails later.
    - With `chunking`, values above the limit are split (`producer/records/chunks.py`).

    Records of one partition keep their order through retries, and an acknowledged one is in the log exactly once: the
    producer is idempotent (KIP-98), unless `acks` or `enable_idempotence` say otherwise. A Cluster that is passed in is
    shared and stays open.

    With a `transactional_id` it writes in transactions only (KIP-98): entering it fences earlier producers with the same
    id, and aborts what they left open; see `transaction`.

    `clock` returns the timestamp (ms since 1970) of records that have none. `hooks` receive `on_produce`,
    `on_delivered` and `on_batch_done`, `on_send_start` and `on_send_end`, and all events of the connections if the producer creates the cluster. `rng` is the
    source of its random choices. Not thread-safe: use it in one event loop only.

    `interceptors` see each record when it is written and when it is acknowledged or has failed. Producers that are given the
    same `memory` share its limit. With `initial_sequence_id` the accepted records are numbered, from the number after it on
    (as in Pulsar), in `RecordMetadata.sequence_id`; brokers don't know these numbers, so a record that is written again after
    a restart is in the log twice.
    """

    _CONFIG = "ProducerConfig"

    def __init__(
        self,
        bootstrap_servers: BootstrapServers | Cluster,
        config: ProducerConfig | None = None,
        *,
        hooks: Iterable[object] = (),
        interceptors: Iterable[ProduceInterceptor] = (),
        memory: MemoryBudget | None = None,
        initial_sequence_id: int | None = None,
        clock: MillisClock = wall_clock,
        rng: random.Random | None = None,
    ) -> None:
        check_clock(clock)
        check_rng(rng)
        self.config = ProducerConfig.of(config)
        self._hooks = hooks if isinstance(hooks, Hooks) else Hooks(hooks)
        self._owns_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = (
            bootstrap_servers
            if isinstance(bootstrap_servers, Cluster)
            else Cluster(bootstrap_servers, self.config, hooks=self._hooks, rng=rng)
        )
        client = self.cluster._inner
        self._tasks = BackgroundTasks("Producer", self._on_failure)
        self._inner = pipeline = RecordPipeline(
            client,
            self.config,
            hooks=self._hooks,
            spawn=self._tasks.spawn,
            clock=clock,
            rng=rng or client.random,
            budget=check_budget(memory),
        )
        self._transactions = (
            None
            if pipeline.transaction is None
            else TransactionClient(client, self.config, pipeline, pipeline.transaction, self._tasks.spawn)
        )
        self._callbacks: Any = pipeline.callbacks  # the loop of its callers' futures
        chunks = ChunkWriter(pipeline)
        self._writer = RecordWriter(pipeline, chunks)
        steps = send_steps(pipeline, self._writer, chunks, interceptors, self._hooks, initial_sequence_id)
        self._records = steps or self._writer
        self._put = self._records.put
        self._closing: asyncio.Task[None] | None = None
        self._drains = True  # aclose waits for acknowledgements
        self._drain_limit: asyncio.Timeout | None = None  # of that wait

    def __repr__(self) -> str:
        state = "open" if self._inner.is_open else "closed"
        buffer, memory = self._inner.accumulator, self._inner.memory
        return (
            f"<Producer {state}: {buffer.records} records in {len(buffer.incomplete)} batches, "
            f"{memory.used} of {memory.limit} bytes, {memory.waiting} callers waiting>"
        )

    # --- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await start_tasks(self._tasks, self.cluster if self._owns_cluster else None)
        self._inner.start()
        if self._transactions is not None:
            try:
                await self._transactions.start()
            except BaseException:
                await self._abandon()
                raise
        self._writer.start()
        self._inner.accept()
        self._hooks.emit("on_open", self)
        return self

    async def _abandon(self) -> None:
        """Close what was opened: the caller's `__aexit__` will not run."""
        try:
            await self._tasks.stop()
        finally:
            self._inner.close()
            if self._owns_cluster:
                await self.cluster.aclose()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except DeliveryFailedError as lost:
            if error is None:
                raise
            _log.error("%s", lost)  # raised, it would hide the error of the block
            add_note(error, str(lost))

    async def aclose(self, *, drain: bool = True) -> None:
        """Send the remaining records for at most `close_timeout` seconds, then close. Safe to call twice.

        Records that are not acknowledged by then fail with ClosedError, and an open transaction is aborted. With
        `drain=False` they fail at once, also those in flight, which may be in the log (as Java's `close(0)`), and an open
        transaction is left to its timeout; it also ends the wait of an earlier `aclose`. Raises DeliveryFailedError for
        records of `enqueue` that were lost since the last `flush`, unless the error of their transaction has reported
        them. Runs to its end even if the caller is cancelled.
        """
        self._drains &= drain
        if not self._drains and self._drain_limit is not None:
            self._drain_limit.reschedule(loop_time())
        if self._closing is not None:
            await asyncio.wait([self._closing])
            return
        self._inner.refuse()
        self._closing = start_task(self._close(), name="Producer: close")
        await wait_shielded(self._closing)

    async def _close(self) -> None:
        self._inner.fail_waiting(self._inner.closed_error)  # their records were not accepted
        if self._drains:
            await self._drain()
        is_reported = self._inner.has_failed  # read before `stop`, which closes that state
        try:
            if self._transactions is not None:
                await self._transactions.stop()
            await self._tasks.stop()
        finally:
            why = f"close_timeout={self.config.close_timeout:g} s" if self._drains else "drain=False"
            self._inner.abort_incomplete(why)
            self._inner.close()
            if self._owns_cluster:
                await self.cluster.aclose()
        lost = self._inner.deliveries.take_lost()
        if lost is not None and not is_reported:
            raise lost

    async def _drain(self) -> None:
        limit = self.config.close_timeout
        try:
            if self._transactions is not None:
                async with asyncio.timeout(limit) as self._drain_limit:
                    await self._transactions.abort_open()
        except TimeoutError:
            _log.warning(
                "%s: closed before its transaction had ended; the coordinator aborts it after transaction_timeout, unless its "
                "commit has reached it",
                self.config.transactional_id,
            )
        try:
            async with asyncio.timeout(limit if self._drains else 0.0) as self._drain_limit:
                await self._inner.wait_until_done()
        except TimeoutError:
            _log.warning("%r was closed before all its records were acknowledged", self)
        finally:
            self._drain_limit = None

    def _on_failure(self, error: Exception) -> None:
        """A task of the producer failed because of a bug: nothing is sent any more, so fail all waiting callers."""
        self._inner.fail(error)

    # --- send --------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
        ordering_key: bytes | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | None = None,
    ) -> RecordMetadata:
        """Write a record and wait until it is acknowledged; return its metadata (offset -1 with acks=0).

        Without `partition` the key determines it (as in Java's producer); without a key too, the sticky partition is
        used. `timestamp` is in ms since 1970. Cancellation while waiting for buffer memory withdraws the record; later
        the record is still sent.

        With `chunking`, a value above the limit is written in chunks, each when there is memory for it; the metadata is
        that of the last chunk, and `first_offset` the offset of the first one. Cancellation between two chunks leaves an
        incomplete value in the log, which consumers ignore.

        Work queues in the modes Shared and Key_Shared deliver the record at the time `deliver_at` (an aware datetime, or ms
        since 1970), or `deliver_after` seconds from the producer's `clock`, or later; those in the mode Key_Shared dispatch
        it by `ordering_key` instead of `key`. These arguments are written as headers (`producer/arguments.py`), without
        effect on other consumers and on the partition.

        Raises InvalidRecordError for a record that cannot be written (too large, a wrong type, a partition that does not exist;
        RecordRejectedError if the broker says so), BrokerError for another error of the broker, RequestTimedOut after
        `delivery_timeout`, ClosedError.
        """
        if ordering_key is not None or deliver_at is not None or deliver_after is not None:
            headers = add_delivery_headers(
                headers, ordering_key, deliver_at, deliver_after, self._inner.clock
            )
        future = CallerFuture(loop=self._callbacks)
        if self._put(topic, value, key, headers, partition, timestamp, future) is None:
            record = ProducerRecord(topic, value, key, headers, partition, timestamp)
            await self._records.put_waiting(record, future)
        return await future

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
        ordering_key: bytes | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Write a record as `send` does, but return a future of its metadata without waiting.

        Raises QueueFull when the buffer is full (with `chunking`: has no room for all chunks), InvalidRecordError, ClosedError.
        Cancelling the future does not withdraw the record.
        """
        if ordering_key is not None or deliver_at is not None or deliver_after is not None:
            headers = add_delivery_headers(
                headers, ordering_key, deliver_at, deliver_after, self._inner.clock
            )
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        if self._put(topic, value, key, headers, partition, timestamp, future) is None:
            record = ProducerRecord(topic, value, key, headers, partition, timestamp)
            self._records.put_at_once(record, future)
        return future

    async def enqueue(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
        ordering_key: bytes | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | None = None,
    ) -> None:
        """Write a record, waiting only for buffer memory; the fastest way to write many.

        A later failure is raised by `flush`. Cancellation while waiting for buffer memory withdraws the record. Raises
        InvalidRecordError, ClosedError.
        """
        if ordering_key is not None or deliver_at is not None or deliver_after is not None:
            headers = add_delivery_headers(
                headers, ordering_key, deliver_at, deliver_after, self._inner.clock
            )
        is_filled = self._put(topic, value, key, headers, partition, timestamp, None)
        if is_filled is None:
            record = ProducerRecord(topic, value, key, headers, partition, timestamp)
            is_filled = await self._records.put_waiting(record, None)
        if is_filled or self._writer.turn_is_over():
            await self._writer.rest()  # a caller that never has to wait must still let other tasks run

    async def enqueue_all(self, records: Iterable[RecordFields]) -> None:
        """Write records as `enqueue` does, at about half its cost for each.

        A record is a tuple of the first arguments of `send` in their order: topic, value, key, headers, partition,
        timestamp. The iterable must not block. Other tasks run whenever a batch is full, and about every 5 ms. If it raises, the earlier records
        are written.
        """
        await self._records.put_all(records)

    # --- transactions ------------------------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """Return a context manager that begins a transaction, and commits it at the end of the block (KIP-98).

            async with producer.transaction():
                await producer.send("orders", b"one dozen")
                await producer.send_offsets(session.group_offsets(batch))

        It is aborted instead if the block raises or is cancelled, or if a record or an offset could not be written: then the
        end of the block raises TransactionAbortedError, and the producer can begin the next transaction. After
        ProducerFencedError, TransactionOutcomeUnknown and BrokerError it can only be closed. Cancellation while the
        commit is being sent waits for its outcome, for at most `close_timeout` seconds; a note on the CancelledError has it.

        Raises NotTransactionalError without a `transactional_id`; entering it raises TransactionInProgressError if the
        last transaction has not ended, ClosedError, or what made the producer unusable.
        """
        return Transaction(self._transactional("transaction"))

    async def send_offsets(self, source: GroupOffsets | HasGroupOffsets) -> None:
        """Commit offsets of a consumer group with the transaction (KIP-447); return when the group coordinator has them.

        `source` is a GroupOffsets, or an object with a method `group_offsets()` that returns one. A cancelled caller
        leaves the offsets in the transaction.

        Raises CommitFailedError if the group refuses the member (it lost its partitions) or the offsets: then the
        transaction can only be aborted. Also NotTransactionalError, NoTransactionError, TransactionAbortedError,
        ProducerFencedError, RequestTimedOut after `delivery_timeout`, BrokerError, ClosedError.
        """
        transactions = self._transactional("send_offsets")
        if not self._inner.is_open:
            raise self._inner.closed_error()
        await transactions.offsets.send(group_offsets(source))

    async def detach_transaction(self) -> OpenTransaction:
        """Write all records, and leave the transaction open for another process, which ends it by `end_transaction`.

        The producer can only be closed then, which does not abort the transaction. Raises as the end of a
        transaction's block.
        """
        transactions = self._transactional("detach_transaction")
        if not self._inner.is_open:
            raise self._inner.closed_error()
        return await transactions.detach()

    def _transactional(self, call: str) -> TransactionClient:
        if self._transactions is None:
            raise NotTransactionalError(f"{call} needs ProducerConfig(transactional_id=...)")
        return self._transactions

    # --- flush ------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Send all records written before this call, without lingering, and wait until they are done.

        Raises DeliveryFailedError if records of `enqueue` were lost since the last flush; those of `send` and
        `send_nowait` raise from their own call or future. In a transaction the end of its block also raises: flush need not
        be called there. Unlike Java's, it raises the error that made a transactional producer unusable, as
        ProducerFencedError: its records are lost.
        """
        await self._inner.wait_until_done()
        if self._transactions is not None and self._inner.has_failed:
            raise self._transactions.manager.refusal()
        if (lost := self._inner.deliveries.take_lost()) is not None:
            raise lost


add_foreign_names(Producer, PRODUCER)
