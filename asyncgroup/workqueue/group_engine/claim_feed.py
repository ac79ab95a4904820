"""ClaimFeed: one claim of a work queue, which gives its records to the queue and commits its window.

Records are offered while the queue has capacity. When the claim is revoked, its deliveries have time to end, and the last commit
has the window.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Final

from asyncgroup.errors import CommitFailedError, MemberLost, UsageError
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.group.sessions.session import Session
from asyncgroup.lifecycle import cancel_and_wait, run_until, start_task, wait_shielded, wait_within
from asyncgroup.model import Batch, Record
from asyncgroup.workqueue.copies import earlier_attempts, is_of_other_group
from asyncgroup.workqueue.delivery import Delivery, Work
from asyncgroup.workqueue.delivery_result import AckOutcome
from asyncgroup.workqueue.engine import OpenQueue
from asyncgroup.workqueue.group_engine.claim_guard import ClaimGuard
from asyncgroup.workqueue.group_engine.claim_window import ClaimWindow
from asyncgroup.workqueue.group_engine.crash_counts import CrashCounts, CrashedClaims
from asyncgroup.workqueue.partition_engine import PartitionEngine
from asyncgroup.workqueue.partition_work import PartitionWork
from asyncgroup.workqueue.receive_limits import ReceiveLimits
from asyncgroup.workqueue.statistics import PartitionStatistics

__all__ = ["ClaimFeed", "FeedParts"]

_log = logging.getLogger("asyncgroup.workqueue")

FULL: Final = 0.75
"""Share of the metadata's limit from which on no record above the window is delivered, as in parallel-consumer."""

NO_OFFSET: Final = 1 << 63
"""Beyond all offsets."""

CHECKS: Final = 4
"""The number of checks in `max_poll_interval` whether deliveries of a partition at its limits have ended."""


@dataclass(frozen=True, slots=True)
class FeedParts:
    """What the claims of a queue share."""

    group_id: str
    queue: OpenQueue
    limits: ReceiveLimits
    max_waiting: int
    """Records of a partition that may wait for their time."""
    migrate_from: str | None
    """The library whose commits are also understood, see `claim_window`."""
    crashed: CrashedClaims
    retry_topic: str | None
    note_ack: Callable[[], None]
    """Called for each acknowledgement: a commit has to follow."""
    on_copy_of_other_group: Callable[[], None]
    """Called for each record of the retry topic that is for another group."""
    max_poll_interval: float
    commits_start: bool
    """Whether partitions without a commit begin elsewhere than at the start of the log, so that the position is committed."""
    begins_at_end: bool
    """Whether partitions without a commit begin at the end of the log."""
    partition_count: Callable[[], int | None]
    """Returns the number of partitions of the topics; None if it is unknown."""
    idle_grace: float
    """Seconds without a partition after which the member has none for good."""
    metadata_limit: int
    """Bytes that the broker allows for the metadata of a commit."""


class ClaimFeed(PartitionEngine):
    """One claim of a queue."""

    def __init__(self, parts: FeedParts, session: Session, claim: Claim) -> None:
        self._parts = parts
        self._queue = parts.queue
        self._session = session
        self._claim = claim
        self.group_id = parts.group_id
        self.has_copies = claim.topic == parts.retry_topic
        self.window = ClaimWindow(
            session,
            claim,
            limit=parts.metadata_limit,
            migrate_from=parts.migrate_from,
            on_restart=self._on_restart,
        )
        self._batches: AsyncIterator[Batch] | None = None
        self._batches_for = 0  # partitions
        self._keeps_order = self._queue.settings.mode.in_order
        self._touch = self.window.on_change
        self._note_ack = parts.note_ack
        self._changed = asyncio.Event()  # there may be capacity, or a delivery has ended, or the claim has
        self.work: Work = PartitionWork(claim.tp, self.window.window, position=claim.position, engine=self)
        self._guard = ClaimGuard(self.work)
        self._queue.add(self.work)
        claim._inner.report_nothing()
        self._warned = False  # that retention deletes unacknowledged records
        self._lost: list[Delivery] = []
        """Deliveries that a seek or a truncation has ended: their handlers were cancelled, and may still run."""
        self._restarted_at = NO_OFFSET  # since the last batch was received
        self._end: int | None = (
            None  # the offset after the last record that had arrived when the records were forgotten
        )

    def __repr__(self) -> str:
        return f"<ClaimFeed {self.work!r}>"

    @property
    def skips_records(self) -> bool:
        """Whether the claim begins without a commit after other records."""
        return self.window.is_new and not self.has_copies and self._claim.initial_offset > 0

    # --- the engine's side of the partition -----------------------------------------------------------------------------

    def on_ack(self, record: Record) -> None:  # noqa: ARG002
        """The next commit has to contain the window."""
        self._touch()
        self._note_ack()

    def on_change(self) -> None:
        """The window has to be committed, but not soon."""
        self._touch()

    def on_capacity(self) -> None:
        """Go on feeding."""
        self._changed.set()

    def on_drain(self) -> None:
        """Look whether all deliveries have ended."""
        self._changed.set()

    async def commit(self) -> AckOutcome:
        """Commit the window now. Raises CommitFailedError."""
        await self.window.commit()
        return AckOutcome.COMMITTED

    def earlier_attempts(self, record: Record) -> int:
        """Return the number of deliveries that led to this copy."""
        return earlier_attempts(record)

    def skips(self, record: Record) -> bool:
        """Return `is_of_other_group`, and report that the retry topic is shared: nothing else says so."""
        found = is_of_other_group(self._session.group_id, record)
        if found:
            self._parts.on_copy_of_other_group()
        return found

    async def run(self) -> None:
        """Feed records until the claim ends, then wait until its deliveries have ended."""
        ended = start_task(self._claim.wait_ended(), name=f"{self._claim.tp}: end")
        ended.add_done_callback(lambda _: self._changed.set())
        try:
            await self._open()
            await self._feed()
            await self._drain()
        except asyncio.CancelledError:
            await self._give_up()
            raise
        finally:
            await cancel_and_wait(ended)
            await self._close()

    # --- begin ------------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Commit that the claim is open, before its first delivery; after a crash, count deliveries in advance.

        If no delivery is the last one, nothing has to be counted. But the first owner commits where it begins if that is not the
        start of the log, as Pulsar's cursor exists from the subscription on: the next owner would begin at a later position.
        """
        settings = self._queue.settings
        if settings.dead_letter_policy is not None:
            if self.window.was_open:
                # one partition may be acknowledged so often between two looks at all of them (`is_commit_worth`)
                records = 2 * settings.ack_group_size + settings.concurrency
                self._guard.count(CrashCounts(self.work, self.window, self._parts.crashed, records))
            self.window.open()
        elif self.window.is_new and self._parts.commits_start and not self.has_copies:
            self.window.touch()
        else:
            return
        opening = await run_until(self._claim.wait_ended(), self.window.commit(), f"{self._claim.tp}: open")
        if not opening.cancelled() and (error := opening.exception()) is not None:
            if not isinstance(error, CommitFailedError | UsageError):
                raise error
            _log.warning("%s: could not commit the start of the claim: %s", self._claim.tp, error)

    # --- records ----------------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        claim = self._claim
        while True:
            if not self._has_capacity():
                await self._wait_for_capacity()
                if claim.ended:
                    return
                continue
            batch = await anext(self._next_batches(), None)
            if batch is None:
                return
            self._restarted_at = NO_OFFSET
            if self._is_still_handled() and not await self._wait_for_handlers():
                return
            records, end = list(batch), batch.last_offset
            if self._restarted_at <= end:  # during the wait: the rest is read again, or no longer in the log
                records = [record for record in records if record.offset < self._restarted_at]
                end = self._restarted_at - 1
            if records:
                self._offer(records, end)

    def _next_batches(self) -> AsyncIterator[Batch]:
        """Return the claim's batches, with the limits of this number of partitions."""
        limits = self._parts.limits
        if self._batches is None or self._batches_for != limits.partitions:
            self._batches_for = limits.partitions
            self._batches = self._claim.batches(
                max_records=limits.batch_records, max_bytes=limits.batch_bytes
            )
        return self._batches

    def _offer(self, records: list[Record], end: int) -> None:
        """Give records to the queue; the log has no more of them before the offset `end`."""
        self.window.note_arrival(self.work.position, records, end)
        self._queue.offer(self.work, records)

    def _has_capacity(self) -> bool:
        work, limits = self.work, self._parts.limits
        work.refill_at = limits.records - limits.batch_records
        work.refill_bytes = limits.bytes if work.bytes > limits.bytes else -1
        if self._is_still_handled() or work.bytes > limits.bytes or self._is_at_max_waiting():
            return False
        # records that fail at once each time must not keep those after them in the log
        if (work.queued if self._keeps_order else work.unread) > work.refill_at:
            return False
        return not limits.on_demand or (not work.queued and self._queue.has_demand)

    def _is_still_handled(self) -> bool:
        """Whether handlers of deliveries that were lost by a seek still run: their records would be in two handlers."""
        if self._lost:
            self._lost = [delivery for delivery in self._lost if self._queue.handles(delivery)]
        return bool(self._lost)

    async def _wait_for_handlers(self) -> bool:
        """Wait until they have ended; return whether the claim is live then."""
        while self._is_still_handled() and not self._claim.ended:
            await self._wait_for_capacity()
        return not self._claim.ended

    def _is_at_max_waiting(self) -> bool:
        """Whether as many records as allowed wait for their time, or for their turn after it."""
        return len(self.work.waiting) + len(self.work.retries) >= self._parts.max_waiting

    async def _wait_for_capacity(self) -> None:
        """Wait until there may be capacity; while deliveries end or handlers run, the claim does not count as stuck."""
        interval, before = self._parts.max_poll_interval, self._progress()
        seconds = interval / CHECKS if interval else None
        was_wanted = False
        if self._parts.limits.on_demand and not self.work.queued and not self._queue.has_demand:
            was_wanted = await self._wait_for_demand(seconds)
        else:
            self._changed.clear()
            await wait_within(self._changed, seconds)
        work, is_paused = self.work, self._queue.is_paused
        is_at_work = work.waiting or work.publishing or self._is_handled()
        if is_at_work or is_paused or was_wanted or before != self._progress():
            self._claim.renew()

    async def _wait_for_demand(self, seconds: float | None) -> bool:
        """Wait for a task that waits for a delivery, `seconds` at most; return whether there is one."""
        demand = self._queue.on_demand

        async def wanted() -> bool:
            if self._queue.has_demand:  # since before this task has started
                return True
            demand.clear()
            return await wait_within(demand, seconds)

        waiting = await run_until(self._claim.wait_ended(), wanted(), f"{self._claim.tp}: demand")
        return not waiting.cancelled() and waiting.result()

    def _progress(self) -> tuple[int, ...]:
        work = self.work
        return work.window.version, work.position, len(work.acquired), work.queued, work.renewals

    def _on_restart(self, offset: int) -> None:
        """The log has other records from `offset` on."""
        self._guard.restart(offset)
        self._lost += self._queue.restart(self.work, offset)
        self._parts.crashed.requeue()
        self._restarted_at = min(self._restarted_at, offset)

    def seek(self, offset: int) -> None:
        """Continue at `offset`: open deliveries are lost, and earlier records count as acknowledged."""
        self._queue.abandon_copies(self.work, is_over=False)
        self.window.seek(offset)
        self.work.position = offset
        self._claim.seek(offset)
        self._changed.set()

    def check_size(self) -> None:
        """Deliver nothing above the window while its encoding is nearly too large for a commit."""
        if not self._warned and self._is_behind_log_start():
            self._warned = True
            _log.warning(
                "%s: retention deletes records from offset %d on that are not acknowledged: after a restart they are lost; "
                "reconsume_later() copies records to the retry topic",
                self.work.tp,
                self.window.window.base,
            )
        is_full = self.window.size > FULL * self.window.limit
        if is_full != self._guard.is_full:
            self._guard.set_full(is_full=is_full)
            self._queue.requeue(self.work)

    def statistics(self) -> PartitionStatistics:
        """Return where the partition's records are."""
        work, window = self.work, self.window.window
        position = work.position if self._end is None else self._end
        return PartitionStatistics(
            tp=work.tp,
            base=window.base,
            lag=max(0, self._claim.lag + position - window.base - window.acked_above),
            queued=work.queued,
            acquired=len(work.acquired),
            waiting=len(work.waiting),
            publishing=work.publishing,
            window=window.end - window.base,
            metadata_bytes=self.window.size,
            is_full=self._guard.is_full,
            open_for=work.open_for(asyncio.get_running_loop().time()),
        )

    def statistics_at_end(self) -> PartitionStatistics:
        """Return them after the claim has ended: none of its records are here, but some may not be acknowledged."""
        return replace(self.statistics(), queued=0, acquired=0, waiting=0, publishing=0, open_for=0.0)

    def problems(self) -> list[str]:
        """Return what is wrong with the partition now, in words."""
        work, found = self.work, []
        if self._guard.is_full:
            found.append(
                f"{work.tp}: its acknowledged offsets take {self.window.size} of {self.window.limit} bytes of metadata, so "
                f"no record above them is delivered; the record at offset {self.window.window.base} delays the commit"
            )
        if self._is_at_max_waiting():
            found.append(f"{work.tp}: max_waiting={self._parts.max_waiting} records wait for their time")
        if self._is_behind_log_start():
            found.append(
                f"{work.tp}: offset {self.window.window.base} is not acknowledged, but the log start offset is "
                f"{self.window.log_start_offset}"
            )
        return found

    def _is_behind_log_start(self) -> bool:
        return self.window.window.base < self.window.log_start_offset

    # --- end ---------------------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Wait until all deliveries and handlers have ended, and copies are written."""
        if isinstance(self._claim.cause, MemberLost):
            self._lose()
        else:
            self._queue.close(self.work)
        while not self.work.is_idle or self._is_handled():
            self._changed.clear()
            await self._changed.wait()

    def _is_handled(self) -> bool:
        return self._queue.is_handled(self.work)

    async def _give_up(self) -> None:
        """Cancel the handlers of deliveries that did not end in time; their records are delivered again."""
        self._lose()
        self._queue.interrupt_all(self.work)
        while self._is_handled():
            self._changed.clear()
            await wait_shielded(start_task(self._changed.wait()))

    def _lose(self) -> None:
        """Take the partition from the queue: open deliveries are lost, handlers cancelled, copies given up."""
        self._note_end()
        self._queue.lose(self.work)
        self._parts.crashed.requeue()

    async def _close(self) -> None:
        """Remove the partition; unless the membership is lost, the last commit contains that the claim has ended in order."""
        await self._guard.aclose()
        self.forget()
        if self._queue.settings.dead_letter_policy is not None and not isinstance(
            self._claim.cause, MemberLost
        ):
            self.window.close()

    def forget(self) -> None:
        """Remove the partition from the queue, also if the claim was never consumed."""
        self._note_end()
        self._queue.remove(self.work)
        self._parts.crashed.requeue()

    def _note_end(self) -> None:
        if self._end is None:
            self._end = self.work.position
