"""Commands for the messages that a consumer has: acknowledging them, and having them delivered again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from asyncgroup.pulsar.wire.commands.command import Command, MessageIdData
from asyncgroup.pulsar.wire.fields import INT32, MESSAGE, STRING, UINT64, Field

__all__ = ["CommandAck", "CommandAckResponse", "CommandRedeliverUnacknowledgedMessages"]


@dataclass(slots=True, kw_only=True)
class CommandAck(Command):
    """Acknowledges entries or, with an ack set, messages of their batches; `ack_type` 1: all up to one id."""

    TYPE: ClassVar = 10
    consumer_id: Annotated[int, Field(1, UINT64)]
    ack_type: Annotated[int, Field(2, INT32)]
    message_id: Annotated[Sequence[MessageIdData], Field(3, MESSAGE, repeated=True)] = ()
    validation_error: Annotated[int | None, Field(4, INT32)] = None
    txnid_least_bits: Annotated[int | None, Field(6, UINT64)] = None
    txnid_most_bits: Annotated[int | None, Field(7, UINT64)] = None
    request_id: Annotated[int | None, Field(8, UINT64)] = None


@dataclass(slots=True, kw_only=True)
class CommandAckResponse(Command):
    """The answer to an Ack with a request id."""

    TYPE: ClassVar = 38
    consumer_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None
    request_id: Annotated[int | None, Field(6, UINT64)] = None


@dataclass(slots=True, kw_only=True)
class CommandRedeliverUnacknowledgedMessages(Command):
    """Asks for entries again; without ids for everything that is not acknowledged."""

    TYPE: ClassVar = 20
    consumer_id: Annotated[int, Field(1, UINT64)]
    message_ids: Annotated[Sequence[MessageIdData], Field(2, MESSAGE, repeated=True)] = ()
    consumer_epoch: Annotated[int | None, Field(3, UINT64)] = None
