"""CopyTransactions: a copy and the acknowledgement of its original are committed in the same transaction (KIP-98, KIP-447).

A transaction takes the copies that wait for one topic. When they are written, it commits for each partition of their
originals what the window of the claim would commit if the originals were acknowledged; ordinary commits of these partitions
wait until it has ended (`workqueue/group_engine/window_transaction.py`). So after a crash at any point readers with `read_committed` see the
copy exactly once, as the group's offsets have the acknowledgement if and only if the copy is visible.

- An aborted transaction acknowledges nothing, and its copies are tried again. `copy_queue` decides which of them are tried
  together: a copy that is refused, and a partition that does not answer, delay the others once.
- Ordinary commits of the partitions of its originals wait for its end only from the moment when all its copies are written. So a
  partition that cannot be written delays no acknowledgement.
- After ProducerFencedError and TransactionOutcomeUnknown a new producer with the same transactional id is opened, whose
  InitProducerId aborts the last transaction if it is open, and waits for its end if that has begun
  (`TransactionCoordinator.handleInitProducerId`, KIP-98). Kafka Streams closes its tasks
  then and begins again at the committed offsets (`StreamThread`, TaskMigratedException). Here the committed offset is fetched
  and compared with the one in the transaction: the originals are acknowledged, or the copies are tried again.
- A partition that is revoked before the commit was sent makes it abort; after that nothing more of the claim is committed,
  and the next owner waits for the outcome (`require_stable` of OffsetFetch, KIP-447).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    DeliveryFailedError,
    ErrorCode,
    RequestTimedOut,
    TransactionAbortedError,
)
from asyncgroup.group.transactions.errors import FailureAction, failure_action
from asyncgroup.lifecycle import cancel_and_wait, describe_error, run_until, start_task, wait_within
from asyncgroup.model import RecordMetadata, TopicPartition
from asyncgroup.offsets import GROUP_LANE
from asyncgroup.offsets.fetch_offsets import fetch_commits
from asyncgroup.producer import Producer
from asyncgroup.workqueue.engine import OnWritten, OutgoingCopy
from asyncgroup.workqueue.group_engine.claim_window import ClaimWindow
from asyncgroup.workqueue.group_engine.copy_batch import (
    CopiesFailed,
    CopyBatch,
    Stopped,
    WaitingCopy,
    failed_copies,
    fenced_reason,
    shrinks,
)
from asyncgroup.workqueue.group_engine.copy_queue import TRIAL_TIME, CopyQueue
from asyncgroup.workqueue.publisher import RETRIES

__all__ = ["CopyTransactions"]

_log = logging.getLogger("asyncgroup.workqueue")


class CopyTransactions:
    """A CopyWriter that writes copies in transactions; those of different topics are in different ones.

    - `make_producer` creates a transactional producer, always with the same transactional id.
    - `time_limit`: seconds after which a transaction that is not complete is aborted: the producer's transaction timeout.
    - `send_limit`: seconds for the copies of one, without their offsets; no more than `time_limit`.
    - `window_of(tp)` returns the window of a claim of the present session.
    - `on_error(error)` is called for errors that concern no single copy, `on_failure(error)` for those that end the queue:
      bugs, and with `raises_fenced` ProducerFencedError, as another queue may have the same transactional id.
    - `on_end()` is called when acknowledgements that waited for a transaction have to be committed.
    """

    is_transactional = True

    def __init__(
        self,
        client: ClusterClient,
        group_id: str,
        make_producer: Callable[[], Producer],
        *,
        time_limit: float,
        send_limit: float,
        raises_fenced: bool,
        window_of: Callable[[TopicPartition], ClaimWindow | None],
        on_error: Callable[[AsyncGroupError], None],
        on_failure: Callable[[Exception], None],
        on_end: Callable[[], None],
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._make_producer = make_producer
        self._time_limit = time_limit
        self._send_limit = min(time_limit, send_limit)
        self._raises_fenced = raises_fenced
        self._on_error = on_error
        self._on_failure = on_failure
        self._on_end = on_end
        self._producer = make_producer()
        self._queue = CopyQueue(window_of, self._place)
        self._tracked: set[str] = set()
        """Topics with stalled partitions: they stay in the metadata, so that a new producer knows which copies go there."""
        self._is_wanted = asyncio.Event()
        self._batch: CopyBatch | None = None
        """The copies of the transaction that is open, or whose outcome is not known yet."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<CopyTransactions of {self._group_id!r}: {len(self._queue)} copies wait, {self._batch}>"

    # --- life -------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the producer, which fences an earlier one with the same transactional id, and start the task."""
        await self._producer.__aenter__()
        self._task = start_task(self._run(), name=f"work queue {self._group_id}: transactions")

    async def aclose(self) -> None:
        """Abort the open transaction, for at most `close_timeout` of the producer, and close. Safe to call twice."""
        self._is_closed = True
        if self._task is None:
            return
        if self._batch is not None:
            self._batch.is_stopped.set()
        await cancel_and_wait(self._task)
        self._fail_waiting()
        self._track(set())
        with contextlib.suppress(DeliveryFailedError):  # copies that were given up
            await self._producer.aclose()

    def _fail_waiting(self) -> None:
        self._is_closed = True
        batch = self._batch
        waiting = [*(batch.copies if batch is not None else ()), *self._queue.clear()]
        if batch is not None and batch.is_ending:
            for window in batch.windows.values():
                window.transaction.give_up()
        for copy in waiting:
            copy.fail(self._closed_error())

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the transactions of work queue {self._group_id!r} are closed")

    # --- copies -----------------------------------------------------------------------------------------------------------

    async def write(
        self, tp: TopicPartition, offset: int, copy: OutgoingCopy, on_written: OnWritten, *, alone: bool
    ) -> RecordMetadata:
        """Write the copy in one of the next transactions; `on_written` is called when that is committed."""
        if self._is_closed:
            raise self._closed_error()
        waiting = WaitingCopy(tp, offset, copy, on_written, alone)
        self._queue.add(waiting)
        self._is_wanted.set()
        return await waiting.outcome

    def abandon(self, tp: TopicPartition, offset: int, *, is_over: bool) -> None:
        """Give up copies of a partition: abort the transaction that has some, unless its commit may have been sent.

        In that case nothing more of the claim is committed if it ends (`is_over`).
        """
        batch = self._batch
        for copy in (*self._queue, *(batch.copies if batch is not None else ())):
            copy.is_given_up |= copy.tp == tp and copy.offset >= offset
        self._queue.drop_given_up()
        if batch is None or tp not in batch.windows:
            return
        if not batch.is_ending:
            batch.is_stopped.set()
            batch.end(is_committed=False)
        elif is_over:
            batch.windows[tp].transaction.give_up()

    def passes(self, error: Exception) -> bool:
        """Whether the next transaction may succeed."""
        return failure_action(error) is not FailureAction.RAISE

    def note_retry(self, topic: str) -> None:
        """The producer repeats a request: if it is not one for records of a topic, a coordinator has failed."""
        if self._batch is not None and not topic:
            self._batch.has_coordinator_failed = True

    # --- the task ---------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            now = asyncio.get_running_loop().time
            while not self._is_closed:
                await wait_within(self._is_wanted, self._queue.seconds_to_trial(now()))
                began = now()
                batch = self._batch = self._queue.next_batch(began)
                self._track(self._queue.stalled_topics)
                if batch is None:
                    self._is_wanted.clear()
                    continue
                await self._run_batch(batch)
                self._batch = None
                self._queue.note_end(batch, now(), now() - began)
                self._is_wanted.set()  # it may have left others, or put some back
                if any(window.transaction.is_dirty for window in batch.windows.values()):
                    self._on_end()
        except Exception as error:  # noqa: BLE001  a bug: the copies must not wait for this task
            _log.exception("%r: bug", self)
            self._fail_waiting()
            self._on_failure(error)

    def _place(self, copy: WaitingCopy) -> TopicPartition | None:
        """Return the partition that the producer chooses for a copy; None if the topic is not known to it yet."""
        topic, _, key, _, _ = copy.record
        try:
            return self._producer._inner.choose(topic, key, copy.size, self._queue.stalled)
        except Exception:  # noqa: BLE001  a partitioner is user code: `send` raises it again
            return None

    def _track(self, topics: set[str]) -> None:
        self._client.track(topics - self._tracked)
        self._client.untrack(self._tracked - topics)
        self._tracked = topics

    async def _run_batch(self, batch: CopyBatch) -> None:
        error: Exception | None = None
        try:
            async with self._producer.transaction():
                try:
                    await self._prepare(batch)
                except BaseException:
                    batch.end(is_committed=False)  # also if the abort fails
                    raise
                batch.is_ending = True
        except Stopped:
            pass
        except Exception as failure:  # noqa: BLE001  `_on_failed` decides
            error = failure
        else:
            self._committed(batch)
            return
        if error is not None and self._raises_fenced and (fenced := fenced_reason(error)) is not None:
            self._fail_waiting()
            self._on_failure(fenced)
        elif error is not None and batch.is_ending and not isinstance(error, TransactionAbortedError):
            await self._resolve(batch, error)
        else:
            batch.end(is_committed=False)
            await self._on_failed(batch, error)

    async def _prepare(self, batch: CopyBatch) -> None:
        """Write the copies and the offsets, until the batch is stopped."""
        preparing = await run_until(batch.is_stopped.wait(), self._fill(batch), "copies")
        if batch.is_stopped.is_set():
            raise Stopped
        if preparing.cancelled():
            raise self._closed_error()  # of the producer: its records were cancelled
        preparing.result()

    async def _fill(self, batch: CopyBatch) -> None:
        deadline = asyncio.get_running_loop().time() + self._time_limit
        await self._send_copies(batch)
        try:
            async with asyncio.timeout_at(deadline):
                await self._send_offsets(batch)
        except TimeoutError:
            limit = f"within the time of a transaction, {self._time_limit:g} s"
            raise RequestTimedOut(f"the offsets of the originals were not written {limit}") from None

    async def _send_copies(self, batch: CopyBatch) -> None:
        """Send the copies, and wait for all of them. Raises CopiesFailed, also with those that are not written in time."""
        sends = {copy: start_task(self._send(copy), name=f"copy to {batch.topic}") for copy in batch.copies}
        late: dict[WaitingCopy, Exception] = {}
        errors: dict[WaitingCopy, Exception] = {}
        try:
            limit = min(self._send_limit, TRIAL_TIME) if batch.is_trial else self._send_limit
            await asyncio.wait(sends.values(), timeout=limit)
            for copy, sending in sends.items():
                if not sending.done():
                    where = copy.target or f"topic {batch.topic!r}"
                    late[copy] = RequestTimedOut(
                        f"{where}: no response within the time of a transaction, {limit:g} s"
                    )
                elif isinstance(error := sending.exception(), Exception):
                    errors[copy] = error
                else:
                    batch.note_written(copy, sending.result())
            if late:
                now = asyncio.get_running_loop().time()
                self._queue.note_stalled(batch, self._producer._inner.unwritten(batch.topic), now)
        finally:
            if len(batch.metadata) < len(sends):
                await cancel_and_wait(*sends.values())
        if late or errors:
            raise CopiesFailed(late | errors)

    async def _send(self, copy: WaitingCopy) -> RecordMetadata:
        topic, value, key, headers, timestamp = copy.record
        partition = None if copy.target is None else copy.target.partition
        return await self._producer.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
        )

    async def _send_offsets(self, batch: CopyBatch) -> None:
        if batch.is_stopped.is_set():
            raise Stopped
        for window in batch.windows.values():
            window.transaction.begin()
        for window in batch.windows.values():
            await window.transaction.ready()
        errors: dict[WaitingCopy, Exception] = {}
        for tp, window in batch.windows.items():
            value = window.transaction.value(batch.offsets_of(tp))
            if value is None:
                what = f"group {self._group_id!r}, {tp}: the acknowledged offsets with that of the original"
                too_large = BrokerError(ErrorCode.OFFSET_METADATA_TOO_LARGE, what)
                errors |= {copy: too_large for copy in batch.copies if copy.tp == tp}
            else:
                batch.values[tp] = value
        if errors:
            raise CopiesFailed(errors)
        session = next(iter(batch.windows.values())).session
        await self._producer.send_offsets(session._inner.group_offsets(batch.values))

    # --- ends of a transaction --------------------------------------------------------------------------------------------

    def _committed(self, batch: CopyBatch) -> None:
        """The transaction is committed: acknowledge the originals, before any other commit of their partitions."""
        for copy, metadata in batch.metadata.items():
            copy.written(metadata)
        self._queue.note_written(batch.written)
        batch.end(is_committed=True)
        self._client.hooks.emit("on_commit", self._group_id, batch.values, None)

    async def _on_failed(self, batch: CopyBatch, error: Exception | None) -> None:
        """Nothing was committed: fail the copies that caused it, and repeat the others in the next transactions."""
        failed = {} if error is None or shrinks(batch, error) else failed_copies(batch, error)
        if error is not None and not failed:
            _log.info("group %s: a transaction of copies is repeated: %s", self._group_id, error)
            await asyncio.sleep(RETRIES.initial)
        for copy, reason in failed.items():
            copy.fail(reason)
        self._queue.note_written(batch.written)
        self._queue.repeat(batch.copies)
        self._track(self._queue.stalled_topics)
        if self._needs_producer:
            await self._reopen()

    @property
    def _needs_producer(self) -> bool:
        return self._producer._inner.has_failed

    async def _resolve(self, batch: CopyBatch, error: Exception) -> None:
        """The transaction may be committed: have it completed or aborted, then see which."""
        _log.warning("group %s: %s", self._group_id, describe_error(error))
        await self._reopen()
        if await self._is_stored(batch):
            self._committed(batch)
            return
        batch.end(is_committed=False)
        for copy in batch.copies:
            copy.fail(error)

    async def _is_stored(self, batch: CopyBatch) -> bool:
        """Whether the group has the offsets of the transaction.

        No other member has committed the partitions that this member still has, and no commit without the originals is equal.
        """
        tries = 0
        while live := [tp for tp, window in batch.windows.items() if window.transaction.is_live]:
            try:
                found = await fetch_commits(
                    self._client, self._group_id, live, lane=GROUP_LANE, require_stable=True
                )
            except AsyncGroupError as error:
                tries += 1
                await self._pause(tries, error)
                continue
            stored = {tp: (commit.committed.offset, commit.raw) for tp, commit in found.items()}
            return any(stored.get(tp) == batch.values[tp][:2] for tp in live)
        return False

    async def _reopen(self) -> None:
        """Replace the producer: the next one, with the same transactional id, ends what this one left open."""
        tries = 0
        while True:
            with contextlib.suppress(DeliveryFailedError):
                await self._producer.aclose(drain=False)
            self._producer = self._make_producer()
            try:
                await self._producer.__aenter__()
            except AsyncGroupError as error:
                tries += 1
                await self._pause(tries, error)
            else:
                return

    async def _pause(self, tries: int, error: AsyncGroupError) -> None:
        _log.warning("group %s: the transactions of copies wait: %s", self._group_id, describe_error(error))
        self._on_error(error)
        await asyncio.sleep(RETRIES.delay(tries))
