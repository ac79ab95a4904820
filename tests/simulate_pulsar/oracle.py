"""What a subscription has received and acknowledged, and the invariants of that. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from asyncgroup.pulsar import PulsarMessage
from tests.simulate_pulsar.plan import SubscriptionSpec
from tests.simulation.story import Violation

__all__ = ["MessagePlace", "PartitionOracle", "SubscriptionOracle", "place_of"]


class MessagePlace(NamedTuple):
    """Where a message is in its partition; of a value in chunks its last one. Places sort as the log does."""

    ledger: int
    entry: int
    index: int


def place_of(message: PulsarMessage) -> MessagePlace:
    """Return the place of a message that was received."""
    found = message.message_id
    return MessagePlace(found.ledger_id, found.entry_id, max(found.batch_index, 0))


class PartitionOracle:
    """One partition of a subscription."""

    def __init__(self, subscription: SubscriptionSpec, topic: str) -> None:
        self.subscription = subscription
        self.topic = topic
        self.received: Counter[MessagePlace] = Counter()
        """The messages that were received since the last seek."""
        self.acked: dict[MessagePlace, float] = {}
        """Those that a consumer has acknowledged, perhaps in vain, and the time from which the broker must know it."""
        self.kept_over_seek: set[MessagePlace] = set()
        """Messages of batches that were acknowledged before a seek in a Shared or Key_Shared subscription.

        The broker forgets that for the whole entry only. The consumer that has moved the subscription knows it; another one does not get
        them again. In Exclusive and Failover subscriptions it forgets all.
        """
        self.required_from: MessagePlace | None = None
        """The first message that has to be received; None: all."""
        self.whole: set[tuple[int, int]] = set()
        """Entries of which the broker has such acknowledgements: it gets one of the whole entry, after its last message."""
        self._pushed_at: dict[tuple[int, int], float] = {}
        self._moved_at = -inf
        self._before_seek: set[MessagePlace] = set()
        self._firsts: defaultdict[bytes | None, list[MessagePlace]] = defaultdict(
            list
        )  # by key, in their order
        self._redelivered: set[tuple[int, int]] = set()
        self._confirmed: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._confirmed_up_to: MessagePlace | None = None

    def __repr__(self) -> str:
        return f"<PartitionOracle {self.topic} of {self.subscription.name}: {len(self.received)} received>"

    # --- consumers --------------------------------------------------------------------------------------------------------

    def receive(self, who: str, message: PulsarMessage, *, is_exact: bool) -> None:
        """A program has received a message; `is_exact`: none is pushed again that was acknowledged. Raises Violation."""
        place = place_of(message)
        text = f"{who} gets {message.value!r:.30} at {tuple(place)} of {self.topic}"
        if is_exact and self.acked.get(place, inf) <= self._pushed_at[place[:2]]:
            raise Violation("orderly actions cost no acknowledgement", f"{text} again")
        if place not in self.received:
            self._check_order(message, place, text)
        self.received[place] += 1

    def _check_order(self, message: PulsarMessage, place: MessagePlace, text: str) -> None:
        """Check that first deliveries are in order: of a partition, or in Key_Shared subscriptions of a key."""
        kind = self.subscription.kind
        if kind == "shared" or (message.value or b"").split(b".")[0].endswith(b"d"):
            return
        key = message.key if kind == "key_shared" else None
        if kind == "key_shared" and key is None:
            return
        firsts = self._firsts[key]
        if firsts and place < firsts[-1]:
            raise Violation("first deliveries are in order", f"{text} after {tuple(firsts[-1])}, key {key!r}")
        if place[:2] not in self._redelivered:
            firsts.append(place)

    def begin(self) -> None:
        """Another consumer has begun, which does not know what was acknowledged before a seek."""
        if not self.subscription.in_order:
            self.kept_over_seek |= self._before_seek

    def ack(self, places: Iterable[MessagePlace], now: float, seconds: float) -> None:
        """A consumer has acknowledged messages; if nothing fails the broker has that `seconds` later at the latest.

        Another consumer gets messages only after the first one has closed, and it sends its acknowledgements before. But of a Failover
        subscription the active consumer changes while both are open, and the next one gets all that is not acknowledged then:
        `activeConsumerFailoverDelayTimeMillis` makes that rare (`PersistentDispatcherSingleActiveConsumer.scheduleReadOnActiveConsumer`),
        and does not wait for acknowledgements.
        """
        known_at = now + seconds if self.subscription.kind == "failover" else 0.0
        for place in places:
            self.acked.setdefault(place, known_at)

    def confirm(self, place: MessagePlace) -> None:
        """The broker has confirmed an acknowledgement."""
        self._confirmed[place[:2]] |= 1 << place.index

    def confirm_up_to(self, place: MessagePlace) -> None:
        """The broker has confirmed an acknowledgement of all messages up to one."""
        if self._confirmed_up_to is None or place > self._confirmed_up_to:
            self._confirmed_up_to = place

    # --- the broker -------------------------------------------------------------------------------------------------------

    def push(self, position: tuple[int, int], bits: int, now: float, *, count: int = 1) -> None:
        """The broker pushes messages of an entry, which has `count`. Raises Violation."""
        is_first = self._moved_at > self._pushed_at.get(position, -inf)
        if is_first and bits.bit_count() < count and not self.subscription.in_order:
            self.whole.add(position)
        self._pushed_at[position] = now
        again = bits & self._confirmed.get(position, 0)
        last = self._confirmed_up_to
        if last is not None and position < last[:2]:
            again = bits
        elif last is not None and position == last[:2]:
            again |= bits & ((1 << (last.index + 1)) - 1)
        if again:
            text = f"{self.topic}: {position}, messages {again:b} in bits"
            raise Violation("what is acknowledged is not pushed again", text)

    def redeliver_all(self, positions: Iterable[tuple[int, int]]) -> None:
        """A consumer has asked for all that it has, these entries.

        It has dropped those that it had queued. Without epochs, which only Exclusive and Failover subscriptions have (PIP-84), the others
        of them that are on their way count: so it may receive later ones first (`ConsumerImpl.redeliverUnacknowledgedMessages`), also
        before its request has reached the broker.
        """
        if not self.subscription.in_order:
            self._redelivered.update(positions)
            for key, firsts in self._firsts.items():
                self._firsts[key] = [each for each in firsts if each[:2] not in self._redelivered]

    def move(self, to: MessagePlace, now: float) -> None:
        """The broker has moved the subscription: it may push everything from there on."""
        self._moved_at = now
        self.whole.clear()
        self._confirmed.clear()
        self._confirmed_up_to = None
        self.restart(to)

    def restart(self, required_from: MessagePlace | None) -> None:
        """The subscription has moved, and this message has to be received; None: all."""
        self._before_seek |= self.acked.keys()
        self.received.clear()
        self.acked.clear()
        self._firsts.clear()
        self._redelivered.clear()
        self.required_from = required_from

    def may_begin_at(self, first: MessagePlace, entry: tuple[int, int]) -> None:
        """A consumer has failed to move the subscription to this entry, and leaves out what is before `first` if it was moved."""
        if self.required_from is not None and self.required_from[:2] == entry:
            self.required_from = max(self.required_from, first)

    def leave_out(self, first: MessagePlace) -> None:
        """A consumer has moved the subscription into a batch: the messages before `first` are acknowledged with those that it gets.

        In Shared and Key_Shared subscriptions the broker keeps that over the next seek, as other acknowledgements of messages of batches.
        """
        self._before_seek.update(first._replace(index=index) for index in range(first.index))


class SubscriptionOracle:
    """All partitions of a subscription."""

    def __init__(self, spec: SubscriptionSpec) -> None:
        self.spec = spec
        self.partitions: dict[str, PartitionOracle] = {}
        self.handled: set[bytes] = set()
        """The values that a handler of a work queue has finished."""
        self.failures: Counter[bytes] = Counter()
        """How often a handler has failed."""

    def __repr__(self) -> str:
        return f"<SubscriptionOracle {self.spec.name}: {len(self.partitions)} partitions>"

    def at(self, topic: str) -> PartitionOracle:
        """Return that of a partition, by its complete name."""
        found = self.partitions.get(topic)
        if found is None:
            found = self.partitions[topic] = PartitionOracle(self.spec, topic)
        return found

    def of(self, message: PulsarMessage) -> PartitionOracle:
        """Return that of the partition of a message."""
        partition = message.partition
        return self.at(f"{message.topic}-partition-{partition}" if partition >= 0 else message.topic)
