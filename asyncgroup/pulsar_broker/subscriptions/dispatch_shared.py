"""SharedDispatcher and KeySharedDispatcher: entries are divided among all consumers (Pulsar's `PersistentDispatcherMultipleConsumers`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

from asyncgroup.pulsar.wire.enums import KeySharedMode
from asyncgroup.pulsar_broker.log.topic_log import StoredEntry, TopicLog
from asyncgroup.pulsar_broker.subscriptions.consumer_rotation import ConsumerRotation
from asyncgroup.pulsar_broker.subscriptions.cursor import Cursor
from asyncgroup.pulsar_broker.subscriptions.key_selectors import (
    ConsistentSelector,
    KeySelector,
    StickySelector,
)
from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import SubscribedConsumer

__all__ = ["KeySharedDispatcher", "SharedDispatcher"]


class SharedDispatcher:
    """Consumers in turn, those with a lower priority while no other has permits.

    `now` returns the time of day in ms; `wake(time)` has `on_due` called then, for entries with a delivery time.
    """

    def __init__(
        self, log: TopicLog, cursor: Cursor, now: Callable[[], int], wake: Callable[[int], None]
    ) -> None:
        self.redeliveries: defaultdict[int, int] = defaultdict(int)
        """How often entries were asked for again, by index."""
        self._log = log
        self._cursor = cursor
        self._now = now
        self._wake = wake
        self._next = cursor.next_unacked(log.first)
        self._again: list[int] = []  # a heap of entries that come before new ones
        self._is_again: set[int] = set()
        self._delayed: list[tuple[int, int]] = []  # a heap: time in ms, entry
        self._rotation = ConsumerRotation()
        self._holders: dict[int, SubscribedConsumer] = {}  # the consumer that has an entry
        self._of_chunks: dict[
            str, SubscribedConsumer
        ] = {}  # the consumer of a value whose last chunk was not pushed yet

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {len(self.consumers)} consumers, at {self._next}, "
            f"{len(self._is_again)} again, {len(self._delayed)} delayed>"
        )

    @property
    def consumers(self) -> Sequence[SubscribedConsumer]:
        """The consumers: by priority, then as they came."""
        return self._rotation.consumers

    def add(self, consumer: SubscribedConsumer) -> None:
        """Add a consumer."""
        self._rotation.add(consumer)

    def remove(self, consumer: SubscribedConsumer) -> None:
        """Remove a consumer; what it has not acknowledged goes to others. The counts end with the last one."""
        self._rotation.remove(consumer)
        self._of_chunks = {uuid: each for uuid, each in self._of_chunks.items() if each is not consumer}
        self._put_again(self._take_back(consumer))
        if not self.consumers:
            self.redeliveries.clear()
        self.dispatch()

    def flow(self, consumer: SubscribedConsumer, permits: int) -> None:
        """A consumer may get more messages."""
        consumer.permits += permits
        self._rotation.refresh(consumer)
        self.dispatch()

    def _take_back(self, consumer: SubscribedConsumer, indexes: Iterable[int] | None = None) -> list[int]:
        """Take entries away from a consumer, by default all that it has; return those that it had."""
        given = consumer.give_back(None if indexes is None else list(indexes))
        for index in given:
            self._holders.pop(index, None)
        self._rotation.refresh(consumer)
        return given

    # --- entries ----------------------------------------------------------------------------------------------------------

    @property
    def read_to(self) -> int:
        """The next new entry."""
        return self._next

    @property
    def has_others(self) -> bool:
        """Whether entries wait to be delivered again, or for their time."""
        return bool(self._is_again or self._delayed)

    def rewind(self) -> None:
        """Everything that is not acknowledged comes again: the subscription was moved."""
        for consumer in self.consumers:
            self._take_back(consumer)
        self._of_chunks.clear()
        self._again.clear()
        self._is_again.clear()
        self._delayed.clear()
        self.redeliveries.clear()
        self._next = self._cursor.next_unacked(self._log.first)
        self.dispatch()

    def dispatch(self) -> None:
        """Push as many entries as there are permits for."""
        rotation = self._rotation
        while rotation.is_any_able and (entry := self._next_entry()) is not None:
            consumer = rotation.next() if entry.metadata.uuid is None else self._next_for_chunk(entry)
            if consumer is None:
                self._put_again((entry.index,))
                return
            self._push(consumer, entry)

    def _next_for_chunk(self, entry: StoredEntry) -> SubscribedConsumer | None:
        """Return the consumer that has the earlier chunks of a value; None if it has no permits (`SharedConsumerAssignor`).

        Each chunk takes a permit. One that has to wait for them is read again before all entries after it, so that these wait as well.
        A chunk whose first one is with no consumer goes to the next consumer: its client drops a value that cannot be complete.
        Pulsar up to 4.2 keeps such a chunk, and with it all entries after it, until the topic is unloaded or the chunk is skipped
        (apache/pulsar#26395); this is what #26396 does instead.
        """
        metadata = entry.metadata
        if metadata.uuid is None or metadata.chunk_id is None or metadata.num_chunks_from_msg is None:
            return self._rotation.next()
        found = self._of_chunks.get(metadata.uuid)
        if found is None:
            found = self._rotation.next()
        elif found.permits <= 0:
            return None
        if found is not None and metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            self._of_chunks[metadata.uuid] = found
        else:
            self._of_chunks.pop(metadata.uuid, None)
        return found

    def _push(self, consumer: SubscribedConsumer, entry: StoredEntry) -> None:
        cursor, index = self._cursor, entry.index
        self._holders[index] = consumer
        consumer.take(
            entry, cursor.deliverable(entry), cursor.partly_acked(entry), self.redeliveries.get(index, 0)
        )

    def _next_entry(self) -> StoredEntry | None:
        log, cursor = self._log, self._cursor
        while (index := self._next_index()) is not None:
            entry = log[index]
            if index in log.hidden:
                cursor.ack(entry)
            elif index in cursor.reserved and not cursor.deliverable(entry):
                continue  # it comes again if the transaction is aborted
            elif not self._is_delayed(entry):
                return entry
        return None

    def _next_index(self) -> int | None:
        while self._again:
            index = heappop(self._again)
            if index in self._is_again:
                self._is_again.discard(index)
                if index >= self._log.first and not self._cursor.is_acked(index):
                    return index
        self._next = self._cursor.next_unacked(max(self._next, self._log.first))
        if self._next >= self._log.read_end:
            return None
        self._next += 1
        return self._next - 1

    def _is_delayed(self, entry: StoredEntry) -> bool:
        """Whether the time of an entry has not come; then it is kept until it has."""
        time = entry.metadata.deliver_at_time
        if time is None or time <= self._now():
            return False
        heappush(self._delayed, (time, entry.index))
        self._wake(self._delayed[0][0])
        return True

    def on_due(self) -> None:
        """The time of delayed entries has come."""
        now = self._now()
        due = []
        while self._delayed and self._delayed[0][0] <= now:
            due.append(heappop(self._delayed)[1])
        self._put_again(due)
        if self._delayed:
            self._wake(self._delayed[0][0])
        self.dispatch()

    def _put_again(self, indexes: Iterable[int]) -> None:
        for index in indexes:
            if index not in self._is_again and not self._cursor.is_acked(index):
                self._is_again.add(index)
                heappush(self._again, index)

    def redeliver(
        self,
        consumer: SubscribedConsumer,
        indexes: Iterable[int] | None,
        epoch: int | None,  # noqa: ARG002  ordered subscriptions have it
    ) -> None:
        """Entries of a consumer are to be delivered again, to any of them; None: all that it has."""
        given = self._take_back(consumer, indexes)
        for index in given:
            self.redeliveries[index] += 1
        self._put_again(given)
        self.dispatch()

    def acked(self, index: int, left: int) -> None:
        """Messages of an entry were acknowledged, by any consumer; `left` are not."""
        holder = self._holders.get(index)
        if holder is not None:
            holder.acked(index, left)
            self._rotation.refresh(holder)
        if not left:
            self._holders.pop(index, None)
            self.redeliveries.pop(index, None)
            self._is_again.discard(index)

    def reserved(self, index: int, left: int) -> None:
        """An open transaction has acknowledged messages of an entry; `left` are those that may still be delivered."""
        holder = self._holders.get(index)
        if holder is not None:
            holder.acked(index, left)
            self._rotation.refresh(holder)
        if not left:
            self._holders.pop(index, None)

    def restore(self, indexes: Iterable[int]) -> None:
        """A transaction was aborted: the entries that it had acknowledged come again, to any consumer."""
        # those after `_next` are read there: a dispatcher may be newer than the transaction
        again = [index for index in indexes if index < self._next and not self._cursor.is_acked(index)]
        for index in again:
            self.redeliveries[index] += 1
            if (holder := self._holders.get(index)) is not None:
                self._take_back(holder, [index])
        self._put_again(again)
        self.dispatch()


class KeySharedDispatcher(SharedDispatcher):
    """The entries of a key go to one consumer at a time (`PersistentStickyKeyDispatcherMultipleConsumers`).

    A hash with entries that are not acknowledged stays with their consumer when its owner changes (PIP-379). An entry that cannot go
    to its consumer now waits, and so does all after it with its hash.
    """

    def __init__(
        self,
        log: TopicLog,
        cursor: Cursor,
        now: Callable[[], int],
        wake: Callable[[int], None],
        mode: KeySharedMode,
        *,
        keeps_order: bool,
    ) -> None:
        super().__init__(log, cursor, now, wake)
        self.mode = mode
        self._keeps_order = keeps_order
        self._selector: KeySelector = (
            StickySelector() if mode is KeySharedMode.STICKY else ConsistentSelector()
        )
        self._numbers: dict[int, SubscribedConsumer] = {}
        self._next_number = 0
        self._drains: dict[int, dict[int, SubscribedConsumer]] = defaultdict(dict)
        """By hash, the entries that consumers have."""

    def add(self, consumer: SubscribedConsumer) -> None:
        """Add a consumer. Raises RangeConflict."""
        meta = consumer.command.key_shared_meta
        ranges = [(each.start, each.end) for each in meta.hash_ranges] if meta is not None else []
        self._selector.add(self._next_number, consumer.name, ranges)
        self._numbers[self._next_number] = consumer
        self._next_number += 1
        super().add(consumer)

    def remove(self, consumer: SubscribedConsumer) -> None:
        """Remove a consumer; its keys go to others."""
        number = next(number for number, each in self._numbers.items() if each is consumer)
        self._selector.remove(number)
        del self._numbers[number]
        for index in consumer.pending:
            self._drained(index)
        super().remove(consumer)

    def rewind(self) -> None:
        """Everything that is not acknowledged comes again."""
        self._drains.clear()
        super().rewind()

    def dispatch(self) -> None:
        """Push what can go to the consumer of its key; the rest waits in order."""
        if not self._rotation.is_any_able:
            return
        waiting: list[int] = []
        blocked: set[int] = set()
        while (entry := self._next_entry()) is not None:
            key_hash = self._selector.hash_of(entry.key)
            consumer = None if key_hash in blocked else self._consumer_of(key_hash)
            if consumer is None or not consumer.can_take:
                waiting.append(entry.index)
                blocked.add(key_hash)
                # `look ahead` has a limit, as in Pulsar
                if not self._rotation.is_any_able or len(waiting) >= LOOK_AHEAD:
                    break
                continue
            self._drains[key_hash][entry.index] = consumer
            self._push(consumer, entry)
        self._put_again(waiting)

    def _consumer_of(self, key_hash: int) -> SubscribedConsumer | None:
        owner_number = self._selector.owner(key_hash)
        owner = None if owner_number is None else self._numbers[owner_number]
        if not self._keeps_order:
            return owner
        holders = self._drains.get(key_hash)
        if holders:
            # a new owner waits until the one before has acknowledged
            return owner if next(iter(holders.values())) is owner else None
        return owner

    def _drained(self, index: int) -> None:
        if index < self._log.first:
            return
        key_hash = self._selector.hash_of(self._log[index].key)
        holders = self._drains.get(key_hash)
        if holders is not None:
            holders.pop(index, None)
            if not holders:
                del self._drains[key_hash]

    def redeliver(
        self, consumer: SubscribedConsumer, indexes: Iterable[int] | None, epoch: int | None
    ) -> None:
        """Entries of a consumer are to be delivered again."""
        asked = (
            list(consumer.pending)
            if indexes is None
            else [each for each in indexes if each in consumer.pending]
        )
        for index in asked:
            self._drained(index)
        super().redeliver(consumer, asked, epoch)

    def acked(self, index: int, left: int) -> None:
        """Messages of an entry were acknowledged."""
        super().acked(index, left)
        if not left:
            self._drained(index)

    def reserved(self, index: int, left: int) -> None:
        """An open transaction has acknowledged messages of an entry."""
        super().reserved(index, left)
        if not left:
            self._drained(index)

    def restore(self, indexes: Iterable[int]) -> None:
        """A transaction was aborted: the entries that it had acknowledged come again."""
        again = list(indexes)
        for index in again:
            self._drained(index)
        super().restore(again)


LOOK_AHEAD: Final = 2_000
"""Entries that wait for their consumer from which on no later ones are looked at
(`keySharedLookAheadMsgInReplayThresholdPerSubscription` is 20,000, per consumer 2,000)."""
