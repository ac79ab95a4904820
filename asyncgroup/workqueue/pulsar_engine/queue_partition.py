"""QueuePartition: gives the messages of one partition to the queue, and what becomes of them to its consumer.

The queue knows a message by a number: messages are numbered as they arrive, and the window of the partition counts these
numbers. A message that the broker gives again, after its connection has ended, gets a new number, unless a delivery of it
is still open here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, cast

from asyncgroup.ack_window import AckWindow
from asyncgroup.errors import AsyncGroupError, ClosedError, CommitFailedError, DecodeError
from asyncgroup.model import Record, TopicPartition
from asyncgroup.pulsar.consumer.partition.listener import PulsarConsumerListener
from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.workqueue.delivery_result import AckOutcome
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_engine import PartitionEngine
from asyncgroup.workqueue.partition_work import PartitionWork
from asyncgroup.workqueue.pulsar_engine.broker_release import check_release
from asyncgroup.workqueue.pulsar_engine.copies import earlier_attempts, is_of_other_subscription
from asyncgroup.workqueue.pulsar_engine.delivery_counts import DeliveryCounts
from asyncgroup.workqueue.statistics import PartitionStatistics

if TYPE_CHECKING:
    from asyncgroup.workqueue.delivery import Work
    from asyncgroup.workqueue.engine import OpenQueue
    from asyncgroup.workqueue.receive_limits import ReceiveLimits

__all__ = ["PartitionOwner", "QueuePartition"]

_ALL: Final = 1 << 31


class PartitionOwner(Protocol):
    """What a partition calls of the queue's partitions, of which it is one."""

    def report(self, error: Exception) -> None:
        """Something failed that is tried again."""
        ...

    def attached(self, reader: QueuePartition) -> None:
        """It is registered at its broker, at first or again."""
        ...

    def refused_by_broker(self, reader: QueuePartition, error: Exception) -> None:
        """It has ended: its broker does not accept it."""
        ...

    # without a receiver queue
    def unasked(self, reader: QueuePartition) -> None:
        """It has no permit at its broker."""
        ...


class QueuePartition(PartitionEngine, PulsarConsumerListener):
    """One partition. `consumer` is set before it is started."""

    consumer: PulsarConsumer

    def __init__(
        self,
        queue: OpenQueue,
        subscription: str,
        tp: TopicPartition,
        limits: ReceiveLimits,
        owner: PartitionOwner,
        *,
        has_copies: bool,
    ) -> None:
        self.group_id = subscription
        self.has_copies = has_copies
        self.work: Work = PartitionWork(tp, AckWindow(0), engine=self)
        self._queue = queue
        self._limits = limits
        self._owner = owner
        self._next = 0  # the number of the next message
        self._open: dict[int, PulsarMessage] = {}
        """The messages that the queue has, by number."""
        self._fresh: deque[PulsarMessage] = deque()
        """Those whose permits are not returned: about the ones that wait for their first delivery here."""
        self._again: set[int] = set()
        """Of the messages that were delivered before they arrived, those whose first delivery here has not ended: they are retries."""
        self._kept: set[MessageId] = set()
        """Open deliveries of an earlier attachment, until their messages arrive again: no second delivery of these begins.

        One that fails before that is forgotten: its message may be another consumer's now.
        """
        self._loses_kept = True
        """Whether the broker gives these messages again, to this consumer or to another one."""
        self._gives_back = queue.settings.mode is Mode.SHARED
        """Whether a message that has failed may be delivered by another consumer: no order of messages is to be kept."""
        self._counts = DeliveryCounts(limits, queue.settings.dead_letter_policy, has_copies=has_copies)
        self._committed: set[int] = set()
        """Numbers of messages that a transaction has acknowledged."""
        self._is_hurried = False
        """Whether each delivery makes room for a message that was given back."""
        self._changed = asyncio.Event()
        self._is_feeding = False

    def __repr__(self) -> str:
        return f"<QueuePartition {self.work!r}>"

    # --- messages arrive ------------------------------------------------------------------------------------------------

    def check_broker(self, server_version: str) -> None:
        """Raise ConfigError if the broker cannot keep the order of keys."""
        check_release(server_version, self._queue.settings)

    def on_messages(self) -> None:
        """Give them to the queue in the next turn of the loop, with what arrives until then."""
        self._feed_soon()

    def _feed_soon(self) -> None:
        if not self._is_feeding:
            self._is_feeding = True
            asyncio.get_running_loop().call_soon(self._feed)

    def _feed(self) -> None:
        self._is_feeding = False
        work = self.work
        if not work.is_open:
            return
        unread, count = work.unread, len(self._open)
        if self._again:
            unread += min(len(self._again), len(work.retries))
        # the others, which are delivered or wait after a failure, have no permits, and count for the limit in bytes
        self.consumer.permits.outside = work.bytes * (count - unread) // count if count > unread else 0
        self.ask_on_demand()
        self._return_permits(len(self._fresh) - unread)
        taken = self.consumer.take(_ALL, keeps_permits=True) if self._has_room() else []
        if taken:
            offered = self._numbered(taken)
            self._fresh.extend(offered)
            self._offer(offered)
        records = self._limits.records
        work.refill_at = records // 2
        if self._is_hurried:
            self._is_hurried = self.consumer.outcomes.is_hurried
            work.refill_at = records - 1
        work.refill_bytes = self._limits.bytes // 2

    def _offer(self, messages: list[PulsarMessage]) -> None:
        try:
            self._queue.offer(self.work, messages)
        except Exception as error:  # noqa: BLE001  of the user's `ordering_key`, without a dead letter topic
            self._queue.end(error)

    def ask_on_demand(self) -> None:
        """Without a receiver queue ask for one message if a task waits and none is here."""
        if self._limits.on_demand:
            self.consumer.set_waiting(1 if self._queue.has_demand and not self.work.queued else 0)
            if self.consumer.permits.open <= 0:
                self._owner.unasked(self)

    def _has_room(self) -> bool:
        """The permits limit the bytes by the mean of the messages; if these are larger than that, no more are taken."""
        return self.work.bytes < self._limits.bytes

    def _numbered(self, taken: list[PulsarMessage]) -> list[PulsarMessage]:
        """Number messages; leave out those of which a delivery is open."""
        found = []
        failed = self._counts.failed
        for message in taken:
            if self._kept and message.message_id in self._kept:
                self._kept.discard(message.message_id)  # it is this consumer's again
                self.consumer.return_permits((message,))
                continue
            if not self._is_readable(message):
                continue
            message.offset = number = self._next
            self._next = number + 1
            self._open[number] = message
            if failed or message.entry.redelivery_count:
                self._note_attempts(number, message)
            found.append(message)
        return found

    def _note_attempts(self, number: int, message: PulsarMessage) -> None:
        """Note the number of deliveries that a message had before."""
        if attempts := self._counts.pop(message):
            self.work.window.set_attempts(number, attempts)
            self._again.add(number)

    def _is_readable(self, message: PulsarMessage) -> bool:
        """Whether the metadata of a message can be decoded; one of a batch that cannot is discarded, as Java's client does."""
        try:
            message.headers  # noqa: B018  decoded here
        except DecodeError as error:
            self._owner.report(
                DecodeError(
                    f"{message.topic} {message.message_id} cannot be read, and is acknowledged: {error}"
                )
            )
            self.consumer.return_permits((message,))
            self.consumer.outcomes.ack(message)
            return False
        return True

    def _return_permits(self, count: int) -> None:
        """Those of messages that are no longer waiting for their first delivery here."""
        if count > 0:
            self.consumer.return_permits([self._fresh.popleft() for _ in range(count)])

    @property
    def unacked(self) -> int:
        """The number of messages that have arrived here and are not acknowledged."""
        return len(self._open) + self.consumer.queued

    def on_restart(self) -> None:
        """What is not acknowledged comes again: withdraw what is not delivered.

        A subscription that is not durable begins after what was taken here, when its connection has ended: all of that stays.
        """
        self._fresh.clear()
        self._again.clear()
        self._loses_kept = self.consumer.config.durable or self.consumer.is_attached
        if self._loses_kept:
            self._withdraw()
        self._kept = {message.message_id for message in self._open.values()}
        self.consumer.permits.outside = self.work.bytes

    def _withdraw(self) -> None:
        for record, attempts in self._queue.withdraw(self.work):
            self._counts.remember(cast("PulsarMessage", record).message_id, attempts)
        window = self.work.window
        self._open = {number: message for number, message in self._open.items() if number not in window}

    def on_error(self, error: Exception) -> None:
        """Report what is tried again."""
        self._owner.report(error)

    def on_failed(self, error: Exception) -> None:
        """The consumer has ended for good."""
        self._owner.refused_by_broker(self, error)

    def on_attached(self) -> None:
        """It is registered at its broker."""
        self._owner.attached(self)

    def forget(self) -> None:
        """The subscription continues elsewhere: open deliveries are lost."""
        self._fresh.clear()
        self._again.clear()
        self._open.clear()
        self._committed.clear()
        self._kept.clear()
        self._counts.failed.clear()
        self._queue.abandon_copies(self.work, is_over=False)
        self._queue.restart(self.work, 0)
        self.work.window.restart(self._next)
        self.work.position = self._next

    # --- PartitionEngine ------------------------------------------------------------------------------------------------

    def on_ack(self, record: Record) -> None:
        """Acknowledge the message, with others."""
        message = self._open.pop(record.offset, None)
        if message is not None:
            if self._kept:
                self._kept.discard(message.message_id)
            if self._again:
                self._end_again(message.offset)
            if self._committed and message.offset in self._committed:
                self._committed.discard(message.offset)
                return
            self.consumer.outcomes.ack(message)

    def ack_in(self, transaction: PulsarTransaction, offset: int) -> None:
        """Acknowledge a message in the transaction of its copy. Raises ClosedError if it was given up."""
        message = self._open.get(offset)
        if message is None:
            raise ClosedError(f"{self.work.tp}: the message of this copy was given up")
        self.consumer.transactions.ack(transaction, message)

    def note_committed(self, offset: int) -> None:
        """The acknowledgement is committed, or another one is: none follows."""
        if offset in self._open:
            self._committed.add(offset)

    def note_aborted(self, offset: int) -> None:
        """The transaction of a copy is aborted: its message comes again, while its delivery is open here."""
        message = self._open.get(offset)
        if message is not None:
            self._kept.add(message.message_id)
            self._loses_kept = True

    def _end_again(self, number: int) -> None:
        """The delivery of a message has ended, so that its permit may return."""
        if number in self._again:
            self._again.remove(number)
            self._feed_soon()

    def comes_again(self, record: Record, attempts: int) -> bool:
        """Whether the message was delivered before the connection ended, and has not arrived again."""
        self._end_again(record.offset)
        if not self._kept or not self._loses_kept:
            return False
        message_id = cast("PulsarMessage", record).message_id
        if message_id not in self._kept:
            return False
        self._kept.discard(message_id)
        del self._open[record.offset]
        if attempts:
            self._counts.remember(message_id, attempts)
        return True

    def gives_back(self, record: Record, attempts: int) -> bool:
        """Whether the message goes back to the broker, which gives it to this consumer or to another one.

        It stays here if the broker would count fewer deliveries than were made: another consumer would begin with its number.
        """
        message = self._open.get(record.offset) if self._gives_back and self.consumer.config.durable else None
        if message is None or attempts > message.entry.redelivery_count + 1:
            return False
        return self._give_back(message, attempts)

    def _give_back(self, message: PulsarMessage, attempts: int) -> bool:
        if not self.consumer.outcomes.give_back(message):
            return False
        del self._open[message.offset]
        self._counts.remember(message.message_id, attempts)
        self._is_hurried = True
        return True

    def give_back_failed(self) -> None:
        """Have the messages delivered again that wait after a failure, so that the broker counts it: the queue closes."""
        if not self._gives_back or not self.consumer.config.durable:
            return
        work, attempts = self.work, self.work.window.attempts
        for offset in work.waiting.keys() & attempts.keys() - work.delayed:
            if (message := self._open.get(offset)) is not None:
                self._give_back(message, attempts[offset])
        self.consumer.outcomes.send_given_back()

    def on_capacity(self) -> None:
        """Give more messages, and ask the broker for others."""
        self._feed_soon()

    def on_drain(self) -> None:
        """Look whether all has ended."""
        self._changed.set()

    async def wait_idle(self) -> None:
        """Wait until the deliveries and their handlers have ended."""
        while not self.work.is_idle or self._queue.is_handled(self.work):
            self._changed.clear()
            await self._changed.wait()

    async def commit(self) -> AckOutcome:
        """Return when the broker has confirmed the acknowledgements. Raises CommitFailedError."""
        try:
            await self.consumer.outcomes.flush()
        except AsyncGroupError as error:
            raise CommitFailedError(self.group_id, {self.work.tp: error}) from error
        return AckOutcome.COMMITTED

    def earlier_attempts(self, record: Record) -> int:
        """Return the number of deliveries that led to this copy."""
        return earlier_attempts(cast("PulsarMessage", record))

    def skips(self, record: Record) -> bool:
        """Whether a copy is for another subscription."""
        return is_of_other_subscription(self.group_id, cast("PulsarMessage", record))

    def statistics(self, now: float) -> PartitionStatistics:
        """Return where the messages are; `lag` is the number of those that this process has."""
        work, window = self.work, self.work.window
        return PartitionStatistics(
            tp=work.tp,
            base=window.base,
            lag=len(self._open),
            queued=work.queued,
            acquired=len(work.acquired),
            waiting=len(work.waiting),
            publishing=work.publishing,
            window=window.end - window.base,
            metadata_bytes=0,
            is_full=False,
            open_for=work.open_for(now),
        )
