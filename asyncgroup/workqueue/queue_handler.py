"""The engine on a consumer group: claims feed the dispatcher with their records, and commit its windows.

`QueueHandler` is the handler of the group, a ClaimFeed one claim from its assignment to its end: its records are offered
while there is room; when it is revoked, deliveries in hand have their time to end, and the last commit has the window.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from asyncgroup.errors import CommitFailedError, MemberLost, UsageError
from asyncgroup.group.claim import Claim
from asyncgroup.group.claim_source import ClaimSource
from asyncgroup.group.claim_window import ClaimWindow
from asyncgroup.group.handler import Handler
from asyncgroup.group.session import Session
from asyncgroup.lifecycle import cancel_and_wait, run_until, wait_shielded, wait_within
from asyncgroup.model import Record, TopicPartition
from asyncgroup.workqueue.crash_counts import CrashCounts
from asyncgroup.workqueue.delivery import AckOutcome, Delivery
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.interceptors import QueueInterceptors
from asyncgroup.workqueue.partition_work import PartitionWork
from asyncgroup.workqueue.publisher import TopicPublisher
from asyncgroup.workqueue.queue_consumer import LocalDispatch
from asyncgroup.workqueue.receive_limits import ReceiveLimits
from asyncgroup.workqueue.receiver import Receiver
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.statistics import PartitionStatistics
from asyncgroup.workqueue.worker_pools import WorkerPools

__all__ = ["QueueHandler"]

_log = logging.getLogger("asyncgroup.workqueue")

FULL: Final = 0.75
"""Share of the metadata's limit from which on no record above the window is handed out, as in parallel-consumer."""

NO_OFFSET: Final = 1 << 63
"""Beyond all offsets."""

CHECKS: Final = 4
"""The number of checks in `max_poll_interval` whether deliveries of a partition at its limits have ended."""


class QueueHandler(Handler):
    """Connects the claims of a group to a dispatcher.

    `check_session` is awaited in `setup`; `metadata_limit` are the bytes that the broker allows for the metadata of a commit;
    `pools` run the handlers.
    """

    def __init__(
        self,
        settings: QueueSettings,
        dispatcher: Dispatcher,
        receiver: Receiver,
        publisher: TopicPublisher,
        pools: WorkerPools,
        local: LocalDispatch,
        interceptors: QueueInterceptors,
        *,
        retry_topic: str | None,
        max_poll_interval: float,
        commits_start: bool,
        metadata_limit: int,
        check_session: Callable[[Session], object],
    ) -> None:
        self.settings = settings
        self.dispatcher = dispatcher
        self.receiver = receiver
        self.publisher = publisher
        self.pools = pools
        self.local = local
        self.interceptors = interceptors
        self.retry_topic = retry_topic
        self.max_poll_interval = max_poll_interval
        self.commits_start = commits_start
        """Whether partitions without a commit begin elsewhere than at the start of the log, so that the position is committed."""
        self.metadata_limit = metadata_limit
        self.limits = ReceiveLimits(settings)
        self.session: Session | None = None
        """The present session, or None."""
        self._check_session = check_session
        self.has_claims = asyncio.Event()
        """Set when the first session has its claims, or has none."""
        self.feeds: dict[TopicPartition, ClaimFeed] = {}
        """By partition, from the assignment to the end of the claim."""

    def __repr__(self) -> str:
        return f"<QueueHandler: {len(self.feeds)} claims>"

    async def _open(self, session: Session, source: ClaimSource) -> None:  # noqa: ARG002
        """Read the retry topic from its start: no copy is skipped that was written before the first reader joined."""
        if self.retry_topic is not None:
            source.earliest_topics.add(self.retry_topic)

    async def setup(self, session: Session) -> None:
        """Check the session."""
        checked = self._check_session(session)
        if asyncio.iscoroutine(checked):
            await checked
        self.session = session
        if not session.claims:
            self.has_claims.set()

    async def on_assigned(self, session: Session, partitions: Sequence[TopicPartition]) -> None:
        """Restore the windows of the partitions, before their first fetch."""
        claims = {claim.tp: claim for claim in session.claims}
        for tp in partitions:
            self.feeds[tp] = ClaimFeed(self, session, claims[tp])
            self.interceptors.became_active(tp)
        self.limits.partitions = len(self.feeds)
        self.has_claims.set()

    async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002
        """Feed the dispatcher until the claim ends and its deliveries have ended."""
        await self.feeds[claim.tp].run()

    async def on_revoked(self, session: Session, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        """Forget the partitions."""
        self._forget(partitions)

    async def on_lost(self, session: Session, partitions: Sequence[TopicPartition]) -> None:  # noqa: ARG002
        """Forget the partitions."""
        self._forget(partitions)

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            if (feed := self.feeds.pop(tp, None)) is not None:
                feed.forget()
                self.interceptors.became_inactive(tp)
        self.limits.partitions = len(self.feeds)

    async def cleanup(self, session: Session) -> None:  # noqa: ARG002
        """Forget the session: only its last commit follows."""
        self.session = None

    def window_of(self, tp: TopicPartition) -> ClaimWindow | None:
        """Return the window of a claim of the present session."""
        feed = self.feeds.get(tp)
        return None if feed is None else feed.window

    @property
    def has_demand(self) -> bool:
        """Whether a task waits for a delivery; local consumers, which have inboxes, always do."""
        return self.local.is_used or self.receiver.has_waiters

    def note_commit(self) -> None:
        """Check after a commit which windows are nearly too large for the next one."""
        for feed in self.feeds.values():
            feed.check_size()


class ClaimFeed:
    """One claim of a queue."""

    def __init__(self, handler: QueueHandler, session: Session, claim: Claim) -> None:
        self._handler = handler
        self._dispatcher = handler.dispatcher
        self._session = session
        self._claim = claim
        self.window = ClaimWindow(
            session,
            claim,
            limit=handler.metadata_limit,
            migrate_from=handler.settings.migrate_from,
            on_restart=self._on_restart,
        )
        self.work = PartitionWork(
            claim.tp,
            self.window.window,
            position=claim.position,
            on_change=self.window.on_change,
            commit=self._commit_durably,
        )
        self.work.is_retry_topic = claim.topic == handler.retry_topic
        self._dispatcher.add_partition(self.work)
        self._changed = asyncio.Event()  # there may be room, or a delivery has ended, or the claim has
        self.work.on_room = self.work.on_drain = self._changed.set
        self._crash_counts: CrashCounts | None = None
        self._warned = False  # that retention deletes unacknowledged records
        self._lost: list[
            Delivery
        ] = []  # by a seek or a truncation: their handlers were cancelled, and may still run
        self._restarted_at = NO_OFFSET  # since the last batch was received

    def __repr__(self) -> str:
        return f"<ClaimFeed {self.work!r}>"

    async def run(self) -> None:
        """Feed records until the claim ends, then wait until its deliveries have ended."""
        ended = asyncio.create_task(self._claim.wait_ended(), name=f"{self._claim.tp}: end")
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
        settings = self._handler.settings
        if settings.dead_letter_policy is not None:
            if self.window.was_open:
                records = settings.ack_group_size + settings.concurrency
                self._crash_counts = CrashCounts(
                    self.work, self.window, self._dispatcher, records, lambda: self._handler.pools.free
                )
            self.window.open()
        elif self.window.is_new and self._handler.commits_start and not self.work.is_retry_topic:
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
        claim, limits = self._claim, self._handler.limits
        while not claim.ended:
            if not self._has_room():
                await self._wait_for_room()
                continue
            batches = claim.batches(max_records=limits.batch_records, max_bytes=limits.batch_bytes)
            batch = await anext(batches, None)
            if batch is None:
                return
            self._restarted_at = NO_OFFSET
            while self._is_still_handled() and not claim.ended:
                await self._wait_for_room()
            records, end = list(batch), batch.last_offset
            if self._restarted_at <= end:  # during the wait: the rest is read again, or no longer in the log
                records = [record for record in records if record.offset < self._restarted_at]
                end = self._restarted_at - 1
            if records and not claim.ended:
                self._offer(records, end)

    def _offer(self, records: list[Record], end: int) -> None:
        """Hand records to the dispatcher; nothing follows them up to the offset `end`."""
        first, last, epoch = records[0], records[-1], None
        self.window.check_end(self.work.position)
        if first.leader_epoch == last.leader_epoch:
            self.window.note_epoch(first.offset, first.leader_epoch)
        else:
            for record in records:
                if record.leader_epoch != epoch:
                    epoch = record.leader_epoch
                    self.window.note_epoch(record.offset, epoch)
        self.window.note_epoch(end, last.leader_epoch)  # it has been read up to here
        self._dispatcher.offer(self.work, records)

    def _has_room(self) -> bool:
        work, limits = self.work, self._handler.limits
        work.refill_at = limits.records - limits.batch_records
        work.refill_bytes = limits.bytes if work.bytes > limits.bytes else -1
        if self._is_still_handled() or work.bytes > limits.bytes or self._is_held_up():
            return False
        # records that fail at once each time must not keep those after them in the log
        if (work.queued if self._handler.settings.mode.in_order else work.unread) > work.refill_at:
            return False
        return not limits.on_demand or (not work.queued and self._handler.has_demand)

    def _is_still_handled(self) -> bool:
        """Whether handlers of deliveries that were lost by a seek still run: their records would be in two handlers."""
        if self._lost:
            self._lost = [delivery for delivery in self._lost if self._handler.pools.has(delivery)]
        return bool(self._lost)

    def _is_held_up(self) -> bool:
        """Whether as many records as allowed wait for their time, or for their turn after it."""
        return len(self.work.waiting) + len(self.work.retries) >= self._handler.settings.max_waiting

    async def _wait_for_room(self) -> None:
        """Wait until there may be room; while deliveries end or handlers run, the claim does not count as stuck."""
        interval, before = self._handler.max_poll_interval, self._progress()
        seconds = interval / CHECKS if interval else None
        was_wanted = False
        if self._handler.limits.on_demand and not self.work.queued and not self._handler.has_demand:
            was_wanted = await self._wait_for_demand(seconds)
        else:
            self._changed.clear()
            await wait_within(self._changed, seconds)
        work, is_paused = self.work, not self._dispatcher.is_open
        is_at_work = work.waiting or work.publishing or self._is_handled()
        if is_at_work or is_paused or was_wanted or before != self._progress():
            self._claim.renew()

    async def _wait_for_demand(self, seconds: float | None) -> bool:
        """Wait for a task that waits for a delivery, `seconds` at most; return whether there is one."""
        demand = self._handler.receiver.on_demand

        async def wanted() -> bool:
            if self._handler.has_demand:  # since before this task has started
                return True
            demand.clear()
            return await wait_within(demand, seconds)

        waiting = await run_until(self._claim.wait_ended(), wanted(), f"{self._claim.tp}: demand")
        return not waiting.cancelled() and waiting.result()

    def _progress(self) -> tuple[int, ...]:
        work = self.work
        return work.window.version, work.position, len(work.in_hand), work.queued, work.renewals

    def _on_restart(self, offset: int) -> None:
        """The log has other records from `offset` on."""
        # before `lose`: the records that it gives back are lost, too
        self._handler.publisher.abandon(self._claim.tp, offset, is_over=False)
        if self._crash_counts is not None:
            self._crash_counts.restart(offset)
        lost = self._dispatcher.lose(self.work, offset)
        self._handler.pools.interrupt(lost)
        self._lost += lost
        self._restarted_at = min(self._restarted_at, offset)
        self._handler.local.drop_ended()

    def seek(self, offset: int) -> None:
        """Continue at `offset`: deliveries in hand are lost, and earlier records count as acknowledged."""
        self._abandon_copies(is_over=False)
        self.window.seek(offset)
        self.work.position = offset
        self._claim.seek(offset)
        self._changed.set()

    def check_size(self) -> None:
        """Hand out nothing above the window while its encoding is nearly too large for a commit."""
        if not self._warned and self._is_behind_log_start():
            self._warned = True
            _log.warning(
                "%s: retention deletes records from offset %d on that are not acknowledged: after a restart they are lost; "
                "reconsume_later() copies records to a topic of their own",
                self.work.tp,
                self.window.window.base,
            )
        is_full = self.window.size > FULL * self.window.limit
        if is_full != self.work.is_full:
            self.work.is_full = is_full
            self._dispatcher.relist(self.work)

    async def _commit_durably(self) -> AckOutcome:
        await self.window.commit()
        return AckOutcome.COMMITTED

    def statistics(self) -> PartitionStatistics:
        """Return where the partition's records are."""
        work, window = self.work, self.window.window
        return PartitionStatistics(
            tp=work.tp,
            base=window.base,
            lag=max(0, self._claim.lag + work.position - window.base - window.acked_above),
            queued=work.queued,
            in_hand=len(work.in_hand),
            waiting=len(work.waiting),
            publishing=work.publishing,
            window=window.end - window.base,
            metadata_bytes=self.window.size,
            is_full=work.is_full,
        )

    def problems(self) -> list[str]:
        """Return what is wrong with the partition now, in words."""
        work, found = self.work, []
        if work.is_full:
            found.append(
                f"{work.tp}: its acknowledged offsets take {self.window.size} of {self.window.limit} bytes of metadata, so "
                f"no record above them is delivered; the record at offset {self.window.window.base} holds up the commit"
            )
        if self._is_held_up():
            found.append(
                f"{work.tp}: max_waiting={self._handler.settings.max_waiting} records wait for their time"
            )
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
        """Wait until the deliveries in hand and the handlers have ended, and copies are written."""
        if isinstance(self._claim.cause, MemberLost):
            self._lose()
        else:
            self._dispatcher.close_partition(self.work)
            self._handler.local.withdraw(self.work)
        while not self.work.is_idle or self._is_handled():
            self._changed.clear()
            await self._changed.wait()

    def _is_handled(self) -> bool:
        return self._handler.pools.handles(self.work)

    async def _give_up(self) -> None:
        """The time for deliveries in hand is over: their handlers are cancelled, and their records delivered again."""
        self._lose()
        self._handler.pools.interrupt_all(self.work)
        while self._is_handled():
            self._changed.clear()
            await wait_shielded(asyncio.ensure_future(self._changed.wait()))

    def _lose(self) -> None:
        """Take the partition from the dispatcher: deliveries in hand are lost, handlers cancelled, copies given up."""
        self._abandon_copies()
        self._handler.pools.interrupt(self._dispatcher.remove_partition(self.work))
        self._handler.local.drop_ended()

    async def _close(self) -> None:
        """Remove the partition; unless the membership is lost, the last commit contains that the claim has ended in order."""
        if self._crash_counts is not None:
            await self._crash_counts.aclose()
        self.forget()
        if self._handler.settings.dead_letter_policy is not None and not isinstance(
            self._claim.cause, MemberLost
        ):
            self.window.close()

    def forget(self) -> None:
        """Remove the partition from the dispatcher, also if the claim was never consumed."""
        self._abandon_copies()
        self._dispatcher.remove_partition(self.work)

    def _abandon_copies(self, *, is_over: bool = True) -> None:
        """Give up the copies of the partition, unless it has come back as another claim already."""
        if self._dispatcher.works.get(self._claim.tp) is self.work:
            self._handler.publisher.abandon(self._claim.tp, is_over=is_over)
