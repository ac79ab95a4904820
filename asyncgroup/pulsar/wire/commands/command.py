"""The base of the commands, and what commands of several kinds have: ids of messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from asyncgroup.pulsar.wire.fields import INT32, INT64, MESSAGE, UINT64, Field
from asyncgroup.pulsar.wire.message import ProtoMessage

__all__ = ["NO_REQUEST", "Command", "MessageIdData"]

NO_REQUEST: Final = (1 << 64) - 1
"""The request id of an ERROR that refuses CONNECT; also both parts of the id of a message dropped as a duplicate."""


class Command(ProtoMessage):
    """Base of the commands."""

    __slots__ = ()
    TYPE: ClassVar[int]
    """Its type, and the number of its field in `BaseCommand`."""


@dataclass(slots=True, kw_only=True)
class MessageIdData(ProtoMessage):
    """The id of an entry, or with `batch_index` of one message of its batch."""

    ledger_id: Annotated[int, Field(1, UINT64)]
    entry_id: Annotated[int, Field(2, UINT64)]
    partition: Annotated[int, Field(3, INT32)] = -1
    batch_index: Annotated[int, Field(4, INT32)] = -1
    ack_set: Annotated[Sequence[int], Field(5, INT64, repeated=True)] = ()
    batch_size: Annotated[int | None, Field(6, INT32)] = None
    first_chunk_message_id: Annotated[MessageIdData | None, Field(7, MESSAGE)] = None
