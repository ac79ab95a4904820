"""SingleActiveDispatcher: Exclusive and Failover subscriptions (Pulsar's `PersistentDispatcherSingleActiveConsumer`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from asyncgroup.hashing.key_ranges import murmur3_32
from asyncgroup.pulsar.wire.commands import CommandActiveConsumerChange
from asyncgroup.pulsar.wire.enums import SubType
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.log.topic_log import CompactedEntries, TopicLog
from asyncgroup.pulsar_broker.subscriptions.cursor import Cursor
from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import SubscribedConsumer

__all__ = ["SingleActiveDispatcher"]

POINTS: Final = 100
"""Points of each consumer on the ring of a topic without partitions."""


class SingleActiveDispatcher:
    """Entries go to one consumer, in order.

    Of a Failover subscription it is chosen among those with the best priority: by the number of the partition, in the order of their
    names; of a topic without partitions by hashes of its name and theirs. `after_change(call)` is called when it changes: the new one is notified and gets
    entries after `activeConsumerFailoverDelayTimeMillis`, when `call` is called; also the first one (`scheduleReadOnActiveConsumer`).
    """

    def __init__(
        self,
        log: TopicLog,
        cursor: Cursor,
        kind: SubType,
        topic: TopicName,
        after_change: Callable[[Callable[[], None]], None],
    ) -> None:
        self.consumers: list[SubscribedConsumer] = []
        self.active: SubscribedConsumer | None = None
        """The consumer that gets entries."""
        self._log = log
        self._cursor = cursor
        self._kind = kind
        self._topic = topic
        self._after_change = after_change
        self._next = cursor.next_unacked(log.first)
        self._is_held = False  # until a change has taken effect

    def __repr__(self) -> str:
        return f"<SingleActiveDispatcher of {len(self.consumers)} consumers, at {self._next}>"

    def add(self, consumer: SubscribedConsumer) -> None:
        """Add a consumer."""
        self.consumers.append(consumer)
        before = self.active
        self._choose()
        if self._kind is SubType.FAILOVER and self.active is before:
            consumer.send(CommandActiveConsumerChange(consumer_id=consumer.id, is_active=False))

    def remove(self, consumer: SubscribedConsumer) -> None:
        """Remove a consumer; what it has not acknowledged goes to the next one."""
        self.consumers.remove(consumer)
        consumer.give_back()
        if self.active is consumer:
            self.active = None
        self._choose()

    def flow(self, consumer: SubscribedConsumer, permits: int) -> None:
        """A consumer may get more messages."""
        consumer.permits += permits
        self.dispatch()

    def _choose(self) -> None:
        chosen = self._chosen()
        if chosen is self.active:
            return
        before, self.active = self.active, chosen
        if before is not None:
            before.give_back()
        if self._kind is not SubType.FAILOVER:
            self.rewind()
        elif not self._is_held:
            self._is_held = True
            self._after_change(self._take_effect)

    def _take_effect(self) -> None:
        self._is_held = False
        self._notify()
        self.rewind()

    def _chosen(self) -> SubscribedConsumer | None:
        if not self.consumers:
            return None
        if self._kind is SubType.EXCLUSIVE:
            return self.consumers[0]
        best = min(consumer.priority for consumer in self.consumers)
        found = sorted(
            (consumer for consumer in self.consumers if consumer.priority == best), key=lambda each: each.name
        )
        partition = self._topic.partition
        return found[partition % len(found)] if partition >= 0 else _nearest(self._topic, found)

    def _notify(self) -> None:
        for consumer in self.consumers:
            consumer.send(
                CommandActiveConsumerChange(consumer_id=consumer.id, is_active=consumer is self.active)
            )

    # --- entries ----------------------------------------------------------------------------------------------------------

    @property
    def read_to(self) -> int:
        """The next entry to push."""
        return self._next

    def rewind(self) -> None:
        """Everything that is not acknowledged comes again."""
        if self.active is not None:
            self.active.give_back()
        self._next = self._cursor.next_unacked(self._log.first)
        self.dispatch()

    def dispatch(self) -> None:
        """Push as many entries as there are permits for."""
        active = self.active
        if active is None or self._is_held:
            return
        log, cursor = self._log, self._cursor
        compacted = log.compacted if active.command.read_compacted else None
        if compacted is not None and self._next < compacted.end:
            self._dispatch_compacted(active, compacted)
        while active.can_take:
            self._next = cursor.next_unacked(max(self._next, log.first))
            if self._next >= log.read_end:
                return
            entry = log[self._next]
            self._next += 1
            if entry.index in log.hidden:
                cursor.ack(entry)
            elif left := cursor.deliverable(entry):  # else an open transaction has acknowledged it
                active.take(entry, left, cursor.partly_acked(entry), 0)

    def _dispatch_compacted(self, active: SubscribedConsumer, compacted: CompactedEntries) -> None:
        """Push what compaction has kept, then go on in the log."""
        while active.can_take:
            entry = compacted.at_or_after(self._cursor.next_unacked(self._next))
            if entry is None:
                self._next = compacted.end
                return
            self._next = entry.index + 1
            active.take(entry, self._cursor.unacked(entry), self._cursor.partly_acked(entry), 0)

    def redeliver(
        self,
        consumer: SubscribedConsumer,
        indexes: Iterable[int] | None,  # noqa: ARG002  Shared subscriptions have it
        epoch: int | None,
    ) -> None:
        """Push everything again that is not acknowledged, with the new epoch; single entries cannot be asked for."""
        if epoch is not None:
            if consumer.epoch is not None and epoch < consumer.epoch:
                return
            consumer.epoch = epoch  # also of one that is not active: its client drops older ones when it is
        if consumer is self.active:
            self.rewind()

    def acked(self, index: int, left: int) -> None:
        """Messages of an entry were acknowledged; `left` are not."""
        if self.active is not None:
            self.active.acked(index, left)

    reserved = acked

    def restore(self, indexes: Iterable[int]) -> None:  # noqa: ARG002  Shared subscriptions have it
        """A transaction was aborted: everything that is not acknowledged comes again, to keep the order."""
        self.rewind()


def _nearest(topic: TopicName, consumers: Sequence[SubscribedConsumer]) -> SubscribedConsumer:
    """Return the consumer with the next point on a ring after that of a topic (`peekConsumerIndexFromHashRing`)."""
    ring = {_hash(f"{consumer.name}{number}"): consumer for consumer in consumers for number in range(POINTS)}
    points, hash_of_topic = sorted(ring), _hash(str(topic))
    return ring[points[bisect_left(points, hash_of_topic) % len(points)]]


def _hash(text: str) -> int:
    return murmur3_32(text.encode()) & 0x7FFFFFFF  # Java's hashes have 31 bits
