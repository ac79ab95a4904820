"""Transactions of a producer: begin, add partitions, commit, abort; `transactions.offsets` adds offsets.

How a transaction ends: no more records are accepted. A commit waits until those accepted are acknowledged; an abort fails
them and waits for the Produce requests in flight, so that none is handled after the end. Then EndTxn is sent until it is
answered. A separate task does that, so a caller that is cancelled leaves no transaction half ended: it waits for the end,
for at most `close_timeout`.

One request of a transaction is in flight at a time, besides Produce.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    ClosedError,
    ErrorCode,
    ProducerFencedError,
    RequestTimedOut,
    TransactionOutcomeUnknown,
)
from asyncgroup.lifecycle import (
    add_note,
    cancel_and_wait,
    copy_error,
    describe_error,
    mark_retrieved,
    start_task,
)
from asyncgroup.log_events import log_fields
from asyncgroup.producer.open_transaction import OpenTransaction
from asyncgroup.producer.records.pipeline import RecordPipeline
from asyncgroup.producer.transactions.coordinator import Answer, TransactionCoordinatorClient, code_of
from asyncgroup.producer.transactions.ending import describe_outcome, is_stopped, outlast_cancellation
from asyncgroup.producer.transactions.offsets import TransactionOffsets
from asyncgroup.producer.transactions.requests import TransactionAction
from asyncgroup.producer.transactions.state import (
    NO_PRODUCER,
    ProducerIdentity,
    TransactionManager,
    TransactionPhase,
)

__all__ = ["TransactionClient"]

_log = logging.getLogger("asyncgroup.producer")


class TransactionClient:
    """Coroutines of one transactional id; `pipeline` has the producer's records, and `manager` their transaction.

    `spawn` runs coroutine functions in tasks that the producer ends.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ProducerConfig,
        pipeline: RecordPipeline,
        manager: TransactionManager,
        spawn: Callable[..., None],
    ) -> None:
        self._config = config
        self._pipeline = pipeline
        self._spawn = spawn
        self.manager = manager
        self._coordinator = TransactionCoordinatorClient(
            cluster, self.transactional_id, config.delivery_timeout, config.transaction_timeout
        )
        self._coordinator.on_retry = self._report_retry
        self._lock = asyncio.Lock()
        """Held during a request, so that EndTxn is sent after all others."""
        self.offsets = TransactionOffsets(
            self._coordinator, self.manager, self._lock, self._goes_on, self._on_failed_answer
        )
        self._ending: asyncio.Task[bool] | None = None  # commits or aborts the last transaction

    def __repr__(self) -> str:
        return f"<TransactionClient {self.manager!r}>"

    @property
    def transactional_id(self) -> str:
        """The producer's name."""
        return self.manager.transactional_id

    def _report_retry(self, error: AsyncGroupError) -> None:
        if self._pipeline.on_retry is not None:
            self._pipeline.on_retry("", error)

    # --- begin ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Obtain the producer id and epoch: earlier producers with this transactional id are fenced.

        Raises BrokerError, RequestTimedOut after `delivery_timeout`, ProducerFencedError.
        """
        self._spawn(self._add_partitions, name="partitions of transactions")
        self._spawn(self._watch_fencing, name="fencing")
        if (error := await self._initialize(NO_PRODUCER)) is not None:
            raise copy_error(error)

    async def _initialize(self, current: ProducerIdentity) -> AsyncGroupError | None:
        """Obtain the next epoch and use it; return an error, which is fatal."""
        answer = await self._coordinator.init_producer_id(current)
        if answer.producer is None:
            error = await self._error_of(answer)
            self.manager.fail_fatally(error)
            return error
        is_v2 = await self._coordinator.supports_v2()
        self._pipeline.use_producer_id(*answer.producer)
        self.manager.initialize(*answer.producer, is_v2=is_v2)
        return None

    async def begin(self) -> None:
        """Begin a transaction, after the end of the last one if that is under way. Raises as `check_ready`."""
        await self.wait_ended()
        self.manager.begin()

    # --- records --------------------------------------------------------------------------------------------------

    async def _add_partitions(self) -> None:
        while True:
            await self.manager.partitions_wanted.wait()
            self.manager.partitions_wanted.clear()
            async with self._lock:
                partitions = list(self.manager.new_partitions)
                if not partitions:
                    continue  # the transaction is aborted
                answer = await self._coordinator.add_partitions(
                    self.manager.producer, partitions, self._goes_on
                )
                if answer.error is None:
                    self.manager.on_partitions_added(partitions)
                    self._pipeline.wake()
                else:
                    await self._on_failed_answer(answer)

    def _goes_on(self, answer: Answer) -> bool:
        """Whether a request is repeated: while the transaction is aborted, only if its result is unknown."""
        return self.manager.may_add or answer.is_uncertain

    async def _watch_fencing(self) -> None:
        """When a broker has refused the epoch, fail all records with what the coordinator knows of the current one."""
        await self.manager.fenced.wait()
        self.manager.fail_fatally(await self._coordinator.fenced_error(self.manager.producer))

    # --- failures -------------------------------------------------------------------------------------------------

    async def _on_failed_answer(self, answer: Answer) -> AsyncGroupError:
        """A request of the open transaction failed; return the error for its caller."""
        error = await self._error_of(answer)
        if answer.is_uncertain:
            self.manager.on_unknown_result()
        if answer.action >= TransactionAction.FATAL:
            self.manager.fail_fatally(error)
        else:
            self.manager.fail(error, skips_end=answer.action is TransactionAction.REINITIALIZE)
        return error

    async def _error_of(self, answer: Answer) -> AsyncGroupError:
        assert answer.error is not None
        error: AsyncGroupError
        if answer.action is TransactionAction.FENCED:
            error = await self._coordinator.fenced_error(self.manager.producer)
        elif (
            code_of(answer.error) == ErrorCode.INVALID_TXN_STATE and answer.action is TransactionAction.FATAL
        ):
            error = await self._coordinator.error_of_lost_transaction(self.manager.producer, answer.error)
        elif answer.action in (TransactionAction.RETRY, TransactionAction.MOVED) and self._may_add_or_init:
            limit = f"delivery_timeout={self._config.delivery_timeout:g} s"
            error = RequestTimedOut(
                f"transactional id {self.transactional_id!r}: no success within {limit}: {answer.error}"
            )
        else:
            return answer.error
        if error is not answer.error:
            error.__cause__ = answer.error
        return error

    @property
    def _may_add_or_init(self) -> bool:
        return self.manager.may_add or self.manager.state is TransactionPhase.UNINITIALIZED

    # --- end ------------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit the transaction: wait until its records and offsets are written, then end it.

        If that is not possible, abort it and raise TransactionAbortedError with the cause. Raises ProducerFencedError,
        TransactionOutcomeUnknown, BrokerError: then the producer can only be closed.
        """
        if self.manager.state in (TransactionPhase.IN_TRANSACTION, TransactionPhase.COMMITTING):
            if self.manager.state is TransactionPhase.IN_TRANSACTION:  # else another task is detaching it
                self.manager.begin_commit()
            try:
                await self._pipeline.flush(self.manager.refusal())
                await self.offsets.wait()
            except BaseException as error:
                await self.abort(error)
                raise
        if self.manager.state is TransactionPhase.COMMITTING and await self._end(commit=True):
            return
        if self.manager.state is TransactionPhase.ABORTABLE_ERROR:
            aborted = self.manager.aborted_error()
            await self.abort(aborted)
            if not self._is_left_open:
                raise aborted
        if self.manager.state is TransactionPhase.FATAL_ERROR:
            raise self.manager.refusal()
        if self.manager.state is TransactionPhase.DETACHED:
            return
        raise ClosedError("the producer was closed before its transaction was committed")

    async def abort(self, cause: BaseException | None = None) -> None:
        """Abort the transaction because of `cause`; the next transaction raises a failure to do so, which is logged.

        After a cancellation this takes at most `close_timeout`; if the end is still under way then, it goes on.
        """
        if self.manager.is_open or self.manager.state is TransactionPhase.COMMITTING:
            self._begin_abort()
            if isinstance(cause, asyncio.CancelledError):
                await self._outlast(self._start_end(commit=False), cause, commit=False)
            else:
                await self._end(commit=False)
        if self._is_left_open:
            fields = log_fields(
                "transaction_failed", transactional_id=self.transactional_id, error=self.manager.error
            )
            _log.warning(
                "transactional id %s: the transaction was not aborted: %s",
                self.transactional_id,
                self.manager.error,
                extra=fields,
            )

    @property
    def _is_left_open(self) -> bool:
        """Whether a transaction could not be aborted; fencing aborts it."""
        is_fenced = isinstance(self.manager.error, ProducerFencedError)
        return self.manager.state is TransactionPhase.FATAL_ERROR and not is_fenced

    def _begin_abort(self) -> None:
        error = self.manager.aborted_error()
        self.manager.begin_abort()
        self._pipeline.fail_all(error)

    @property
    def _is_end_sent(self) -> bool:
        return self._ending is not None and not self._ending.done()

    async def wait_ended(self) -> None:
        """Wait for the end of the last transaction if it is under way."""
        if self._ending is not None:
            await asyncio.wait([self._ending])

    def _start_end(self, *, commit: bool) -> asyncio.Task[bool]:
        name = f"Producer: {'commit' if commit else 'abort'}"
        self._ending = start_task(self._end_or_abort(commit=commit), name=name)
        self._ending.add_done_callback(mark_retrieved)
        return self._ending

    async def _end(self, *, commit: bool) -> bool:
        ending = self._start_end(commit=commit)
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError as cancelled:
            # the caller was not cancelled: `stop` has ended the task
            if is_stopped(ending):
                if commit:
                    raise TransactionOutcomeUnknown(
                        self.transactional_id, "the producer was closed", commit=True
                    ) from None
                return False
            await self._outlast(ending, cancelled, commit=commit)
            raise

    async def _outlast(
        self, ending: asyncio.Task[bool], cancelled: asyncio.CancelledError, *, commit: bool
    ) -> None:
        await outlast_cancellation(ending, self._config.close_timeout)
        outcome = describe_outcome(ending, commit=commit, error=self.manager.error)
        add_note(cancelled, f"transactional id {self.transactional_id!r}: the transaction {outcome}")

    async def _end_or_abort(self, *, commit: bool) -> bool:
        """End the transaction; return whether it has ended as requested. A refused commit is aborted, then raised."""
        if await self._end_once(commit=commit):
            return True
        if self.manager.state is TransactionPhase.ABORTABLE_ERROR:
            aborted = self.manager.aborted_error()
            self._begin_abort()
            await self._end_once(commit=False)
            if not self._is_left_open:
                raise aborted
        return False

    async def _end_once(self, *, commit: bool) -> bool:
        manager = self.manager
        if not commit:
            # a Produce that arrives after EndTxn would begin a transaction that nothing ends (KIP-890)
            has_gap = await self._pipeline.wait_idle()
            await self.offsets.wait()
            if manager.state is TransactionPhase.FATAL_ERROR:
                return False
            manager.begin_abort(has_gap=has_gap)
        async with self._lock:
            # another request may have failed while this one waited for the lock
            if commit and manager.state is not TransactionPhase.COMMITTING:
                return False
            next_producer = None
            # the coordinator has no transaction without partitions, and one that it has lost is aborted by InitProducerId
            if manager.is_started and not (manager.skips_end and not commit):
                answer = await self._coordinator.end(
                    self.manager.producer, commit=commit, is_v2=manager.is_v2
                )
                if answer.error is not None and not await self._on_end_failed(answer, commit=commit):
                    return False
                next_producer = answer.producer
            if not commit:
                self._pipeline.deliveries.take_lost()  # the error of the transaction reports them
            await self._complete(next_producer)
        return True

    async def _on_end_failed(self, answer: Answer, *, commit: bool) -> bool:
        """EndTxn failed; return whether the end goes on, by InitProducerId."""
        error = await self._error_of(answer)
        is_unknown = answer.action in (TransactionAction.RETRY, TransactionAction.MOVED)
        is_unknown |= commit and answer.leaves_commit_unknown
        if not is_unknown and answer.action in (TransactionAction.ABORT, TransactionAction.REINITIALIZE):
            if commit:
                self.manager.fail(error, skips_end=answer.action is TransactionAction.REINITIALIZE)
                return False
            self.manager.skips_end = True
            return True
        if is_unknown:
            unknown = TransactionOutcomeUnknown(self.transactional_id, describe_error(error), commit=commit)
            unknown.__cause__ = error
            error = unknown
        self.manager.fail_fatally(error)
        return False

    async def _complete(self, next_producer: ProducerIdentity | None) -> None:
        """Be ready for the next transaction: with the next epoch, if it is needed."""
        manager = self.manager
        is_v2 = await self._coordinator.supports_v2()
        if next_producer is not None:
            self._pipeline.use_producer_id(*next_producer)
        manager.complete(producer=next_producer, is_v2=is_v2)
        # without EndTxn, or where that keeps the epoch, InitProducerId makes the next one (KIP-360)
        if manager.state is TransactionPhase.UNINITIALIZED:
            await self._initialize(self.manager.producer)

    # --- detach ---------------------------------------------------------------------------------------------------

    async def detach(self) -> OpenTransaction:
        """Write everything, and leave the transaction open; see `Producer.detach_transaction`."""
        self.manager.check_open("detach_transaction")
        self.manager.begin_commit()
        try:
            await self._pipeline.flush(self.manager.refusal())
            await self.offsets.wait()
        except BaseException as error:
            # no record may be written after it was refused, so the transaction cannot go on
            self.manager.fail(AsyncGroupError(f"detach_transaction failed: {describe_error(error)}"))
            raise
        if self.manager.state is not TransactionPhase.COMMITTING:
            raise self.manager.refusal()
        self.manager.detach()
        version = 2 if self.manager.is_v2 else 1
        return OpenTransaction(
            self.transactional_id, *self.manager.producer, version, has_writes=self.manager.is_started
        )

    async def abort_open(self) -> None:
        """Abort an open transaction, and wait for the end of one that is ending."""
        is_flushing = self.manager.state is TransactionPhase.COMMITTING and not self._is_end_sent
        if self.manager.is_open or is_flushing:
            self._begin_abort()
            self._start_end(commit=False)
        await self.wait_ended()

    async def stop(self) -> None:
        """End all tasks. A transaction that is open then is left to its timeout."""
        await cancel_and_wait(*filter(None, (self._ending, *self.offsets.tasks)))
        self.manager.close()
