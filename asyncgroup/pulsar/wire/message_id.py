"""MessageId: the identity of a message in a topic."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from asyncgroup.checks import wrong_type
from asyncgroup.errors import ConfigError, DecodeError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.pulsar.wire.commands import MessageIdData
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = [
    "EARLIEST",
    "LATEST",
    "BatchMessageId",
    "ChunkMessageId",
    "MessageId",
    "TopicMessageId",
    "is_message_id",
]

_new: Final = tuple.__new__
_SIGN: Final = 1 << 63
_TEXT: Final = re.compile(r"(-?[0-9]{1,19}):(-?[0-9]{1,19}):(-?[0-9]{1,10})(?::(-?[0-9]{1,10}))?")
_LIMITS: Final = (_SIGN, _SIGN, 1 << 31, 1 << 31)


class MessageId(NamedTuple):
    """The place of a message: the ledger, the entry in it, the partition of the topic and the index in the entry's batch.

    Ids of one partition sort in the order of the messages. `partition` is -1 in a topic without partitions, `batch_index`
    -1 for a message that is no part of a batch. `str()` is Pulsar's text form, of a value in chunks that of its last chunk.

    `bytes()` is the form that all clients store. It also has `batch_size` and `first_chunk_id`, if they are known; in
    comparisons these do not count.
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1

    @property
    def batch_size(self) -> int | None:
        """The number of messages in its batch; None without a batch, and if it is not known, as after `parse`."""
        return None

    @property
    def first_chunk_id(self) -> MessageId | None:
        """The id of the first chunk of its value; None without chunks, and if it is not known, as after `parse`."""
        return None

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"

    def __bytes__(self) -> bytes:
        return self.data().encode()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the id in Pulsar's text form. Raises ConfigError."""
        found = _TEXT.fullmatch(text)
        made = cls(*(int(number) for number in found.groups(-1))) if found else None
        if made is None or not is_message_id(made):
            raise ConfigError("message id", text, "ledger:entry:partition or ledger:entry:partition:index")
        return made

    @classmethod
    def from_bytes(cls, data: bytes) -> MessageId:
        """Return the id that `bytes()` of one, or another client, has stored. Raises DecodeError."""
        stored = MessageIdData.decode(data)
        found, size = MessageId.of(stored), stored.batch_size
        if found.batch_index >= 0:
            # Java's clients write the size 0 if they do not know it
            return found if size is None or size <= found.batch_index else BatchMessageId(*found, size)
        if stored.first_chunk_message_id is not None:
            return ChunkMessageId(found, MessageId.of(stored.first_chunk_message_id))
        return found

    @classmethod
    def of(cls, data: MessageIdData, partition: int | None = None) -> Self:
        """Return the id of a command; the broker does not always fill in the partition."""
        if data.ledger_id >= _SIGN << 1 or data.entry_id >= _SIGN << 1:
            raise DecodeError(f"message id {data} does not fit 64 bits")
        return cls(
            _signed(data.ledger_id),
            _signed(data.entry_id),
            data.partition if partition is None else partition,
            data.batch_index,
        )

    def data(self) -> MessageIdData:
        """Return it as a part of a command."""
        return MessageIdData(
            ledger_id=self.ledger_id,
            entry_id=self.entry_id,
            partition=self.partition,
            batch_index=self.batch_index,
        )


class BatchMessageId(MessageId):
    """The id of a message in a batch whose size is known (Java's `BatchMessageIdImpl`).

    Without the size, Java's clients acknowledge the whole batch by an id that they have read from `bytes()`.
    """

    batch_size: int = 0  # in place of the property

    # where each message gets one, `tuple.__new__` saves this call
    def __new__(
        cls, ledger_id: int, entry_id: int, partition: int, batch_index: int, batch_size: int
    ) -> Self:
        found = _new(cls, (ledger_id, entry_id, partition, batch_index))
        found.batch_size = batch_size
        return found

    def __bytes__(self) -> bytes:
        data = self.data()
        data.batch_size = self.batch_size
        return data.encode()

    def __getnewargs__(self) -> tuple[int, int, int, int, int]:
        return (*self, self.batch_size)


class ChunkMessageId(MessageId):
    """The id of a value in chunks: that of its last chunk, and the first one's (Java's `ChunkMessageIdImpl`)."""

    first_chunk_id: MessageId = MessageId(-1, -1)  # in place of the property

    def __new__(cls, last: MessageId, first: MessageId) -> Self:
        found = _new(cls, last)
        found.first_chunk_id = first
        return found

    def __bytes__(self) -> bytes:
        data = self.data()
        data.first_chunk_message_id = self.first_chunk_id.data()
        return data.encode()

    def __getnewargs__(self) -> tuple[MessageId, MessageId]:
        return MessageId(*self), self.first_chunk_id


class TopicMessageId(MessageId):
    """The id of a message with its topic (Java's `TopicMessageId`), as consumers and readers of several topics take it.

        TopicMessageId("orders", MessageId.from_bytes(stored))

    `topic` may be the name of a partition, `orders-partition-3`, for an id that has none. `bytes()` and `str()` are those of
    the id: the topic is stored beside them. In comparisons it does not count. Raises ConfigError.
    """

    topic: str
    """The full name of the topic, without the number of a partition, as in a PulsarMessage."""
    message_id: MessageId
    """The id without the topic."""

    def __new__(cls, topic: str, message_id: MessageId) -> Self:
        name = TopicName.parse(topic)
        if not isinstance(message_id, MessageId):
            raise wrong_type("message_id", message_id, "a MessageId")
        ledger, entry, partition, index = message_id
        if partition < 0:
            partition = name.partition
        elif name.partition not in (-1, partition):
            raise ConfigError("message_id", str(message_id), f"an id of {name}")
        found = _new(cls, (ledger, entry, partition, index))
        found.topic = str(name.whole)
        found.message_id = message_id
        return found

    @property
    def batch_size(self) -> int | None:
        """That of the id."""
        return self.message_id.batch_size

    @property
    def first_chunk_id(self) -> MessageId | None:
        """That of the id."""
        return self.message_id.first_chunk_id

    def __repr__(self) -> str:
        return f"TopicMessageId({self.topic!r}, {self.message_id!r})"

    def __bytes__(self) -> bytes:
        return bytes(self.message_id)

    def __getnewargs__(self) -> tuple[str, MessageId]:
        return self.topic, self.message_id


EARLIEST: Final = MessageId(-1, -1)
"""Before the first message of a topic."""

LATEST: Final = MessageId(_SIGN - 1, _SIGN - 1)
"""After the last message of a topic."""

add_foreign_names(
    MessageId,
    {
        "earliest": "EARLIEST of asyncgroup.pulsar",
        "latest": "LATEST of asyncgroup.pulsar",
        "serialize": "bytes(message_id)",
        "to_byte_array": "bytes(message_id)",
        "deserialize": "MessageId.from_bytes(data)",
        "from_byte_array": "MessageId.from_bytes(data)",
        "from_byte_array_with_topic": "TopicMessageId(topic, MessageId.from_bytes(data))",
        "get_ledger_id": "message_id.ledger_id",
        "get_entry_id": "message_id.entry_id",
    },
)


def is_message_id(value: object) -> bool:
    """Whether a value is a MessageId whose numbers fit their fields: an id that a program makes has any numbers."""
    return isinstance(value, MessageId) and all(
        -limit <= number < limit for number, limit in zip(value, _LIMITS, strict=True)
    )


def _signed(value: int) -> int:
    return value - (_SIGN << 1) if value >= _SIGN else value
