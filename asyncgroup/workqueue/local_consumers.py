"""Local consumers: several consumers of one work queue in one process, and which of them receives a record. Pure state.

Pulsar's brokers choose among all consumers of a subscription. Kafka's brokers assign partitions to members, so dispatch
priority and hash ranges hold here among the consumers of one process.

- Mode.SHARED: in turn among the consumers with permits that have the highest priority.
- Mode.KEY_SHARED: the consumer whose hash range contains the record's ordering key. Records without one have no order
  and are handled as in Mode.SHARED. (Pulsar 4 spreads them too, with the producer's name and the sequence id as their
  key, apache/pulsar#23219; earlier versions send them all to one consumer, with the key `NONE_KEY`.)

A hash range may move to another consumer while a record from it is being handled. That does not break the order of a key:
the dispatcher delivers no record of a key to any consumer before the delivery of the one before it has ended. Pulsar's
dispatcher has no such rule by key, and needs `DrainingHashesTracker` for this.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable

from asyncgroup.checks import COUNT, check_count
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.hashing.key_ranges import AutoSplitRanges, ExplicitRanges, KeyRange, key_hash, parse_ranges
from asyncgroup.workqueue.delivery import Delivery, DeliveryState
from asyncgroup.workqueue.modes import Mode

__all__ = ["ConsumerSelector", "LocalConsumer"]


class LocalConsumer:
    """One of several consumers of a work queue: its permits, and the deliveries that wait for it.

    Each permit allows one delivery to be dispatched. As in Pulsar's client, permits are given back when half of them
    have been used by deliveries that were taken from the inbox (`ConsumerImpl.increaseAvailablePermits`).

    Raises ConfigError for an empty name, a negative priority, permits below 1, and invalid ranges.
    """

    def __init__(
        self,
        name: str,
        *,
        priority: int = 0,
        permits: int = 1000,
        key_ranges: Iterable[KeyRange | tuple[int, int]] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError("name", name, "a string that is not empty")
        if not COUNT[0](priority):
            raise ConfigError("priority", priority, f"{COUNT[1]}; 0 is the highest priority")
        check_count("receiver_queue", permits)
        self.name = name
        self.priority = priority
        """The priority level: 0 is the highest, as Pulsar's `priorityLevel`."""
        self.permits = permits
        """The largest number of deliveries in the inbox, as Pulsar's `receiverQueueSize`."""
        self.key_ranges = None if key_ranges is None else parse_ranges(key_ranges)
        """The hash ranges that the consumer names; None if the hashes are divided automatically."""
        self.refill_at = max(1, permits // 2)
        """The number of deliveries taken from the inbox after which their permits are given back."""
        self.available = permits
        """The number of deliveries that may still be dispatched to it."""
        self.inbox: deque[Delivery] = deque()
        """The deliveries that were dispatched and not taken, the oldest first."""
        self.closed = False
        self.on_refill: Callable[[], None] = lambda: None
        """Called when permits were given back: records that wait for them may be dispatched."""
        self._taken = 0  # since permits were last given back; available + len(inbox) + _taken == permits

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.available} of {self.permits} permits"
        return (
            f"<LocalConsumer {self.name}, priority {self.priority}: {state}, {len(self.inbox)} in the inbox>"
        )

    @property
    def has_permits(self) -> bool:
        """Whether a delivery may be dispatched to it."""
        return self.available > 0 and not self.closed

    def count(self) -> int:
        """Return the number of deliveries in the inbox."""
        return len(self.inbox)

    def put(self, delivery: Delivery) -> None:
        """Dispatch a delivery: use a permit and append to the inbox. Raises UsageError without permits."""
        if not self.has_permits:
            raise UsageError(f"put() of {delivery!r}: {self!r} has no permits")
        self.available -= 1
        self.inbox.append(delivery)

    def take(self) -> Delivery | None:
        """Return the oldest open delivery of the inbox, or None.

        Deliveries that ended in the inbox (the partition was revoked, the ack timeout has passed) are dropped.
        """
        while self.inbox:
            delivery = self.inbox.popleft()
            is_acquired = delivery.state is DeliveryState.ACQUIRED
            self._give_back(1)  # which may fill the inbox again
            if is_acquired:
                return delivery
        return None

    def drop_ended(self) -> None:
        """Drop the deliveries that ended in the inbox: to be called when a partition has been revoked."""
        kept = [delivery for delivery in self.inbox if delivery.state is DeliveryState.ACQUIRED]
        dropped = len(self.inbox) - len(kept)
        # before permits are given back, which may fill it again
        self.inbox = deque(kept)
        self._give_back(dropped)

    def close(self) -> list[Delivery]:
        """Accept no more deliveries; return the open ones of the inbox, the oldest first."""
        self.closed = True
        left = [delivery for delivery in self.inbox if delivery.state is DeliveryState.ACQUIRED]
        self.inbox.clear()
        return left

    def _give_back(self, count: int) -> None:
        self._taken += count
        if self._taken >= self.refill_at:
            self.available += self._taken
            self._taken = 0
            self.on_refill()


class ConsumerSelector:
    """The local consumers of a work queue, and the choice of the consumer for each record.

    As Pulsar's `AbstractDispatcherMultipleConsumers.getNextConsumer`, except that each priority level keeps its own
    turn: Pulsar keeps one index for all levels, and begins with the first consumer of a level each time it returns to
    that level, so that the others of the level may starve.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._consumers: dict[str, LocalConsumer] = {}
        self._levels: list[
            tuple[int, deque[LocalConsumer]]
        ] = []  # by priority; the next consumer in turn is first
        self._ranges: AutoSplitRanges | ExplicitRanges = AutoSplitRanges()

    def __repr__(self) -> str:
        return f"<ConsumerSelector {self.mode.value}: {list(self._consumers.values())}>"

    @property
    def consumers(self) -> tuple[LocalConsumer, ...]:
        """The consumers in the order in which they were added."""
        return tuple(self._consumers.values())

    @property
    def has_permits(self) -> bool:
        """Whether a delivery may be dispatched to any of the consumers."""
        return any(consumer.has_permits for consumer in self._consumers.values())

    @property
    def ranges(self) -> dict[str, tuple[KeyRange, ...]]:
        """The hash ranges of each consumer, by its name; empty unless the mode is Mode.KEY_SHARED."""
        return self._ranges.ranges()

    @property
    def gaps(self) -> tuple[KeyRange, ...]:
        """The hash ranges without a consumer, whose records wait; empty unless the mode is Mode.KEY_SHARED."""
        return self._ranges.gaps() if self.mode is Mode.KEY_SHARED else ()

    def add(self, consumer: LocalConsumer) -> None:
        """Add a consumer; on an error nothing changes.

        Raises ConfigError if its name is in use, if its hash ranges overlap with those of another consumer, if only
        some of the consumers name hash ranges, if it names ranges in another mode than Mode.KEY_SHARED, and for a
        second consumer in modes that deliver in order. Raises UsageError for a closed consumer.
        """
        if consumer.closed:
            raise UsageError(f"add() of {consumer!r}: it was closed")
        self._check(consumer)
        if self.mode is Mode.KEY_SHARED:
            self._add_ranges(consumer)
        self._consumers[consumer.name] = consumer
        for priority, ring in self._levels:
            if priority == consumer.priority:
                ring.append(consumer)
                return
        insort(self._levels, (consumer.priority, deque([consumer])), key=lambda level: level[0])

    def remove(self, consumer: LocalConsumer) -> list[Delivery]:
        """Remove and close a consumer; return the open deliveries of its inbox, the oldest first.

        The caller releases them, the newest first: each one released becomes the next to be delivered. No effect for a
        consumer that was removed before.
        """
        if self._consumers.get(consumer.name) is not consumer:
            return []
        del self._consumers[consumer.name]
        for _, ring in self._levels:
            if consumer in ring:
                ring.remove(consumer)
        self._levels = [level for level in self._levels if level[1]]
        self._ranges.remove(consumer.name)
        return consumer.close()

    def owner(self, ordering_key: bytes) -> LocalConsumer | None:
        """Return the consumer whose hash range contains the key, with or without permits; None if there is none."""
        name = self._ranges.owner(key_hash(ordering_key))
        return None if name is None else self._consumers[name]

    def select(self, ordering_key: bytes | None) -> LocalConsumer | None:
        """Return the consumer for the next delivery, or None if the record has to wait; the caller calls its `put`.

        With a key in Mode.KEY_SHARED, None means that the consumer of this key has no permits, or that there is no
        such consumer; records of other keys may be dispatched. Otherwise no consumer has permits.
        """
        if self.mode is not Mode.KEY_SHARED or ordering_key is None:
            return self._next_in_turn()
        consumer = self.owner(ordering_key)
        return consumer if consumer is not None and consumer.has_permits else None

    def _next_in_turn(self) -> LocalConsumer | None:
        for _, ring in self._levels:
            for index, consumer in enumerate(ring):
                if consumer.has_permits:
                    # the next search begins after this one
                    ring.rotate(-1 - index)
                    return consumer
        return None

    def _check(self, consumer: LocalConsumer) -> None:
        if consumer.name in self._consumers:
            raise ConfigError("name", consumer.name, "a name that no other consumer of the queue has")
        if self.mode.in_order and self._consumers:
            allowed = f"{Mode.SHARED.value} or {Mode.KEY_SHARED.value} for several consumers of one queue"
            raise ConfigError("mode", self.mode.value, allowed)
        if consumer.key_ranges is not None and self.mode is not Mode.KEY_SHARED:
            raise ConfigError("key_ranges", consumer.key_ranges, f"None in mode {self.mode.value}")

    def _add_ranges(self, consumer: LocalConsumer) -> None:
        name, named = consumer.name, consumer.key_ranges
        # the first consumer decides how hashes are divided
        if not self._consumers:
            self._ranges = AutoSplitRanges() if named is None else ExplicitRanges()
        if isinstance(self._ranges, ExplicitRanges) and named is not None:
            self._ranges.add(name, named)
        elif isinstance(self._ranges, AutoSplitRanges) and named is None:
            self._ranges.add(name)
        else:  # Pulsar: all consumers of a subscription have the same `KeySharedMode`
            rule = "None, as for" if named is not None else "hash ranges, as for"
            raise ConfigError("key_ranges", named, f"{rule} the other consumers of the queue")
