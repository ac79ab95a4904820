"""MessageId: the identity of a message in a topic."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from asyncgroup.errors import ConfigError, DecodeError
from asyncgroup.pulsar.wire.commands import MessageIdData

__all__ = ["EARLIEST", "LATEST", "MessageId"]

_SIGN: Final = 1 << 63
_TEXT: Final = re.compile(r"(-?[0-9]{1,19}):(-?[0-9]{1,19}):(-?[0-9]{1,10})(?::(-?[0-9]{1,10}))?")
_LIMITS: Final = (_SIGN, _SIGN, 1 << 31, 1 << 31)


class MessageId(NamedTuple):
    """The place of a message: the ledger, the entry in it, the partition of the topic and the index in the entry's batch.

    Ids of one partition sort in the order of the messages. `partition` is -1 in a topic without partitions, `batch_index`
    -1 for a message that is no part of a batch. `str()` is Pulsar's text form, `bytes()` the form that all clients store.
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"

    def __bytes__(self) -> bytes:
        return self.data().encode()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the id in Pulsar's text form. Raises ConfigError."""
        found = _TEXT.fullmatch(text)
        numbers = [int(number) for number in found.groups(-1)] if found else []
        if not found or any(
            not -limit <= number < limit for number, limit in zip(numbers, _LIMITS, strict=True)
        ):
            raise ConfigError("message id", text, "ledger:entry:partition or ledger:entry:partition:index")
        return cls(*numbers)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the id that `bytes()` of one, or another client, has stored; of a message in chunks the last one's.

        Raises DecodeError.
        """
        return cls.of(MessageIdData.decode(data))

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


EARLIEST: Final = MessageId(-1, -1)
"""Before the first message of a topic."""

LATEST: Final = MessageId(_SIGN - 1, _SIGN - 1)
"""After the last message of a topic."""


def _signed(value: int) -> int:
    return value - (_SIGN << 1) if value >= _SIGN else value
