"""ConsumerRotation: whose turn it is among the consumers of a Shared subscription. Pure state.

Each call looks at the consumers that may take an entry, not at all of them: a subscription may have thousands.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import SubscribedConsumer

__all__ = ["ConsumerRotation"]

LOT: Final = 20
"""Entries that a consumer gets before the next one has its turn (`dispatcherMaxRoundRobinBatchSize`)."""


class ConsumerRotation:
    """The consumers in turn, those with a lower priority while no other may take an entry.

    After a change that may let a consumer take entries again, `refresh` has to be called.
    """

    def __init__(self) -> None:
        self.consumers: list[SubscribedConsumer] = []
        """All of them: by priority, then as they came."""
        self._places: dict[SubscribedConsumer, int] = {}
        # sorted places of those that may take entries; one that has no permits any more stays until it is met
        self._able: list[int] = []
        self._turn = 0
        self._in_lot = 0

    def __repr__(self) -> str:
        return f"<ConsumerRotation of {len(self.consumers)} consumers, {len(self._able)} perhaps able>"

    def add(self, consumer: SubscribedConsumer) -> None:
        """Add a consumer."""
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda each: each.priority)
        self._number()

    def remove(self, consumer: SubscribedConsumer) -> None:
        """Remove a consumer."""
        self.consumers.remove(consumer)
        self._number()

    def _number(self) -> None:
        self._places = {each: place for place, each in enumerate(self.consumers)}
        self._able = [place for place, each in enumerate(self.consumers) if each.can_take]
        self._turn %= max(1, len(self.consumers))

    def refresh(self, consumer: SubscribedConsumer) -> None:
        """A consumer may take entries again, perhaps."""
        place = self._places.get(consumer)
        if place is None or not consumer.can_take:
            return
        at = bisect_left(self._able, place)
        if at == len(self._able) or self._able[at] != place:
            self._able.insert(at, place)

    @property
    def is_any_able(self) -> bool:
        """Whether any consumer may take an entry."""
        able = self._able
        while able and not self.consumers[able[-1]].can_take:
            able.pop()
        return bool(able)

    def next(self) -> SubscribedConsumer | None:
        """Return the consumer that gets the next entry, and count the entry; None if none may take one."""
        able, consumers = self._able, self.consumers
        while able and not consumers[able[0]].can_take:
            del able[0]
        if not able:
            return None
        best = consumers[able[0]].priority
        current = consumers[self._turn]
        if self._in_lot >= LOT or current.priority != best or not current.can_take:
            self._in_lot = 0
            self._turn = self._next_place(best)
            current = consumers[self._turn]
        self._in_lot += 1
        return current

    def _next_place(self, priority: int) -> int:
        """Return the place of the next one with this priority after that whose turn it is; the first one is able."""
        able, consumers = self._able, self.consumers
        at = bisect_right(able, self._turn)
        while at < len(able) and consumers[able[at]].priority == priority:
            if consumers[able[at]].can_take:
                return able[at]
            del able[at]
        return able[0]
