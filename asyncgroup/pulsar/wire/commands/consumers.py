"""Commands of consumers: subscribing, permits, messages, and the position of the subscription."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from asyncgroup.pulsar.wire.commands.command import Command, MessageIdData
from asyncgroup.pulsar.wire.commands.schemas import Schema
from asyncgroup.pulsar.wire.fields import (
    BOOL,
    INT32,
    INT64,
    MESSAGE,
    PROPERTIES,
    STRING,
    UINT32,
    UINT64,
    Field,
)
from asyncgroup.pulsar.wire.message import ProtoMessage

__all__ = [
    "CommandActiveConsumerChange",
    "CommandCloseConsumer",
    "CommandFlow",
    "CommandGetLastMessageId",
    "CommandGetLastMessageIdResponse",
    "CommandMessage",
    "CommandReachedEndOfTopic",
    "CommandSeek",
    "CommandSubscribe",
    "CommandUnsubscribe",
    "IntRange",
    "KeySharedMeta",
]


@dataclass(slots=True, kw_only=True)
class IntRange(ProtoMessage):
    """Hashes `start` to `end`, both included."""

    start: Annotated[int, Field(1, INT32)]
    end: Annotated[int, Field(2, INT32)]


@dataclass(slots=True, kw_only=True)
class KeySharedMeta(ProtoMessage):
    """How a Key_Shared subscription divides the hashes of keys."""

    key_shared_mode: Annotated[int, Field(1, INT32)]
    hash_ranges: Annotated[Sequence[IntRange], Field(3, MESSAGE, repeated=True)] = ()
    allow_out_of_order_delivery: Annotated[bool, Field(4, BOOL)] = False


@dataclass(slots=True, kw_only=True)
class CommandSubscribe(Command):
    """Registers a consumer at the broker of a topic."""

    TYPE: ClassVar = 4
    topic: Annotated[str, Field(1, STRING)]
    subscription: Annotated[str, Field(2, STRING)]
    sub_type: Annotated[int, Field(3, INT32)]
    consumer_id: Annotated[int, Field(4, UINT64)]
    request_id: Annotated[int, Field(5, UINT64)]
    consumer_name: Annotated[str | None, Field(6, STRING)] = None
    priority_level: Annotated[int | None, Field(7, INT32)] = None
    durable: Annotated[bool, Field(8, BOOL)] = True
    start_message_id: Annotated[MessageIdData | None, Field(9, MESSAGE)] = None
    metadata: Annotated[Mapping[str, str], Field(10, PROPERTIES)] = field(default_factory=dict)
    read_compacted: Annotated[bool | None, Field(11, BOOL)] = None
    schema: Annotated[Schema | None, Field(12, MESSAGE)] = None
    initial_position: Annotated[int, Field(13, INT32)] = 0
    replicate_subscription_state: Annotated[bool | None, Field(14, BOOL)] = None
    force_topic_creation: Annotated[bool, Field(15, BOOL)] = True
    start_message_rollback_duration_sec: Annotated[int, Field(16, UINT64)] = 0
    key_shared_meta: Annotated[KeySharedMeta | None, Field(17, MESSAGE)] = None
    subscription_properties: Annotated[Mapping[str, str], Field(18, PROPERTIES)] = field(default_factory=dict)
    consumer_epoch: Annotated[int | None, Field(19, UINT64)] = None


@dataclass(slots=True, kw_only=True)
class CommandFlow(Command):
    """Permits for more messages."""

    TYPE: ClassVar = 11
    consumer_id: Annotated[int, Field(1, UINT64)]
    message_permits: Annotated[int, Field(2, UINT32)]


@dataclass(slots=True, kw_only=True)
class CommandMessage(Command):
    """An entry, which follows in the same frame."""

    TYPE: ClassVar = 9
    consumer_id: Annotated[int, Field(1, UINT64)]
    message_id: Annotated[MessageIdData, Field(2, MESSAGE)]
    redelivery_count: Annotated[int, Field(3, UINT32)] = 0
    ack_set: Annotated[Sequence[int], Field(4, INT64, repeated=True)] = ()
    consumer_epoch: Annotated[int | None, Field(5, UINT64)] = None


@dataclass(slots=True, kw_only=True)
class CommandActiveConsumerChange(Command):
    """Whether a consumer of a Failover subscription is the active one."""

    TYPE: ClassVar = 31
    consumer_id: Annotated[int, Field(1, UINT64)]
    is_active: Annotated[bool, Field(2, BOOL)] = False


@dataclass(slots=True, kw_only=True)
class CommandReachedEndOfTopic(Command):
    """The topic was terminated, and this consumer has read all of it."""

    TYPE: ClassVar = 27
    consumer_id: Annotated[int, Field(1, UINT64)]


@dataclass(slots=True, kw_only=True)
class CommandUnsubscribe(Command):
    """Deletes the subscription of a consumer."""

    TYPE: ClassVar = 12
    consumer_id: Annotated[int, Field(1, UINT64)]
    request_id: Annotated[int, Field(2, UINT64)]
    force: Annotated[bool, Field(3, BOOL)] = False


@dataclass(slots=True, kw_only=True)
class CommandCloseConsumer(Command):
    """Ends a consumer; from the broker: connect again, at once at the assigned broker if there is one (PIP-307)."""

    TYPE: ClassVar = 16
    consumer_id: Annotated[int, Field(1, UINT64)]
    request_id: Annotated[int, Field(2, UINT64)]
    assigned_broker_service_url: Annotated[str | None, Field(3, STRING)] = None
    assigned_broker_service_url_tls: Annotated[str | None, Field(4, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandSeek(Command):
    """Moves a subscription to a message or to a time in ms."""

    TYPE: ClassVar = 28
    consumer_id: Annotated[int, Field(1, UINT64)]
    request_id: Annotated[int, Field(2, UINT64)]
    message_id: Annotated[MessageIdData | None, Field(3, MESSAGE)] = None
    message_publish_time: Annotated[int | None, Field(4, UINT64)] = None


@dataclass(slots=True, kw_only=True)
class CommandGetLastMessageId(Command):
    """Asks for the id of the topic's last message."""

    TYPE: ClassVar = 29
    consumer_id: Annotated[int, Field(1, UINT64)]
    request_id: Annotated[int, Field(2, UINT64)]


@dataclass(slots=True, kw_only=True)
class CommandGetLastMessageIdResponse(Command):
    """The answer to CommandGetLastMessageId."""

    TYPE: ClassVar = 30
    last_message_id: Annotated[MessageIdData, Field(1, MESSAGE)]
    request_id: Annotated[int, Field(2, UINT64)]
    consumer_mark_delete_position: Annotated[MessageIdData | None, Field(3, MESSAGE)] = None
