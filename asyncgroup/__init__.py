"""Kafka consumer groups for asyncio.

    from asyncgroup import ConsumerConfig, ConsumerGroup, Handler

See the README for a first handler, and `asyncgroup.errors` for what can be raised.

Names are imported on first use, so `import asyncgroup` stays cheap: the pytest plugin of `asyncgroup.testing` is part
of this package, and pytest imports it also in test suites that don't use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names as _lazy_names  # `lazy_names` is the module

if TYPE_CHECKING:
    from asyncgroup.cluster import Cluster
    from asyncgroup.config import ClientConfig, ConsumerConfig, ProducerConfig
    from asyncgroup.consumer import Consumer, Interceptor, OffsetAndTimestamp, PartitionConsumer
    from asyncgroup.errors import (
        AssignmentError,
        AsyncGroupError,
        AuthenticationError,
        BrokerError,
        CallerCancelled,
        ClaimReturned,
        ClaimStuck,
        ClosedError,
        CommitFailedError,
        ConfigError,
        ConnectError,
        ConnectionLost,
        CorruptRecordsError,
        DecodeError,
        DeliveryFailedError,
        ErrorCode,
        EventLoopBlocked,
        GroupClosed,
        HandlerFailed,
        LogTruncatedError,
        MalformedResponse,
        MarkDropped,
        MemberLost,
        NoBrokersError,
        OffsetLookupError,
        OffsetOutOfRangeError,
        PartitionsChanged,
        ProtocolError,
        QueueFull,
        Rebalanced,
        RecordTooLargeError,
        RequestTimedOut,
        RetriesExhausted,
        RevokeTimeout,
        SessionEnd,
        SessionFailed,
        TopicRecreatedError,
        TopicsChanged,
        TransportError,
        UnsupportedVersionError,
        UsageError,
    )
    from asyncgroup.group import (
        Claim,
        ConsumerGroup,
        Handler,
        Health,
        Records,
        Session,
        SubscriptionPattern,
        ThreadClaim,
        in_thread,
        run,
    )
    from asyncgroup.group.hook import Hook
    from asyncgroup.java import JavaNotFound
    from asyncgroup.model import Batch, BatchResult, Header, Record, RecordMetadata, TopicPartition
    from asyncgroup.offsets import CommittedOffset, OffsetManager
    from asyncgroup.producer import Producer

__all__ = [
    "AssignmentError",
    "AsyncGroupError",
    "AuthenticationError",
    "Batch",
    "BatchResult",
    "BrokerError",
    "CallerCancelled",
    "Claim",
    "ClaimReturned",
    "ClaimStuck",
    "ClientConfig",
    "ClosedError",
    "Cluster",
    "CommitFailedError",
    "CommittedOffset",
    "ConfigError",
    "ConnectError",
    "ConnectionLost",
    "Consumer",
    "ConsumerConfig",
    "ConsumerGroup",
    "CorruptRecordsError",
    "DecodeError",
    "DeliveryFailedError",
    "ErrorCode",
    "EventLoopBlocked",
    "GroupClosed",
    "Handler",
    "HandlerFailed",
    "Header",
    "Health",
    "Hook",
    "Interceptor",
    "JavaNotFound",
    "LogTruncatedError",
    "MalformedResponse",
    "MarkDropped",
    "MemberLost",
    "NoBrokersError",
    "OffsetAndTimestamp",
    "OffsetLookupError",
    "OffsetManager",
    "OffsetOutOfRangeError",
    "PartitionConsumer",
    "PartitionsChanged",
    "Producer",
    "ProducerConfig",
    "ProtocolError",
    "QueueFull",
    "Rebalanced",
    "Record",
    "RecordMetadata",
    "RecordTooLargeError",
    "Records",
    "RequestTimedOut",
    "RetriesExhausted",
    "RevokeTimeout",
    "Session",
    "SessionEnd",
    "SessionFailed",
    "SubscriptionPattern",
    "ThreadClaim",
    "TopicPartition",
    "TopicRecreatedError",
    "TopicsChanged",
    "TransportError",
    "UnsupportedVersionError",
    "UsageError",
    "in_thread",
    "run",
]

_NAMES = {
    "cluster": ["Cluster"],
    "config": ["ClientConfig", "ConsumerConfig", "ProducerConfig"],
    "consumer": ["Consumer", "Interceptor", "OffsetAndTimestamp", "PartitionConsumer"],
    "errors": [
        "AssignmentError",
        "AsyncGroupError",
        "AuthenticationError",
        "BrokerError",
        "CallerCancelled",
        "ClaimReturned",
        "ClaimStuck",
        "ClosedError",
        "CommitFailedError",
        "ConfigError",
        "ConnectError",
        "ConnectionLost",
        "CorruptRecordsError",
        "DecodeError",
        "DeliveryFailedError",
        "ErrorCode",
        "EventLoopBlocked",
        "GroupClosed",
        "HandlerFailed",
        "LogTruncatedError",
        "MalformedResponse",
        "MarkDropped",
        "MemberLost",
        "NoBrokersError",
        "OffsetLookupError",
        "OffsetOutOfRangeError",
        "PartitionsChanged",
        "ProtocolError",
        "QueueFull",
        "Rebalanced",
        "RecordTooLargeError",
        "RequestTimedOut",
        "RetriesExhausted",
        "RevokeTimeout",
        "SessionEnd",
        "SessionFailed",
        "TopicRecreatedError",
        "TopicsChanged",
        "TransportError",
        "UnsupportedVersionError",
        "UsageError",
    ],
    "group": [
        "Claim",
        "ConsumerGroup",
        "Handler",
        "Health",
        "Records",
        "Session",
        "SubscriptionPattern",
        "ThreadClaim",
        "in_thread",
        "run",
    ],
    "group.hook": ["Hook"],
    "java": ["JavaNotFound"],
    "model": ["Batch", "BatchResult", "Header", "Record", "RecordMetadata", "TopicPartition"],
    "offsets": ["CommittedOffset", "OffsetManager"],
    "producer": ["Producer"],
}
"""The public names of each module."""

_MODULES = frozenset(
    {
        "broker",
        "cluster",
        "config",
        "consumer",
        "errors",
        "group",
        "hooks",
        "model",
        "offsets",
        "producer",
        "security",
        "testing",
    }
)
"""Submodules that are attributes of the package (`asyncgroup.errors`) without a separate import."""


if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = _lazy_names(__name__, _NAMES, _MODULES)
