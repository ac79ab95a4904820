"""Commands of producers: registering, sending and receipts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from asyncgroup.pulsar.wire.commands.command import Command, MessageIdData
from asyncgroup.pulsar.wire.commands.schemas import Schema
from asyncgroup.pulsar.wire.fields import (
    BOOL,
    BYTES,
    INT32,
    INT64,
    MESSAGE,
    PROPERTIES,
    STRING,
    UINT64,
    Field,
)

__all__ = [
    "CommandCloseProducer",
    "CommandProducer",
    "CommandProducerSuccess",
    "CommandSend",
    "CommandSendError",
    "CommandSendReceipt",
]


@dataclass(slots=True, kw_only=True)
class CommandProducer(Command):
    """Registers a producer at the broker of a topic."""

    TYPE: ClassVar = 5
    topic: Annotated[str, Field(1, STRING)]
    producer_id: Annotated[int, Field(2, UINT64)]
    request_id: Annotated[int, Field(3, UINT64)]
    producer_name: Annotated[str | None, Field(4, STRING)] = None
    encrypted: Annotated[bool, Field(5, BOOL)] = False
    metadata: Annotated[Mapping[str, str], Field(6, PROPERTIES)] = field(default_factory=dict)
    schema: Annotated[Schema | None, Field(7, MESSAGE)] = None
    epoch: Annotated[int, Field(8, UINT64)] = 0
    user_provided_producer_name: Annotated[bool, Field(9, BOOL)] = True
    producer_access_mode: Annotated[int, Field(10, INT32)] = 0
    topic_epoch: Annotated[int | None, Field(11, UINT64)] = None
    txn_enabled: Annotated[bool, Field(12, BOOL)] = False
    initial_subscription_name: Annotated[str | None, Field(13, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandProducerSuccess(Command):
    """A producer is registered, or waits for its turn (`producer_ready` is False)."""

    TYPE: ClassVar = 17
    request_id: Annotated[int, Field(1, UINT64)]
    producer_name: Annotated[str, Field(2, STRING)]
    last_sequence_id: Annotated[int, Field(3, INT64)] = -1
    schema_version: Annotated[bytes | None, Field(4, BYTES)] = None
    topic_epoch: Annotated[int | None, Field(5, UINT64)] = None
    producer_ready: Annotated[bool, Field(6, BOOL)] = True


@dataclass(slots=True, kw_only=True)
class CommandSend(Command):
    """A message or a batch, which follows in the same frame."""

    TYPE: ClassVar = 6
    producer_id: Annotated[int, Field(1, UINT64)]
    sequence_id: Annotated[int, Field(2, UINT64)]
    num_messages: Annotated[int, Field(3, INT32)] = 1
    txnid_least_bits: Annotated[int | None, Field(4, UINT64)] = None
    txnid_most_bits: Annotated[int | None, Field(5, UINT64)] = None
    highest_sequence_id: Annotated[int, Field(6, UINT64)] = 0
    is_chunk: Annotated[bool, Field(7, BOOL)] = False


@dataclass(slots=True, kw_only=True)
class CommandSendReceipt(Command):
    """What was sent is stored."""

    TYPE: ClassVar = 7
    producer_id: Annotated[int, Field(1, UINT64)]
    sequence_id: Annotated[int, Field(2, UINT64)]
    message_id: Annotated[MessageIdData | None, Field(3, MESSAGE)] = None
    highest_sequence_id: Annotated[int, Field(4, UINT64)] = 0


@dataclass(slots=True, kw_only=True)
class CommandSendError(Command):
    """What was sent is not stored."""

    TYPE: ClassVar = 8
    producer_id: Annotated[int, Field(1, UINT64)]
    sequence_id: Annotated[int, Field(2, UINT64)]
    error: Annotated[int, Field(3, INT32)]
    message: Annotated[str, Field(4, STRING)]


@dataclass(slots=True, kw_only=True)
class CommandCloseProducer(Command):
    """Ends a producer; from the broker: connect again, at once at the assigned broker if there is one (PIP-307)."""

    TYPE: ClassVar = 15
    producer_id: Annotated[int, Field(1, UINT64)]
    request_id: Annotated[int, Field(2, UINT64)]
    assigned_broker_service_url: Annotated[str | None, Field(3, STRING)] = None
    assigned_broker_service_url_tls: Annotated[str | None, Field(4, STRING)] = None
