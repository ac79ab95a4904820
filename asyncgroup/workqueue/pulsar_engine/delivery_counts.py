"""DeliveryCounts: how often messages of a partition were delivered before they have arrived again.

The number is the larger one of two: of the deliveries that have failed here, and of those that the broker counts for all
consumers. In Shared and Key_Shared subscriptions the broker counts requests for redelivery (`redeliverUnacknowledgedMessages` of
`PersistentDispatcherMultipleConsumers`, Pulsar 4): neither the end of a consumer nor that of its process. It forgets its counts
when the topic moves, and when the last consumer leaves. A request may also be for a message that no handler had, such as a chunk
whose value was incomplete. So the broker's count alone makes no dead letter: a message whose deliveries were all made, as far as
the broker knows, is delivered once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.workqueue.pulsar_engine.copies import earlier_attempts

if TYPE_CHECKING:
    from asyncgroup.workqueue.policies import DeadLetter
    from asyncgroup.workqueue.receive_limits import ReceiveLimits

__all__ = ["MOST_UNACKED", "DeliveryCounts"]

MOST_UNACKED: Final = 50_000
"""Messages that a broker leaves unacknowledged at a consumer by default (`maxUnackedMessagesPerConsumer`). So many numbers of
deliveries are kept, over all partitions, of messages that have failed here and were withdrawn or given back."""


class DeliveryCounts:
    """The numbers of one partition. `has_copies`: its messages are copies, which have the number of the deliveries before them."""

    def __init__(self, limits: ReceiveLimits, policy: DeadLetter | None, *, has_copies: bool) -> None:
        self.failed: dict[MessageId, int] = {}
        """Numbers of deliveries of messages that were withdrawn or given back after they had failed here."""
        self._limits = limits
        self._most_counted = None if policy is None else policy.max_redeliveries
        """The most deliveries by the broker's count that leave one to be made; None without a limit."""
        self._has_copies = has_copies

    def __repr__(self) -> str:
        return f"<DeliveryCounts of {len(self.failed)} failed messages>"

    def remember(self, message_id: MessageId, attempts: int) -> None:
        """Keep the number of a message that may come again; those kept first are of messages of other consumers now."""
        failed = self.failed
        failed[message_id] = attempts
        while len(failed) > MOST_UNACKED // max(1, self._limits.partitions):
            del failed[next(iter(failed))]

    def pop(self, message: PulsarMessage) -> int:
        """Forget and return the number of a message that has arrived: the larger one of the broker's count and ours, never the sum."""
        counted = message.entry.redelivery_count
        if counted and self._most_counted is not None:
            earlier = earlier_attempts(message) if self._has_copies else 0
            counted = min(counted, max(0, self._most_counted - earlier))
        return max(counted, self.failed.pop(message.message_id, 0))
