"""TopicSubscription: a cursor and the consumers that share it (Pulsar's `PersistentSubscription`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final, TypeAlias

from asyncgroup.pulsar.wire.ack_set import bits_of, full_set
from asyncgroup.pulsar.wire.commands import CommandReachedEndOfTopic, CommandSubscribe, MessageIdData
from asyncgroup.pulsar.wire.enums import AckType, KeySharedMode, SubType
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.log.topic_log import Position, StoredEntry, TopicLog, TransactionId
from asyncgroup.pulsar_broker.subscriptions.cursor import Cursor
from asyncgroup.pulsar_broker.subscriptions.dispatch_shared import KeySharedDispatcher, SharedDispatcher
from asyncgroup.pulsar_broker.subscriptions.dispatch_single import SingleActiveDispatcher
from asyncgroup.pulsar_broker.subscriptions.key_selectors import RangeConflict
from asyncgroup.pulsar_broker.subscriptions.pending_ack_handle import PendingAckHandle
from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import SubscribedConsumer
from asyncgroup.pulsar_broker.timing import Timing

__all__ = ["TopicSubscription"]

_IN_ORDER: Final = (SubType.EXCLUSIVE, SubType.FAILOVER)

_Ack: TypeAlias = Callable[[StoredEntry, int], bool]
"""Acknowledges an entry in the cursor, see `Cursor.ack`."""


class TopicSubscription:
    """A subscription of one topic or partition."""

    def __init__(
        self, name: str, topic: TopicName, log: TopicLog, start: int, timing: Timing, *, is_durable: bool
    ) -> None:
        self.name = name
        self.cursor = Cursor(start)
        self.is_durable = is_durable
        self.kind: SubType | None = None
        """The type of its consumers; the next first one may choose another."""
        self.pending_acks = PendingAckHandle(log, self.cursor)
        """What open transactions have acknowledged."""
        self._log = log
        self._topic = topic
        self._timing = timing
        self._dispatcher: SingleActiveDispatcher | SharedDispatcher | None = None
        self._is_terminated = False

    def __repr__(self) -> str:
        return f"<TopicSubscription {self.name!r}: {self.cursor!r}, {self._dispatcher!r}>"

    @property
    def consumers(self) -> Sequence[SubscribedConsumer]:
        """Its consumers."""
        return () if self._dispatcher is None else tuple(self._dispatcher.consumers)

    @property
    def active(self) -> SubscribedConsumer | None:
        """The consumer of an Exclusive or Failover subscription that gets entries."""
        found = self._dispatcher
        return found.active if isinstance(found, SingleActiveDispatcher) else None

    @property
    def read_to(self) -> int:
        """The next entry to push."""
        found = self._dispatcher
        return self.cursor.next_unacked(self._log.first) if found is None else found.read_to

    @property
    def backlog(self) -> int:
        """The number of entries that are not acknowledged."""
        return sum(not self.cursor.is_acked(entry.index) for entry in self._log)

    @property
    def oldest(self) -> int | None:
        """The time in ms when the first entry was published that is not acknowledged; None without one."""
        index = self.cursor.next_unacked(self._log.first)
        return self._log[index].published_at if index < self._log.end else None

    # --- consumers --------------------------------------------------------------------------------------------------------

    def add(self, consumer: SubscribedConsumer) -> None:
        """Add a consumer. Raises ServerFailure."""
        kind = SubType(consumer.command.sub_type)
        if not self.consumers:
            self._dispatcher = self._new_dispatcher(kind, consumer.command)
            self.kind = kind
        assert self._dispatcher is not None
        self._check(kind, consumer.command)
        try:
            self._dispatcher.add(consumer)
        except RangeConflict as error:
            raise ServerFailure(ServerError.CONSUMER_ASSIGN_ERROR, str(error)) from None
        self._notify_end()

    def _new_dispatcher(
        self, kind: SubType, command: CommandSubscribe
    ) -> SingleActiveDispatcher | SharedDispatcher:
        timing = self._timing
        if kind in _IN_ORDER:
            return SingleActiveDispatcher(self._log, self.cursor, kind, self._topic, timing.after_change)

        def wake(time: int) -> None:
            timing.wake(time, made.on_due)

        made: SharedDispatcher
        if kind is SubType.SHARED:
            made = SharedDispatcher(self._log, self.cursor, timing.now, wake)
        else:
            meta = command.key_shared_meta
            mode = KeySharedMode.AUTO_SPLIT if meta is None else KeySharedMode(meta.key_shared_mode)
            keeps_order = meta is None or not meta.allow_out_of_order_delivery
            made = KeySharedDispatcher(
                self._log, self.cursor, timing.now, wake, mode, keeps_order=keeps_order
            )
        return made

    def _check(self, kind: SubType, command: CommandSubscribe) -> None:
        if kind is not self.kind:
            raise ServerFailure(ServerError.CONSUMER_BUSY, "TopicSubscription is of different type")
        if kind is SubType.EXCLUSIVE and self.consumers:
            raise ServerFailure(ServerError.CONSUMER_BUSY, "Exclusive consumer is already connected")
        if isinstance(self._dispatcher, KeySharedDispatcher):
            meta = command.key_shared_meta
            mode = KeySharedMode.AUTO_SPLIT if meta is None else KeySharedMode(meta.key_shared_mode)
            if mode is not self._dispatcher.mode:
                raise ServerFailure(
                    ServerError.CONSUMER_BUSY,
                    "TopicSubscription is of different type: another key shared mode",
                )

    def remove(self, consumer: SubscribedConsumer) -> None:
        """A consumer has left."""
        if self._dispatcher is not None and consumer in self._dispatcher.consumers:
            self._dispatcher.remove(consumer)

    def flow(self, consumer: SubscribedConsumer, permits: int) -> None:
        """A consumer may get more messages."""
        if self._dispatcher is not None:
            self._dispatcher.flow(consumer, permits)
            self._notify_end()

    # --- entries ----------------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Push what there is and may be pushed."""
        if self._dispatcher is not None:
            self._dispatcher.dispatch()
            self._notify_end()

    def ack(self, kind: AckType, ids: Iterable[MessageIdData]) -> None:
        """Acknowledge entries, or messages of batches; unknown ones and those that were trimmed are ignored."""
        if kind is AckType.CUMULATIVE:
            if self.kind in _IN_ORDER:
                for each in ids:
                    self._ack_up_to((each.ledger_id, each.entry_id), bits_of(each.ack_set))
        else:
            for each in ids:
                self._ack((each.ledger_id, each.entry_id), bits_of(each.ack_set))
        self.dispatch()

    def _ack(self, position: Position, unacked: int, ack: _Ack | None = None) -> None:
        entry = self._log.find(position)
        if entry is not None and not self.cursor.is_acked(entry.index):
            self._ack_entry(entry, unacked, ack)

    def _ack_entry(self, entry: StoredEntry, unacked: int, ack: _Ack | None = None) -> None:
        whole = (ack or self.cursor.ack)(entry, unacked)
        if self._dispatcher is not None:
            left = 0 if whole else self.cursor.deliverable(entry).bit_count()
            self._dispatcher.acked(entry.index, left)

    def _ack_up_to(self, position: Position, unacked: int) -> None:
        before = self._log.index_of(position)
        self.cursor.ack_before(before)
        for consumer in self.consumers:
            # entries are pushed in order here, so that only those are looked at
            consumer.give_back(list(takewhile(before.__gt__, consumer.pending)))
        self._ack(position, unacked, self.cursor.ack_up_to)

    # --- transactions -----------------------------------------------------------------------------------------------------

    def ack_in_transaction(
        self, transaction: TransactionId, kind: AckType, ids: Sequence[MessageIdData]
    ) -> None:
        """Acknowledge when a transaction commits; until then the messages are not delivered again. Raises ServerFailure."""
        if kind is AckType.CUMULATIVE:
            if self.kind in _IN_ORDER and len(ids) == 1:  # as without a transaction, others are ignored
                position = (ids[0].ledger_id, ids[0].entry_id)
                self.pending_acks.ack_up_to(transaction, position, bits_of(ids[0].ack_set))
            return
        is_shared = self.kind not in _IN_ORDER
        try:
            acked = self.pending_acks.ack(transaction, ids, is_shared=is_shared)
        except ServerFailure:
            if is_shared:
                self._lose(ids)
            raise
        for index, left in acked:
            if self._dispatcher is not None:
                self._dispatcher.reserved(index, left)
        self.dispatch()

    def _lose(self, ids: Sequence[MessageIdData]) -> None:
        """Take the entries of a refused acknowledgement from their consumers (`Consumer.individualAckWithTransaction`).

        As no transaction has them, they are delivered again only when the topic is loaded again.
        """
        for each in ids:
            entry = self._log.find((each.ledger_id, each.entry_id))
            if entry is None or self._dispatcher is None:
                continue
            if not each.ack_set or not self.cursor.reserved.get(entry.index):
                self._dispatcher.reserved(entry.index, 0)

    def end_transaction(self, transaction: TransactionId, low_water_mark: int, *, commits: bool) -> None:
        """Apply what a transaction has acknowledged, or take it back.

        One that has acknowledged something also ends those that its coordinator has forgotten (`PendingAckHandleImpl.handleLowWaterMark`).
        """
        if not self._end_transaction(transaction, commits=commits):
            return
        while (forgotten := self.pending_acks.before(transaction[0], low_water_mark)) is not None:
            self._end_transaction(forgotten, commits=False)

    def _end_transaction(self, transaction: TransactionId, *, commits: bool) -> bool:
        """Return whether it has acknowledged anything alone."""
        pending = self.pending_acks
        up_to = pending.pop_cumulative(transaction)
        acked = pending.pop(transaction)
        if commits:
            if up_to is not None:
                self._ack_up_to(*up_to)
            for entry, unacked in acked:
                self._ack_entry(entry, unacked, self.cursor.commit)
                pending.committed(entry.index)
            self.dispatch()
        elif (
            self._dispatcher is not None and acked
        ):  # after a cumulative one consumers have to ask for their messages
            self._dispatcher.restore([entry.index for entry, _ in acked])
        return bool(acked)

    def redeliver(
        self, consumer: SubscribedConsumer, ids: Sequence[MessageIdData], epoch: int | None
    ) -> None:
        """A consumer asks for entries again, or for all without ids."""
        if self._dispatcher is None:
            return
        found = [self._log.find((each.ledger_id, each.entry_id)) for each in ids]
        indexes = [entry.index for entry in found if entry is not None] if ids else None
        self._dispatcher.redeliver(consumer, indexes, epoch)

    def skip(self, count: int) -> None:
        """Acknowledge the first entries that are not acknowledged."""
        for entry in [each for each in self._log if not self.cursor.is_acked(each.index)][:count]:
            self._ack(entry.position, 0)

    def expire(self, time: int) -> None:
        """Acknowledge the entries at the beginning that were published before a time in ms (`PersistentMessageExpiryMonitor`)."""
        for entry in self._log:
            if entry.published_at >= time:
                break
            self._ack(entry.position, 0)

    def skip_before(self, index: int) -> None:
        """Acknowledge all entries before an index: they are kept no longer."""
        for entry in takewhile(lambda each: each.index < index, self._log):
            if not self.cursor.is_acked(entry.index):
                self._ack_entry(entry, 0)
        self.dispatch()

    def drop(self, entry: StoredEntry) -> None:
        """Forget an entry of a topic that is not persistent, after it was pushed to those that could have it."""
        self.cursor.ack(entry)
        if self._dispatcher is not None:
            self._dispatcher.acked(entry.index, 0)

    def peek(self, number: int) -> StoredEntry | None:
        """Return one of the entries that are not acknowledged, counted from 1."""
        left = [each for each in self._log if not self.cursor.is_acked(each.index)]
        return left[number - 1] if 0 < number <= len(left) else None

    def seek(self, index: int, unacked: int | None = None) -> None:
        """Continue at an entry, with `unacked` of its messages, as bits, or all. Its consumers were closed before."""
        index = max(index, self._log.first)
        self.cursor.reset(index, is_shared=self.kind not in _IN_ORDER)
        if unacked is not None and index < self._log.end:
            entry = self._log[index]
            if unacked & full_set(entry.count):  # else the set is ignored
                self.cursor.ack(entry, unacked)
        if self._dispatcher is not None:
            self._dispatcher.rewind()

    # --- the end of a topic -----------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """No entry follows."""
        self._is_terminated = True
        self._notify_end()

    def _notify_end(self) -> None:
        """Notify the consumers when everything was acknowledged, or pushed to the active one."""
        found = self._dispatcher
        if not self._is_terminated or found is None or found.read_to < self._log.end:
            return
        if isinstance(found, SharedDispatcher) and found.has_others:
            return
        for consumer in found.consumers:
            if not consumer.knows_end:
                consumer.knows_end = True
                consumer.send(CommandReachedEndOfTopic(consumer_id=consumer.id))
