"""The commands of Pulsar's protocol: tables of their fields (`PulsarApi.proto`, protocol version 21).

A command is a message with a type; the package has the names of all its files.

- `command`: their base, and ids of messages. `connections`, `topics`, `schemas`, `producers`, `consumers`, `acknowledgements`
  and `transactions`: the commands by kind, with the messages that are parts of them.
- `base_command`: all commands by type, to bytes and back.
"""

from __future__ import annotations

from asyncgroup.pulsar.wire.commands.acknowledgements import (
    CommandAck,
    CommandAckResponse,
    CommandRedeliverUnacknowledgedMessages,
)
from asyncgroup.pulsar.wire.commands.base_command import (
    COMMANDS,
    decode_command,
    encode_command,
)
from asyncgroup.pulsar.wire.commands.command import (
    NO_REQUEST,
    Command,
    MessageIdData,
)
from asyncgroup.pulsar.wire.commands.connections import (
    PROTOCOL_VERSION,
    AuthData,
    CommandAuthChallenge,
    CommandAuthResponse,
    CommandConnect,
    CommandConnected,
    CommandError,
    CommandPing,
    CommandPong,
    CommandSuccess,
    FeatureFlags,
)
from asyncgroup.pulsar.wire.commands.consumers import (
    CommandActiveConsumerChange,
    CommandCloseConsumer,
    CommandFlow,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandMessage,
    CommandReachedEndOfTopic,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    IntRange,
    KeySharedMeta,
)
from asyncgroup.pulsar.wire.commands.producers import (
    CommandCloseProducer,
    CommandProducer,
    CommandProducerSuccess,
    CommandSend,
    CommandSendError,
    CommandSendReceipt,
)
from asyncgroup.pulsar.wire.commands.schemas import (
    CommandGetOrCreateSchema,
    CommandGetOrCreateSchemaResponse,
    CommandGetSchema,
    CommandGetSchemaResponse,
    Schema,
)
from asyncgroup.pulsar.wire.commands.topics import (
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    CommandTopicMigrated,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
)
from asyncgroup.pulsar.wire.commands.transactions import (
    CommandAddPartitionToTxn,
    CommandAddPartitionToTxnResponse,
    CommandAddSubscriptionToTxn,
    CommandAddSubscriptionToTxnResponse,
    CommandEndTxn,
    CommandEndTxnResponse,
    CommandNewTxn,
    CommandNewTxnResponse,
    CommandTcClientConnectRequest,
    CommandTcClientConnectResponse,
    SubscriptionOfTxn,
)

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
