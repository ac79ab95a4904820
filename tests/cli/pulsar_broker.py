"""A model of Pulsar's broker that also stores what producers send, for commands that read one topic and write to another.

async with StoringBroker() as broker:           # in virtual time; it listens on port 6650 of the loopback interface
    broker.existing |= {"orders", "orders-billing-DLQ"}
    broker.add("orders-billing-DLQ", b"value", properties=…)
    ...
    assert broker.sent("orders") == …
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from asyncgroup.pulsar.wire.commands import (
    CommandCloseProducer,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    CommandProducer,
    CommandProducerSuccess,
    CommandSend,
    CommandSendError,
    CommandSendReceipt,
    CommandSuccess,
    MessageIdData,
)
from asyncgroup.pulsar.wire.frames import payload_bounds
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from tests.pulsar.broker_model import Link, local_name
from tests.pulsar.consumer.broker import LEDGER, Broker, Consumer, Subscription

__all__ = ["SentMessage", "StoringBroker"]

TOPIC_NOT_FOUND = 11


class SentMessage(NamedTuple):
    """What a producer has sent."""

    value: bytes
    key: str | None
    properties: dict[str, str]
    event_time: int


class StoringBroker(Broker):
    """Topics that are not in `existing` do not exist; SEND is stored without batches."""

    def __init__(self, port: int = 6650) -> None:
        super().__init__(port)
        self.existing: set[str] = set()
        self.refuse_send: Callable[[str], int | None] = lambda _: None
        """Returns an error's code for a SEND to a topic."""
        self._producers: dict[tuple[int, int], str] = {}

    def dead_letter(self, topic: str, value: bytes, *, key: str | None = None, **properties: str) -> int:
        """Store a message with these properties; return its number."""
        return self.add(topic, value, properties=properties, partition_key=key, event_time=5)

    def sent(self, topic: str) -> list[SentMessage]:
        """Return the messages of a topic."""
        return [
            SentMessage(
                entry.body,
                entry.meta.partition_key,
                dict(entry.meta.properties),
                entry.meta.event_time,
            )
            for entry in self.topics[topic]
        ]

    def _on_command(self, link: Link, command: Any) -> None:
        match command:
            case CommandPartitionedTopicMetadata(request_id=number) if not self._exists(command.topic):
                link.send(
                    CommandPartitionedTopicMetadataResponse(
                        request_id=number, response=1, error=TOPIC_NOT_FOUND, message="it does not exist"
                    )
                )
            case CommandProducer(request_id=number):
                self._producers[id(link), command.producer_id] = local_name(command.topic)
                link.send(CommandProducerSuccess(request_id=number, producer_name="p"))
            case CommandCloseProducer(request_id=number):
                del self._producers[id(link), command.producer_id]
                link.send(CommandSuccess(request_id=number))
            case _:
                super()._on_command(link, command)

    def _exists(self, topic: str) -> bool:
        return local_name(topic).partition("-partition-")[0] in self.existing

    def _on_send(self, link: Link, command: CommandSend, frame: bytes, at: int) -> None:
        numbers = {"producer_id": command.producer_id, "sequence_id": command.sequence_id}
        topic = self._producers[id(link), command.producer_id]
        if (code := self.refuse_send(topic)) is not None:
            link.send(CommandSendError(**numbers, error=code, message="refused"))
            return
        bounds = payload_bounds(frame, at)
        meta = MessageMetadata.decode(frame, *bounds.metadata)
        number = self.store(topic, meta, frame[bounds.payload :])
        link.send(
            CommandSendReceipt(
                **numbers, message_id=MessageIdData(ledger_id=LEDGER, entry_id=number), highest_sequence_id=-1
            )
        )

    def _of_consumer(self, link: Link, consumer: Consumer, subscription: Subscription, command: Any) -> None:
        if not isinstance(command, CommandGetLastMessageId):
            super()._of_consumer(link, consumer, subscription, command)
            return
        unread = [number for number in range(len(subscription.topic)) if number not in subscription.acked]
        read = unread[0] - 1 if unread else len(subscription.topic) - 1
        link.send(
            CommandGetLastMessageIdResponse(
                request_id=command.request_id,
                last_message_id=_id(len(subscription.topic) - 1),
                consumer_mark_delete_position=_id(read),
            )
        )


def _id(number: int) -> MessageIdData:
    return MessageIdData(ledger_id=LEDGER, entry_id=number % (1 << 64))
