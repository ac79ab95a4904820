"""The way of records through a producer: from the lookup of their topic to batches, to the sender, to their results."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Container

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import AsyncGroupError, ClosedError, DeliveryFailedError
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import copy_error
from asyncgroup.memory.memory_budget import MemoryBudget, add_listener, remove_listener
from asyncgroup.memory.pending_limits import producer_memory
from asyncgroup.model import BatchResult, TopicPartition
from asyncgroup.producer.batches.accumulator import RecordAccumulator
from asyncgroup.producer.batches.batch import ProducerBatch
from asyncgroup.producer.batches.record_end import is_silent
from asyncgroup.producer.batches.wake_ups import WakeUps
from asyncgroup.producer.records.router import Router
from asyncgroup.producer.sending.delivery_tracker import DeliveryTracker
from asyncgroup.producer.sending.sender import Sender
from asyncgroup.producer.transactions.produce_transaction import ProduceTransaction
from asyncgroup.producer.transactions.state import TransactionManager

__all__ = ["RecordPath", "loop_time"]


def loop_time() -> float:
    """Return the time of the running event loop in seconds."""
    return asyncio.get_running_loop().time()


class RecordPath:
    """All records of a producer that are not done yet. `spawn` runs coroutine functions in tasks that the producer ends.

    `on_transaction_change()` is called after each change of the state of its transactions.
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ProducerConfig,
        *,
        hooks: Hooks,
        spawn: Callable[..., None],
        wake_ups: WakeUps,
        rng: random.Random,
        budget: MemoryBudget | None,
        on_transaction_change: Callable[[], None],
    ) -> None:
        self._batch_hooks = hooks.with_listener("on_produce", "on_delivered", "on_batch_done")
        self._spawn = spawn
        self._budget = budget
        self.accumulator = RecordAccumulator(config, loop_time, producer_memory(config, budget))
        self.memory = self.accumulator.memory
        self.deliveries = DeliveryTracker()
        self.transaction: ProduceTransaction | None = None
        """The transaction that all records belong to; None without a transactional id."""
        if config.transactional_id is not None:
            manager = TransactionManager(config.transactional_id, on_transaction_change)
            self.transaction = ProduceTransaction(manager, self.fail_all)
        self.sender = Sender(
            client,
            config,
            self.accumulator,
            spawn,
            wake_ups,
            self._on_batch_done,
            self.deliveries.on_batch_split,
            self.transaction,
        )
        self.router = Router(
            client,
            config,
            self.accumulator,
            spawn=spawn,
            rng=rng,
            on_lost=self.deliveries.add_lost,
            on_batch_ready=self.sender.wake,
            on_failed=None if self.transaction is None else self.transaction.on_record_failed,
        )

    def __repr__(self) -> str:
        return f"<RecordPath {self.accumulator!r}>"

    @property
    def pending(self) -> int:
        """The number of records that are not done yet."""
        return self.accumulator.records + self.router.waiting

    def start(self) -> None:
        """Start the tasks that send, and that forget idle topics."""
        self.accumulator.clock = asyncio.get_running_loop().time
        self.sender.start()
        self._spawn(self.router.forget_idle, name="forget idle topics")
        if self._budget is not None:
            add_listener(self._budget, self.sender.wake)

    def close(self) -> None:
        """Forget the topics; the tasks have ended."""
        self.router.close()
        if self._budget is not None:
            remove_listener(self._budget, self.sender.wake)

    def wake(self) -> None:
        """Plan again: batches may be sent that had to wait, also for their partition to be added to the transaction."""
        self.accumulator.schedule.on_partitions_added()
        self.sender.wake()

    def use_producer_id(self, producer_id: int, epoch: int) -> None:
        """Number all batches from 0 on under this producer id and epoch; nothing is in flight."""
        self.accumulator.remove_done()
        self.accumulator.use_transactional_id(producer_id, epoch)

    # --- partitions -------------------------------------------------------------------------------------------

    def choose(
        self, topic: str, key: bytes | None, size: int, avoided: Container[TopicPartition]
    ) -> TopicPartition | None:
        """Return the partition for a record of `size` bytes; None while the topic is not known.

        A record without a key goes to none of the `avoided` partitions, if there are others. Raises the partitioner's errors.
        """
        return self.router.choose(topic, key, None, size, lambda tp, _size: tp in avoided)

    def unwritten(self, topic: str) -> set[TopicPartition]:
        """Return the partitions of a topic with records that are not done, and those without a leader.

        Not those that are not in the transaction yet: their records wait for the coordinator.
        """
        waiting = {batch.tp for batch in self.accumulator.incomplete if batch.tp.topic == topic}
        if self.transaction is not None:
            waiting &= self.transaction.manager.partitions
        return waiting | self.router.without_leader(topic)

    # --- wait ---------------------------------------------------------------------------------------------------

    async def wait_until_done(self) -> None:
        """Send all records without lingering, and wait until those accepted so far are done."""
        await self.router.wait_for_lookups()
        self.accumulator.close_open()
        self.sender.wake()
        await self.deliveries.wait(self.accumulator.incomplete)

    async def flush(self, refusal: AsyncGroupError) -> None:
        """Fail the callers that wait for room, and wait until all accepted records are done."""
        self.fail_waiting(lambda: copy_error(refusal))
        await self.wait_until_done()

    async def wait_idle(self) -> bool:
        """Wait until no Produce request is in flight; return whether the result of a batch is unknown."""
        await self.sender.wait_idle()
        return self.accumulator.remove_done()

    # --- results ------------------------------------------------------------------------------------------------

    def fail_waiting(self, make_error: Callable[[], Exception]) -> None:
        """Fail the callers that wait for memory or other limits, each with a separate error."""
        self.memory.fail(make_error)
        if self.accumulator.partition_limits is not None:
            self.accumulator.partition_limits.fail(make_error)

    def fail_records(self, error: Exception) -> None:
        """Fail all records that are not done."""
        self.sender.fail_all(error)
        self.router.fail_all(error)

    def fail_all(self, error: AsyncGroupError) -> None:
        """Fail all records that are not done, and the callers that wait for room."""
        self.fail_waiting(lambda: copy_error(error))
        self.fail_records(error)
        self.sender.wake()

    def abort_incomplete(self, why: str) -> None:
        """Fail all records that are not done when the producer is closed; `why` it does not wait any longer."""
        if not self.pending:
            return
        partitions = len({batch.tp for batch in self.accumulator.incomplete})
        error = ClosedError(
            f"the producer was closed with {self.pending} record{'s' if self.pending != 1 else ''} for {partitions} "
            f"partition{'s' if partitions != 1 else ''} not acknowledged ({why}); those that were sent may be in the log"
        )
        self.fail_records(error)

    def forget_lost(self) -> None:
        """Forget the lost records of `enqueue`: the error of their transaction reports them."""
        self.deliveries.take_lost()

    def take_lost(self) -> DeliveryFailedError | None:
        """Return an error with the records of `enqueue` that were lost since the last call, or None."""
        return self.deliveries.take_lost()

    def _on_batch_done(self, batch: ProducerBatch, error: Exception | None) -> None:
        silent = batch.count - len(batch.futures)
        if error is not None:
            silent += sum(map(is_silent, batch.futures))
            if silent:
                self.deliveries.add_lost(batch.tp, silent, error)
        self.deliveries.on_batch_done(batch)
        if self._batch_hooks is not None:
            self._emit(self._batch_hooks, batch, error)

    def _emit(self, hooks: Hooks, batch: ProducerBatch, error: Exception | None) -> None:
        hooks.emit("on_produce", *batch.tp, batch.count, error)
        if error is None:
            hooks.emit("on_delivered", *batch.tp, batch.base_offset, batch.count)
        latency = loop_time() - batch.created_at
        sizes = batch.plain_size, batch.wire_size
        result = BatchResult(
            *batch.tp, batch.count, *sizes, latency, batch.attempts, batch.base_offset, error
        )
        hooks.emit("on_batch_done", result)
