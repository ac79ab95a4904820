"""Subscribing: the SUBSCRIBE command of a consumer, at first and after a reconnect."""

from __future__ import annotations

from asyncgroup.pulsar.consumer.config import POSITIONS, SubscriptionType
from asyncgroup.pulsar.consumer.partition.identity import ConsumerIdentity
from asyncgroup.pulsar.consumer.receiving.arrivals import AFTER_ALL, StartPosition
from asyncgroup.pulsar.wire.commands import CommandSubscribe, IntRange, KeySharedMeta, MessageIdData
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId

__all__ = ["Subscribing"]

AUTO_SPLIT, STICKY = 0, 1
"""The values of `KeySharedMode`."""


class Subscribing:
    """Makes the SUBSCRIBE commands of the consumer of one partition.

    The broker keeps the position of a durable subscription. One that is not durable ends with its consumer, so it continues at
    `start`, which the consumer moves along.
    """

    def __init__(
        self,
        identity: ConsumerIdentity,
        *,
        creates_topic: bool = True,
    ) -> None:
        self._creates_topic = creates_topic
        self._topic = str(identity.topic)
        self._subscription = identity.subscription
        self._kind = identity.kind
        self._config = config = identity.config
        self._id = identity.id
        self.start: StartPosition | None = None
        """The first message that is wanted of a subscription that is not durable; None for `bound`."""
        self.bound = EARLIEST if config.initial_position == "earliest" else LATEST
        """Where a subscription that is not durable begins without a `start`: EARLIEST or LATEST."""
        if isinstance(config.initial_position, MessageId):
            self.start = StartPosition.at(config.initial_position, inclusive=config.start_inclusive)

    def __repr__(self) -> str:
        return f"<Subscribing to {self._topic} from {self.start}>"

    def command(self, request_id: int, epoch: int) -> CommandSubscribe:
        """Return the command; `epoch` is that of the last redelivery of everything."""
        config = self._config
        position = config.initial_position
        return CommandSubscribe(
            topic=self._topic,
            subscription=self._subscription,
            sub_type=self._kind,
            consumer_id=self._id,
            request_id=request_id,
            consumer_name=config.consumer_name,
            priority_level=config.priority_level,
            durable=config.durable,
            start_message_id=None if config.durable else self._start(),
            metadata=config.properties,
            read_compacted=config.read_compacted or None,
            initial_position=POSITIONS.get(position, 0) if isinstance(position, str) else 0,
            replicate_subscription_state=config.replicate_subscription_state,
            force_topic_creation=self._creates_topic,
            key_shared_meta=self._key_shared(),
            subscription_properties=config.subscription_properties,
            consumer_epoch=epoch,
        )

    def _start(self) -> MessageIdData:
        """Return the id after which the broker begins; inside a batch it steps back by itself."""
        if self.start is None:
            return self.bound.data()
        (ledger, entry), first = self.start
        if first == 0:
            return MessageId(ledger, entry - 1).data()
        if first >= AFTER_ALL:
            return MessageId(ledger, entry).data()
        return MessageId(ledger, entry, -1, first).data()

    def _key_shared(self) -> KeySharedMeta | None:
        if self._kind is not SubscriptionType.KEY_SHARED:
            return None
        ranges = [IntRange(start=start, end=end) for start, end in self._config.key_ranges or ()]
        return KeySharedMeta(
            key_shared_mode=STICKY if ranges else AUTO_SPLIT,
            hash_ranges=ranges,
            allow_out_of_order_delivery=self._config.allow_out_of_order,
        )
