"""The commands of Pulsar's protocol: tables of their fields (`PulsarApi.proto`, protocol version 21).

A command is a message with a type; `BaseCommand` holds it in the field whose number is the type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.fields import (
    BOOL,
    BYTES,
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
from asyncgroup.pulsar.wire.varint import put_varint, read_more, skip_field

__all__ = [
    "COMMANDS",
    "NO_REQUEST",
    "PROTOCOL_VERSION",
    "AuthData",
    "Command",
    "CommandAck",
    "CommandAckResponse",
    "CommandActiveConsumerChange",
    "CommandAddPartitionToTxn",
    "CommandAddPartitionToTxnResponse",
    "CommandAddSubscriptionToTxn",
    "CommandAddSubscriptionToTxnResponse",
    "CommandAuthChallenge",
    "CommandAuthResponse",
    "CommandCloseConsumer",
    "CommandCloseProducer",
    "CommandConnect",
    "CommandConnected",
    "CommandEndTxn",
    "CommandEndTxnResponse",
    "CommandError",
    "CommandFlow",
    "CommandGetLastMessageId",
    "CommandGetLastMessageIdResponse",
    "CommandGetOrCreateSchema",
    "CommandGetOrCreateSchemaResponse",
    "CommandGetSchema",
    "CommandGetSchemaResponse",
    "CommandGetTopicsOfNamespace",
    "CommandGetTopicsOfNamespaceResponse",
    "CommandLookupTopic",
    "CommandLookupTopicResponse",
    "CommandMessage",
    "CommandNewTxn",
    "CommandNewTxnResponse",
    "CommandPartitionedTopicMetadata",
    "CommandPartitionedTopicMetadataResponse",
    "CommandPing",
    "CommandPong",
    "CommandProducer",
    "CommandProducerSuccess",
    "CommandReachedEndOfTopic",
    "CommandRedeliverUnacknowledgedMessages",
    "CommandSeek",
    "CommandSend",
    "CommandSendError",
    "CommandSendReceipt",
    "CommandSubscribe",
    "CommandSuccess",
    "CommandTcClientConnectRequest",
    "CommandTcClientConnectResponse",
    "CommandTopicMigrated",
    "CommandUnsubscribe",
    "CommandWatchTopicList",
    "CommandWatchTopicListClose",
    "CommandWatchTopicListSuccess",
    "CommandWatchTopicUpdate",
    "FeatureFlags",
    "IntRange",
    "KeySharedMeta",
    "MessageIdData",
    "Schema",
    "SubscriptionOfTxn",
    "decode_command",
    "encode_command",
]

PROTOCOL_VERSION: Final = 21
"""The version that this client asks for; a broker answers with the smaller of both."""

NO_REQUEST: Final = (1 << 64) - 1
"""The request id of an ERROR that refuses CONNECT; also both parts of the id of a message dropped as a duplicate."""


class Command(ProtoMessage):
    """Base of the commands."""

    __slots__ = ()
    TYPE: ClassVar[int]
    """Its type, and the number of its field in `BaseCommand`."""


# --- parts --------------------------------------------------------------------------------------------------------------


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
class Schema(ProtoMessage):
    """What values are; bytes without further meaning have none."""

    name: Annotated[str, Field(1, STRING)]
    schema_data: Annotated[bytes, Field(3, BYTES)]
    type: Annotated[int, Field(4, INT32)]
    properties: Annotated[Mapping[str, str], Field(5, PROPERTIES)] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class FeatureFlags(ProtoMessage):
    """What a client or a broker understands beyond its protocol version."""

    supports_auth_refresh: Annotated[bool, Field(1, BOOL)] = False
    supports_broker_entry_metadata: Annotated[bool, Field(2, BOOL)] = False
    supports_partial_producer: Annotated[bool, Field(3, BOOL)] = False
    supports_topic_watchers: Annotated[bool, Field(4, BOOL)] = False
    supports_get_partitioned_metadata_without_auto_creation: Annotated[bool, Field(5, BOOL)] = False
    supports_repl_dedup_by_lid_and_eid: Annotated[bool, Field(6, BOOL)] = False
    supports_topic_watcher_reconcile: Annotated[bool, Field(7, BOOL)] = False


@dataclass(slots=True, kw_only=True)
class AuthData(ProtoMessage):
    """A credential, or the question for one."""

    auth_method_name: Annotated[str | None, Field(1, STRING)] = None
    auth_data: Annotated[bytes | None, Field(2, BYTES)] = None


# --- a connection -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class CommandConnect(Command):
    """The first command of a client."""

    TYPE: ClassVar = 2
    client_version: Annotated[str, Field(1, STRING)]
    auth_data: Annotated[bytes | None, Field(3, BYTES)] = None
    protocol_version: Annotated[int, Field(4, INT32)] = 0
    auth_method_name: Annotated[str | None, Field(5, STRING)] = None
    proxy_to_broker_url: Annotated[str | None, Field(6, STRING)] = None
    feature_flags: Annotated[FeatureFlags | None, Field(10, MESSAGE)] = None


@dataclass(slots=True, kw_only=True)
class CommandConnected(Command):
    """The broker's answer to Connect."""

    TYPE: ClassVar = 3
    server_version: Annotated[str, Field(1, STRING)]
    protocol_version: Annotated[int, Field(2, INT32)] = 0
    max_message_size: Annotated[int | None, Field(3, INT32)] = None
    feature_flags: Annotated[FeatureFlags | None, Field(4, MESSAGE)] = None


@dataclass(slots=True, kw_only=True)
class CommandAuthChallenge(Command):
    """The broker asks for a credential, at the beginning or when one expires."""

    TYPE: ClassVar = 36
    server_version: Annotated[str | None, Field(1, STRING)] = None
    challenge: Annotated[AuthData | None, Field(2, MESSAGE)] = None
    protocol_version: Annotated[int, Field(3, INT32)] = 0


@dataclass(slots=True, kw_only=True)
class CommandAuthResponse(Command):
    """The answer to AuthChallenge."""

    TYPE: ClassVar = 37
    client_version: Annotated[str | None, Field(1, STRING)] = None
    response: Annotated[AuthData | None, Field(2, MESSAGE)] = None
    protocol_version: Annotated[int, Field(3, INT32)] = 0


@dataclass(slots=True, kw_only=True)
class CommandPing(Command):
    """Asks whether the other side lives."""

    TYPE: ClassVar = 18


@dataclass(slots=True, kw_only=True)
class CommandPong(Command):
    """The answer to Ping."""

    TYPE: ClassVar = 19


# --- topics and their brokers -------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class CommandLookupTopic(Command):
    """Asks for the broker of a topic; it also makes that broker load the topic."""

    TYPE: ClassVar = 23
    topic: Annotated[str, Field(1, STRING)]
    request_id: Annotated[int, Field(2, UINT64)]
    authoritative: Annotated[bool, Field(3, BOOL)] = False
    advertised_listener_name: Annotated[str | None, Field(7, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandLookupTopicResponse(Command):
    """A broker to connect to (`response` 1), or to ask next (0), or an error (2)."""

    TYPE: ClassVar = 24
    broker_service_url: Annotated[str | None, Field(1, STRING)] = None
    broker_service_url_tls: Annotated[str | None, Field(2, STRING)] = None
    response: Annotated[int | None, Field(3, INT32)] = None
    request_id: Annotated[int, Field(4, UINT64)]
    authoritative: Annotated[bool, Field(5, BOOL)] = False
    error: Annotated[int | None, Field(6, INT32)] = None
    message: Annotated[str | None, Field(7, STRING)] = None
    proxy_through_service_url: Annotated[bool, Field(8, BOOL)] = False


@dataclass(slots=True, kw_only=True)
class CommandPartitionedTopicMetadata(Command):
    """Asks for the number of a topic's partitions."""

    TYPE: ClassVar = 21
    topic: Annotated[str, Field(1, STRING)]
    request_id: Annotated[int, Field(2, UINT64)]
    metadata_auto_creation_enabled: Annotated[bool, Field(6, BOOL)] = True


@dataclass(slots=True, kw_only=True)
class CommandPartitionedTopicMetadataResponse(Command):
    """The number of partitions, 0 for a topic without; `response` is 1 for an error."""

    TYPE: ClassVar = 22
    partitions: Annotated[int | None, Field(1, UINT32)] = None
    request_id: Annotated[int, Field(2, UINT64)]
    response: Annotated[int | None, Field(3, INT32)] = None
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandGetTopicsOfNamespace(Command):
    """Asks for the topics of a namespace, which match a pattern."""

    TYPE: ClassVar = 32
    request_id: Annotated[int, Field(1, UINT64)]
    namespace: Annotated[str, Field(2, STRING)]
    mode: Annotated[int, Field(3, INT32)] = 0
    topics_pattern: Annotated[str | None, Field(4, STRING)] = None
    topics_hash: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandGetTopicsOfNamespaceResponse(Command):
    """The topics, unless `changed` is False: then the hash of the request is still right."""

    TYPE: ClassVar = 33
    request_id: Annotated[int, Field(1, UINT64)]
    topics: Annotated[Sequence[str], Field(2, STRING, repeated=True)] = ()
    filtered: Annotated[bool, Field(3, BOOL)] = False
    topics_hash: Annotated[str | None, Field(4, STRING)] = None
    changed: Annotated[bool, Field(5, BOOL)] = True


@dataclass(slots=True, kw_only=True)
class CommandWatchTopicList(Command):
    """Asks for news of the topics of a namespace that match a pattern (PIP-145)."""

    TYPE: ClassVar = 64
    request_id: Annotated[int, Field(1, UINT64)]
    watcher_id: Annotated[int, Field(2, UINT64)]
    namespace: Annotated[str, Field(3, STRING)]
    topics_pattern: Annotated[str, Field(4, STRING)]
    topics_hash: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandWatchTopicListSuccess(Command):
    """The topics at the beginning of a watch."""

    TYPE: ClassVar = 65
    request_id: Annotated[int, Field(1, UINT64)]
    watcher_id: Annotated[int, Field(2, UINT64)]
    topic: Annotated[Sequence[str], Field(3, STRING, repeated=True)] = ()
    topics_hash: Annotated[str, Field(4, STRING)]


@dataclass(slots=True, kw_only=True)
class CommandWatchTopicUpdate(Command):
    """Topics that were created or deleted since the last news."""

    TYPE: ClassVar = 66
    watcher_id: Annotated[int, Field(1, UINT64)]
    new_topics: Annotated[Sequence[str], Field(2, STRING, repeated=True)] = ()
    deleted_topics: Annotated[Sequence[str], Field(3, STRING, repeated=True)] = ()
    topics_hash: Annotated[str, Field(4, STRING)]


@dataclass(slots=True, kw_only=True)
class CommandWatchTopicListClose(Command):
    """Ends a watch."""

    TYPE: ClassVar = 67
    request_id: Annotated[int, Field(1, UINT64)]
    watcher_id: Annotated[int, Field(2, UINT64)]


@dataclass(slots=True, kw_only=True)
class CommandTopicMigrated(Command):
    """The topic of a producer (`resource_type` 0) or consumer (1) has moved to another cluster (PIP-188)."""

    TYPE: ClassVar = 68
    resource_id: Annotated[int, Field(1, UINT64)]
    resource_type: Annotated[int, Field(2, INT32)]
    broker_service_url: Annotated[str | None, Field(3, STRING)] = None
    broker_service_url_tls: Annotated[str | None, Field(4, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandGetSchema(Command):
    """Asks for the schema of a topic."""

    TYPE: ClassVar = 34
    request_id: Annotated[int, Field(1, UINT64)]
    topic: Annotated[str, Field(2, STRING)]
    schema_version: Annotated[bytes | None, Field(3, BYTES)] = None


@dataclass(slots=True, kw_only=True)
class CommandGetSchemaResponse(Command):
    """The answer to CommandGetSchema."""

    TYPE: ClassVar = 35
    request_id: Annotated[int, Field(1, UINT64)]
    error_code: Annotated[int | None, Field(2, INT32)] = None
    error_message: Annotated[str | None, Field(3, STRING)] = None
    schema: Annotated[Schema | None, Field(4, MESSAGE)] = None
    schema_version: Annotated[bytes | None, Field(5, BYTES)] = None


@dataclass(slots=True, kw_only=True)
class CommandGetOrCreateSchema(Command):
    """Asks for the version of a schema at a topic, which may be stored with it."""

    TYPE: ClassVar = 39
    request_id: Annotated[int, Field(1, UINT64)]
    topic: Annotated[str, Field(2, STRING)]
    schema: Annotated[Schema, Field(3, MESSAGE)]


@dataclass(slots=True, kw_only=True)
class CommandGetOrCreateSchemaResponse(Command):
    """The answer to CommandGetOrCreateSchema."""

    TYPE: ClassVar = 40
    request_id: Annotated[int, Field(1, UINT64)]
    error_code: Annotated[int | None, Field(2, INT32)] = None
    error_message: Annotated[str | None, Field(3, STRING)] = None
    schema_version: Annotated[bytes | None, Field(4, BYTES)] = None


# --- answers ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class CommandSuccess(Command):
    """A request has succeeded."""

    TYPE: ClassVar = 13
    request_id: Annotated[int, Field(1, UINT64)]


@dataclass(slots=True, kw_only=True)
class CommandError(Command):
    """A request has failed."""

    TYPE: ClassVar = 14
    request_id: Annotated[int, Field(1, UINT64)]
    error: Annotated[int, Field(2, INT32)]
    message: Annotated[str, Field(3, STRING)]


# --- producers ----------------------------------------------------------------------------------------------------------


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


# --- consumers ----------------------------------------------------------------------------------------------------------


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


# --- transactions -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class CommandTcClientConnectRequest(Command):
    """Connects to a transaction coordinator, before requests to it (`CommandTcClientConnectRequest`)."""

    TYPE: ClassVar = 62
    request_id: Annotated[int, Field(1, UINT64)]
    tc_id: Annotated[int, Field(2, UINT64)]


@dataclass(slots=True, kw_only=True)
class CommandTcClientConnectResponse(Command):
    """The answer to CommandTcClientConnectRequest."""

    TYPE: ClassVar = 63
    request_id: Annotated[int, Field(1, UINT64)]
    error: Annotated[int | None, Field(2, INT32)] = None
    message: Annotated[str | None, Field(3, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandNewTxn(Command):
    """Opens a transaction, which the coordinator aborts after `txn_ttl_seconds`: a number of milliseconds, in spite of its name."""

    TYPE: ClassVar = 50
    request_id: Annotated[int, Field(1, UINT64)]
    txn_ttl_seconds: Annotated[int, Field(2, UINT64)] = 0
    tc_id: Annotated[int, Field(3, UINT64)] = 0


@dataclass(slots=True, kw_only=True)
class CommandNewTxnResponse(Command):
    """The answer to CommandNewTxn: the id of the transaction, whose most significant bits are the coordinator's.

    Go's client ends its process if one of them is absent, also for 0.
    """

    TYPE: ClassVar = 51
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int | None, Field(2, UINT64)] = None
    txnid_most_bits: Annotated[int | None, Field(3, UINT64)] = None
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandAddPartitionToTxn(Command):
    """Adds topics, each of one partition, to a transaction before its first message to them."""

    TYPE: ClassVar = 52
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    partitions: Annotated[Sequence[str], Field(4, STRING, repeated=True)] = ()


@dataclass(slots=True, kw_only=True)
class CommandAddPartitionToTxnResponse(Command):
    """The answer to CommandAddPartitionToTxn."""

    TYPE: ClassVar = 53
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class SubscriptionOfTxn(ProtoMessage):
    """A subscription to one topic whose acknowledgements are part of a transaction (`Subscription` of `PulsarApi.proto`)."""

    topic: Annotated[str, Field(1, STRING)]
    subscription: Annotated[str, Field(2, STRING)]


@dataclass(slots=True, kw_only=True)
class CommandAddSubscriptionToTxn(Command):
    """Adds subscriptions to a transaction before its first acknowledgement in them."""

    TYPE: ClassVar = 54
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    subscription: Annotated[Sequence[SubscriptionOfTxn], Field(4, MESSAGE, repeated=True)] = ()


@dataclass(slots=True, kw_only=True)
class CommandAddSubscriptionToTxnResponse(Command):
    """The answer to CommandAddSubscriptionToTxn."""

    TYPE: ClassVar = 55
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None


@dataclass(slots=True, kw_only=True)
class CommandEndTxn(Command):
    """Commits a transaction (`txn_action` 0) or aborts it (1)."""

    TYPE: ClassVar = 56
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    txn_action: Annotated[int | None, Field(4, INT32)] = None


@dataclass(slots=True, kw_only=True)
class CommandEndTxnResponse(Command):
    """The answer to CommandEndTxn."""

    TYPE: ClassVar = 57
    request_id: Annotated[int, Field(1, UINT64)]
    txnid_least_bits: Annotated[int, Field(2, UINT64)] = 0
    txnid_most_bits: Annotated[int, Field(3, UINT64)] = 0
    error: Annotated[int | None, Field(4, INT32)] = None
    message: Annotated[str | None, Field(5, STRING)] = None


COMMANDS: Final[dict[int, type[Command]]] = {
    cls.TYPE: cls for cls in Command.__subclasses__() if "__slots__" in vars(cls)
}
"""The commands by type."""


# --- BaseCommand --------------------------------------------------------------------------------------------------------


def encode_command(command: Command) -> bytes:
    """Return a BaseCommand."""
    body = command.encode()
    size = len(body)
    out = bytearray(_PREFIXES[command.TYPE])
    if size < 0x80:
        out.append(size)
    else:
        put_varint(out, size)
    out += body
    return bytes(out)


def decode_command(data: bytes | bytearray, start: int, end: int) -> Command | None:
    """Return the command in a BaseCommand, None if its type is not known. Raises DecodeError."""
    try:
        kind, bounds = _find(data, start, end)
    except IndexError:
        raise DecodeError("BaseCommand: the data ends within a field") from None
    cls = COMMANDS.get(kind)
    if cls is None:
        return None
    if bounds is None:
        raise DecodeError(f"BaseCommand: it has type {kind}, but no {cls.__name__}")
    return cls.decode(data, *bounds)


def _prefix(kind: int) -> bytes:
    out = bytearray(b"\x08")
    put_varint(out, kind)
    put_varint(out, kind << 3 | 2)
    return bytes(out)


_PREFIXES: Final = {kind: _prefix(kind) for kind in COMMANDS}
"""By type, what precedes the size of the command: the type, and the tag of its field."""


def _find(data: bytes | bytearray, start: int, end: int) -> tuple[int, tuple[int, int] | None]:
    """Return the type, and where the command begins and ends."""
    if end - start > 3 and data[start] == 8:
        # the type and then the command, with a size of one byte: most frames
        kind = data[start + 1]
        prefix = _PREFIXES.get(kind)
        if prefix is not None:
            at = start + len(prefix)
            if data[start:at] == prefix and data[at] < 0x80 and at + 1 + data[at] == end:
                return kind, (at + 1, end)
    return _scan(data, start, end)


def _scan(data: bytes | bytearray, at: int, end: int) -> tuple[int, tuple[int, int] | None]:
    kind = None
    bounds: dict[int, tuple[int, int]] = {}
    while at < end:
        tag, at = _varint(data, at)
        if tag == 8:
            kind, at = _varint(data, at)
        else:
            begin = at
            at = skip_field(data, at, end, tag)
            if tag & 7 == 2:
                size, begin = _varint(data, begin)
                bounds[tag >> 3] = (begin, begin + size)
    if at != end:
        raise DecodeError("BaseCommand: a field ends after it")
    if kind is None:
        raise DecodeError("BaseCommand: required field type is missing")
    return kind, bounds.get(kind)


def _varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    first = data[at]
    return (first, at + 1) if first < 0x80 else read_more(data, at + 1, first)
