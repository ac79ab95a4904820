"""Kafka consumer groups for asyncio.

    from asyncgroup import ConsumerConfig, ConsumerGroup, Handler

See the README for a first handler, and `asyncgroup.errors` for what can be raised.
"""

from asyncgroup.cluster import Cluster
from asyncgroup.config import ClientConfig, ConsumerConfig, ProducerConfig
from asyncgroup.consumer import Consumer, PartitionConsumer
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CallerCancelled,
    ClaimReturned,
    ClosedError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
    GroupClosed,
    HandlerFailed,
    MemberLost,
    NoBrokersError,
    PartitionsChanged,
    QueueFull,
    Rebalanced,
    SessionEnd,
    SessionFailed,
    TopicsChanged,
)
from asyncgroup.group import Claim, ConsumerGroup, Handler, Health, Session, ThreadClaim, in_thread
from asyncgroup.model import Batch, Header, Record, RecordMetadata, TopicPartition
from asyncgroup.offsets import OffsetManager
from asyncgroup.producer import Producer

__all__ = [
    "AsyncGroupError",
    "Batch",
    "BrokerError",
    "CallerCancelled",
    "Claim",
    "ClaimReturned",
    "ClientConfig",
    "ClosedError",
    "Cluster",
    "CommitFailedError",
    "ConfigError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerGroup",
    "ErrorCode",
    "GroupClosed",
    "Handler",
    "HandlerFailed",
    "Header",
    "Health",
    "MemberLost",
    "NoBrokersError",
    "OffsetManager",
    "PartitionConsumer",
    "PartitionsChanged",
    "Producer",
    "ProducerConfig",
    "QueueFull",
    "Rebalanced",
    "Record",
    "RecordMetadata",
    "Session",
    "SessionEnd",
    "SessionFailed",
    "ThreadClaim",
    "TopicPartition",
    "TopicsChanged",
    "in_thread",
]
