"""PulsarMessage: a message of a topic, with the fields of a Record and Pulsar's own.

A message is created for each one of a batch, and most programs read two or three of its fields. So only its place is kept at
first. What follows from the place at once, as the value, is computed when it is read. Key and headers, whose metadata has to be
decoded, are kept after that in the slots that a Record has for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from asyncgroup.model import Header, Record
from asyncgroup.pulsar.wire.entry import Entry, EntryMessage
from asyncgroup.pulsar.wire.message_id import BatchMessageId, MessageId

__all__ = ["PulsarMessage"]


_new_id: Final = tuple.__new__
"""Creates a BatchMessageId with one call less than its class: it is created for each acknowledgement."""


class PulsarMessage(Record):
    """A message as it was read from a topic.

    `key`, `value`, `headers` (the properties, encoded), `topic` and `partition` (-1 in a topic without partitions) are those of
    a Record. `timestamp` is the publish time in ms. `offset` is -1: the identity of a message is its `message_id`. In a work
    queue `offset` is a number that the queue gives to it.

    A field of a batch whose metadata is malformed raises DecodeError when it is read.
    """

    __slots__ = ("_wire", "attachment", "entry", "index")

    def __init__(self, topic: str, entry: Entry, index: int, attachment: int = 0) -> None:
        self.topic = topic
        self.offset = -1
        self.attachment = attachment
        """The number of its consumer's registration at a broker, on which it has arrived."""
        self.entry = entry
        """What the broker has pushed: the message, or its batch."""
        self.index = index
        """Its index in the entry."""

    if not TYPE_CHECKING:  # for a type checker every name would be a field

        def __getattr__(self, name: str) -> Any:
            """Decode a field when it is first read."""
            decode = _FIELDS.get(name)
            if decode is None:
                # imported here, because its tables of names are needed only for an error
                from asyncgroup.pulsar.consumer.foreign_names import message_hint

                text = f"{type(self).__name__} has no attribute {name!r}{message_hint(name)}"
                raise AttributeError(text, name=name, obj=self)
            value = decode(self)
            setattr(self, name, value)
            return value

    def __repr__(self) -> str:
        return f"<PulsarMessage {self.topic} {self.message_id} key={self.key!r:.40} value={self.value!r:.60}>"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PulsarMessage):
            return (self.topic, self.message_id) == (other.topic, other.message_id)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.topic, self.message_id))

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.topic, self.entry, self.index, self.offset, self.attachment)

    if TYPE_CHECKING:
        _wire: EntryMessage
    else:  # a Record has variables in their place

        @property
        def value(self) -> bytes | None:
            """The payload; None for a null value."""
            entry = self.entry
            if entry.bounds is None:
                return None if entry.metadata.null_value else entry.body
            _, start, end = entry.bounds[self.index]
            if start == end and self._wire.own.null_value:
                return None
            return entry.body[start:end]

        @property
        def partition(self) -> int:
            """The partition; -1 in a topic without partitions."""
            return self.entry.id[2]

        @property
        def timestamp(self) -> int:
            """The publish time in ms."""
            return self.entry.metadata.publish_time

        timestamp_type = 0
        leader_epoch = -1

    @property
    def message_id(self) -> MessageId:
        """Its id: ledger, entry, partition and index in a batch."""
        entry = self.entry
        whole = entry.id
        if entry.bounds is None:
            return whole
        found = _new_id(BatchMessageId, (whole[0], whole[1], whole[2], self.index))
        found.batch_size = entry.count
        return found

    @property
    def size(self) -> int:
        """The bytes that it counts in its consumer's queue: its part of the entry."""
        return len(self.entry.body) // self.entry.count

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties; empty without any."""
        return self._wire.properties

    @property
    def ordering_key(self) -> bytes | None:
        """The key that Key_Shared subscriptions use instead of `key`; None without one."""
        return self._wire.own.ordering_key

    @property
    def event_time(self) -> int | None:
        """The time in ms that its producer gave it; None without one."""
        return self._wire.own.event_time or None

    @property
    def sequence_id(self) -> int:
        """The number that its producer gave it."""
        return self._wire.sequence_id

    @property
    def producer_name(self) -> str:
        """The name of its producer."""
        return self.entry.metadata.producer_name

    @property
    def redelivery_count(self) -> int:
        """How often the broker has pushed it before, as far as it knows: 0 in Exclusive and Failover subscriptions."""
        return self.entry.redelivery_count

    @property
    def index_in_topic(self) -> int | None:
        """Its index in the topic, if the broker counts (PIP-70); None otherwise."""
        return self._wire.position

    @property
    def first_chunk_id(self) -> MessageId | None:
        """Of a value that was put together from chunks the id of the first one, to seek to; None otherwise."""
        return self.entry.id.first_chunk_id


def _restore(topic: str, entry: Entry, index: int, offset: int, attachment: int) -> PulsarMessage:
    """Return a copy of a message, for `pickle` and `copy`."""
    message = PulsarMessage(topic, entry, index, attachment)
    message.offset = offset
    return message


def _headers(message: PulsarMessage) -> list[Header]:
    properties = message._wire.properties
    return [(name, value.encode("utf-8", "surrogateescape")) for name, value in properties.items()]


_FIELDS: Final[Mapping[str, Callable[[PulsarMessage], object]]] = {
    "_wire": lambda message: EntryMessage(message.entry, message.index),
    "headers": _headers,
    "key": lambda message: message._wire.key,
}
