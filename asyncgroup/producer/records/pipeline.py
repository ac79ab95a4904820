"""All that follows the call of a producer: the lookup of topics, batches, the sender, the results, and the state of transactions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Container, Sequence

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import AsyncGroupError, ClosedError
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import copy_error
from asyncgroup.memory.memory_budget import MemoryBudget
from asyncgroup.memory.pending_limits import producer_memory
from asyncgroup.model import Header, MillisClock, TopicPartition
from asyncgroup.producer.arguments import copy_headers
from asyncgroup.producer.batches.accumulator import RecordAccumulator
from asyncgroup.producer.batches.results import CallbackQueue
from asyncgroup.producer.records.router import Router
from asyncgroup.producer.sending.deliveries import DeliveryTracker
from asyncgroup.producer.sending.sender import Sender
from asyncgroup.producer.transactions.state import TransactionManager, TransactionPhase

__all__ = ["RecordPipeline", "loop_time"]


def loop_time() -> float:
    """Return the time of the running event loop in seconds."""
    return asyncio.get_running_loop().time()


class RecordPipeline:
    """All records of a producer that are not done yet, and whether it accepts more.

    `spawn` runs coroutine functions in tasks that the producer ends. `clock` returns the timestamp (ms) of records that have none.
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ProducerConfig,
        *,
        hooks: Hooks,
        spawn: Callable[..., None],
        clock: MillisClock,
        rng: random.Random,
        budget: MemoryBudget | None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.random = rng
        self._spawn = spawn
        self._budget = budget
        self.is_open = False
        """Whether the producer is open."""
        self.is_accepting = False
        """Whether records are accepted: the producer is open and, with a transactional id, in a transaction."""
        self._failure: ClosedError | None = None  # of `end`
        self.on_retry: Callable[[str, Exception], object] | None = None
        """See `watch_retries`."""
        self.transaction: TransactionManager | None = None
        """The transaction that all records belong to; None without a transactional id."""
        if config.transactional_id is not None:
            self.transaction = TransactionManager(
                config.transactional_id, self.fail_all, self._update_accepting
            )
        self.callbacks = CallbackQueue()
        self.accumulator = RecordAccumulator(config, loop_time, producer_memory(config, budget))
        self.memory = self.accumulator.memory
        self.deliveries = DeliveryTracker(hooks.with_listener("on_produce", "on_delivered", "on_batch_done"))
        self.sender = Sender(
            client, config, self.accumulator, spawn, self.callbacks, self.deliveries, self.transaction
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
        return f"<RecordPipeline {self.accumulator!r}>"

    @property
    def load(self) -> int | None:
        """The bytes of buffer memory that are in use, for metrics; None if the producer is not open."""
        return self.memory.used if self.is_open else None

    @property
    def has_failed(self) -> bool:
        """Whether a transactional producer can only be closed: the error, which all calls raise, reports the lost records."""
        return self.transaction is not None and self.transaction.state is TransactionPhase.FATAL_ERROR

    @property
    def pending(self) -> int:
        """The number of records that are not done yet."""
        return self.accumulator.records + self.router.waiting

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the tasks that send, and that forget idle topics."""
        self.accumulator.clock = asyncio.get_running_loop().time
        self.callbacks.start()
        self.sender.start()
        self._spawn(self.router.forget_idle, name="forget idle topics")
        if self._budget is not None:
            self._budget._inner.add_listener(self.sender.wake)

    def accept(self) -> None:
        """Accept records from now on."""
        self.is_open = True
        self._update_accepting()

    def refuse(self) -> None:
        """Accept no more records."""
        self.is_open = self.is_accepting = False

    def _update_accepting(self) -> None:
        self.is_accepting = self.is_open and (
            self.transaction is None or self.transaction.state is TransactionPhase.IN_TRANSACTION
        )

    def refusal(self) -> AsyncGroupError:
        """Return why no record is accepted."""
        if self.transaction is None or not self.is_open:
            return self.closed_error()
        return self.transaction.refusal()

    def closed_error(self) -> ClosedError:
        """Return the error of calls of a producer that is not open."""
        if self._failure is not None:
            return copy_error(self._failure)
        return ClosedError("the producer is closed, or was never entered with `async with`")

    def check_accepting(self) -> None:
        """Raise unless records are accepted."""
        if not self.is_accepting:
            raise self.refusal()

    def fail(self, error: Exception) -> None:
        """Send nothing more: all records that are not acknowledged fail with `error`, and no more are accepted."""
        self.refuse()
        # first the callers that wait: the memory of failed records would let them in
        self.fail_waiting(self.closed_error)
        self.fail_records(error)

    def end(self, error: ClosedError) -> None:
        """Send nothing more: all records that are not acknowledged, and all later calls, raise `error`."""
        self._failure = error
        self.fail(error)

    def watch_retries(self, on_retry: Callable[[str, Exception], object]) -> None:
        """Call `on_retry(topic, error)` with each error after which an attempt is repeated, long before `delivery_timeout`.

        The topic is that of the records; it is empty for requests of a transaction.
        """
        self.on_retry = on_retry
        self.sender.watch_retries(lambda tp, error: on_retry(tp.topic, error))

    def close(self) -> None:
        """Forget the topics; the tasks have ended."""
        self.router.close()
        if self._budget is not None:
            self._budget._inner.remove_listener(self.sender.wake)

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
            waiting &= self.transaction.partitions
        return waiting | self.router.without_leader(topic)

    # --- wait ---------------------------------------------------------------------------------------------------

    def before_wait(self) -> None:
        """Raise unless records are accepted; send lingering batches, because they hold what the caller waits for."""
        if not self.is_accepting:
            raise self.refusal()
        self.sender.timer.wake()

    async def wait_for_memory(self, size: int, headers: Sequence[Header] = ()) -> Sequence[Header]:
        """Wait until `size` bytes are reserved for a record; return its headers as they are now."""
        self.before_wait()
        headers = copy_headers(headers)
        await self.memory.reserve(size)
        return headers

    async def wait_until_done(self) -> None:
        """Send all records without lingering, and wait until those accepted so far are done."""
        # records that wait for a lookup are in no batch yet
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
