"""SubscriptionPosition: where a consumer goes on in its partition, after a seek and after a reconnect.

The broker keeps the position of a durable subscription. It forgets one that is not durable with its connection: the consumer
begins after what was taken.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.errors import UsageError
from asyncgroup.pulsar.attach_history import AttachHistory
from asyncgroup.pulsar.consumer.acks.unacked import EntryKey
from asyncgroup.pulsar.consumer.partition.consumer_parts import ConsumerParts
from asyncgroup.pulsar.consumer.partition.identity import ConsumerIdentity
from asyncgroup.pulsar.consumer.partition.message_outcomes import MessageOutcomes
from asyncgroup.pulsar.consumer.receiving.arrivals import StartPosition
from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["SubscriptionPosition"]


class SubscriptionPosition:
    """The position of one consumer.

    `flow` asks for messages if there is room, `on_restart` is called when other messages come than those that are queued.
    """

    def __init__(
        self,
        identity: ConsumerIdentity,
        parts: ConsumerParts,
        outcomes: MessageOutcomes,
        history: AttachHistory,
        flow: Callable[[], None],
        on_restart: Callable[[], None],
    ) -> None:
        self.is_seeking = False
        """Whether nothing is delivered, as the subscription is moved."""
        self.is_at_end = False
        """Whether the topic was terminated and all of its messages were pushed."""
        self.last_taken: MessageId | None = None
        """The last message that was taken since the last seek, of a subscription that is not durable."""
        self._name = identity.name
        self._is_durable = identity.config.durable
        self._parts = parts
        self._outcomes = outcomes
        self._history = history
        self._flow = flow
        self._on_restart = on_restart

    def __repr__(self) -> str:
        return f"<SubscriptionPosition of {self._name}{': it seeks' if self.is_seeking else ''}>"

    def detach(self) -> None:
        """The consumer is not registered any more; of a subscription that is not durable the broker forgets the position."""
        if self._is_durable or self.is_seeking:
            return
        queue = self._parts.queue
        if self.last_taken is not None:
            start = StartPosition.at(self.last_taken, inclusive=False)
        elif queue:
            start = StartPosition.at(next(iter(queue)).message_id, inclusive=True)
        else:
            return
        self._parts.subscribing.start = self._parts.arrivals.start = start

    # --- seek -------------------------------------------------------------------------------------------------------------

    def begin_seek(self) -> None:
        """Deliver nothing from now on: see `seeking`. Raises UsageError during another seek."""
        if self.is_seeking:
            raise UsageError(f"{self._name}: it seeks already")
        self.is_seeking = self._parts.acks.is_held = self._history.is_moving = True
        self._parts.void()
        self._outcomes.drop_queue()
        self._on_restart()

    def end_seek(self, start: StartPosition | None, last: EntryKey) -> None:
        """The subscription was moved: forget all that was before. `last` is the last entry that may have been acknowledged."""
        self._outcomes.begin_after_seek()
        self._parts.arrivals.start = start
        if not self._is_durable:
            self._parts.subscribing.start = start
        self.last_taken = None
        self.is_at_end = False
        self._parts.forget(last)
        self._resume()

    def give_up_seek(self) -> None:
        """The subscription was not moved: what is not acknowledged comes again."""
        self._resume()
        if self._outcomes.connection is not None:
            self._outcomes.redeliver_all()

    def _resume(self) -> None:
        self.is_seeking = self._parts.acks.is_held = self._history.is_moving = False
        self._parts.acks.send()
        self._flow()
        self._outcomes.arm()
