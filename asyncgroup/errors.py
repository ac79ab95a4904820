"""The error tree: everything that asyncgroup raises derives from `AsyncGroupError`.

Errors of a single module are beside their code: `MalformedTimestamp` (`columns`), `CoordinatorMoved`
(`cluster.coordinators`), and those of `broker`, `testing` and `spark`.

AsyncGroupError
├── ConfigError (also ValueError)      an invalid configuration value: key, value and what is allowed
├── UsageError (also RuntimeError)     a call that the object's state does not allow
│   └── ClosedError                    the object was closed
│       └── ProducerLockLost           an ExclusiveProducer no longer holds its lock
├── TransportError                     no answer from a broker
│   ├── ConnectError                   no connection could be made
│   ├── ConnectionLost                 the connection ended while a request was in flight
│   │   └── MalformedResponse (also DecodeError)   the response was invalid, so the connection was closed
│   ├── RequestTimedOut                no response in time
│   └── NoBrokersError                 no broker of the cluster could be reached
├── ProtocolError                      bytes or versions that do not match the protocol
│   ├── DecodeError                    malformed bytes
│   ├── UnsupportedVersionError        broker and client share no version, or a field does not exist in it
│   └── CorruptRecordsError            a record batch with a wrong CRC or an invalid format
├── AuthenticationError                SASL or TLS authentication failed, of the client or of the broker
├── BrokerError                        a broker answered with an error code
├── OffsetLookupError                  offsets that could not be looked up, per partition
├── OffsetOutOfRangeError              a position outside the log, and no reset policy
│   ├── LogTruncatedError              the log lost records that were already read
│   └── TopicRecreatedError            the topic of the position was deleted and created again
├── RetriesExhausted                   fetching a partition failed more often than fetch_retry_max allows
├── RecordTooLargeError                a record batch exceeds the fetch limit, and the broker truncated it
├── CommitFailedError                  offsets that could not be committed, per partition
├── RevokeTimeout                      a handler that still ran when its partition had to be given up
├── ClaimStuck                         a handler made no progress with a record for max_poll_interval
├── EventLoopBlocked                   a handler or another task did not await for more than a second
├── MarkDropped                        a record was marked through its group after its claim had ended
├── DeliveryFailedError                records that could not be delivered, per partition
├── AssignmentError                    the group leader sent an assignment that does not match the subscription
├── ProducerLockHeld                   another ExclusiveProducer holds the lock
├── QueueFull                          the producer's buffer is full
└── SessionEnd                         why a consumer-group session ended (`session.cause`)
    ├── Rebalanced                     the group rebalances: a member joined, left or changed its topics
    ├── PartitionsChanged              a subscribed topic was extended, deleted or created again
    ├── TopicsChanged                  the member subscribes to other topics
    ├── MemberLost                     fenced, expired, or no broker answered for session_timeout
    ├── ClaimReturned                  consume_claim returned on a live claim
    ├── HandlerFailed                  the handler raised
    ├── SessionFailed                  work outside of the handler failed: looking up start offsets, for example
    ├── GroupClosed                    the group was closed
    └── CallerCancelled                the task in consume() was cancelled
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from asyncgroup.error_codes import ErrorCode, error_name, is_retriable
from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.topic_partition import TopicPartition

__all__ = [
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
    "ProducerLockHeld",
    "ProducerLockLost",
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
]


class AsyncGroupError(Exception):
    """Base of all errors that asyncgroup itself raises.

    `retriable` says whether the same call may succeed later (Kafka's `RetriableException`).
    """

    retriable: bool = False
    _has_foreign_text: ClassVar[bool] = False
    """Whether the message may contain text of another program; control characters in it are then escaped."""

    def __init__(self, *args: object) -> None:
        if self._has_foreign_text:
            args = tuple(printable(each) if isinstance(each, str) else each for each in args)
        super().__init__(*args)


class ConfigError(AsyncGroupError, ValueError):
    """A configuration value that is not allowed.

    `key` and `value` are the rejected setting, `allowed` says which values are valid. If the error was created with a
    message only, `key` is that message, and `value` and `allowed` are None.
    """

    def __init__(self, key: str, value: object = None, allowed: str | None = None) -> None:
        self.key = key
        self.value = value
        self.allowed = allowed
        text = key if allowed is None else f"{key}={value!r} is not allowed: {allowed}"
        super().__init__(text)


class UsageError(AsyncGroupError, RuntimeError):
    """A call that the object's current state does not allow."""


class ClosedError(UsageError):
    """The object was closed, or its context manager was never entered."""


class TransportError(AsyncGroupError):
    """A broker did not answer: the request may or may not have been processed."""

    _has_foreign_text = True
    retriable = True


class ConnectError(TransportError):
    """No connection to a broker could be made; the message names every address tried."""


class ConnectionLost(TransportError):
    """The connection ended before the response arrived."""


class RequestTimedOut(TransportError):
    """No response within the request timeout; the connection is closed, because responses arrive in request order."""


class NoBrokersError(TransportError):
    """No broker of the cluster, bootstrap addresses included, could be reached."""


class ProtocolError(AsyncGroupError):
    """Bytes, sizes or versions that do not match Kafka's protocol."""

    _has_foreign_text = True


class DecodeError(ProtocolError):
    """Malformed bytes; the text names the protocol message, its version and the field."""


class MalformedResponse(ConnectionLost, DecodeError):
    """A broker's response was malformed, so the connection was closed: the bytes after it cannot be trusted.

    As after any lost connection, the request may or may not have been processed, and a retry may succeed.
    """


class UnsupportedVersionError(ProtocolError):
    """Broker and client share no version of an API, or a field does not exist in the version in use."""


class CorruptRecordsError(ProtocolError):
    """A record batch with a wrong CRC or an invalid header; the text names topic, partition and offset if known."""


class AuthenticationError(AsyncGroupError):
    """A broker rejected this client's credentials, or could not prove its own identity; a retry will not help.

    The message names the broker, and the SASL mechanism and user or the TLS check that failed; it never contains a
    secret (`AuthenticationException` of kafka-clients).
    """

    _has_foreign_text = True


class BrokerError(AsyncGroupError):
    """A broker answered with an error code.

    `code` is the protocol's error code, `name` Kafka's name for it, `retriable` whether Kafka's own client would retry.
    `what` is the subject of the request (the topic, the group, …).
    """

    _has_foreign_text = True

    def __init__(self, code: int, what: str, detail: str | None = None) -> None:
        self.code = code
        self.name = error_name(code)
        self.retriable = is_retriable(code)
        self.what = what
        text = f": {printable(detail, MAX_TEXT_LENGTH)}" if detail else ""
        super().__init__(f"{what}: {self.name} ({code}){text}")


class OffsetLookupError(AsyncGroupError):
    """Offsets that could not be looked up: `errors` maps each partition that failed to its error."""

    _MAX_NAMED: ClassVar[int] = 10
    """The largest number of partitions that the message lists."""

    def __init__(self, errors: Mapping[TopicPartition, AsyncGroupError]) -> None:
        self.errors = dict(errors)
        rows = [f"{tp}: {error}" for tp, error in sorted(self.errors.items())]
        if (more := len(rows) - self._MAX_NAMED) > 0:
            rows[self._MAX_NAMED :] = [f"and {more} more"]
        super().__init__(
            f"offsets of {len(self.errors)} partition(s) could not be looked up: {'; '.join(rows)}"
        )


class OffsetOutOfRangeError(AsyncGroupError):
    """A position is outside the log, and the configuration asks for an error instead of a reset."""

    _has_foreign_text = True


class LogTruncatedError(OffsetOutOfRangeError):
    """The log lost records that were already read: a replica without them became the leader (KIP-320).

    `position` is the next offset that the reader would get. Up to `divergent_offset` the log is unchanged; it is None
    if the leader does not know it. As Java's `LogTruncationException`.
    """

    def __init__(self, tp: TopicPartition, position: int, divergent_offset: int | None) -> None:
        self.topic, self.partition = tp
        self.position = position
        self.divergent_offset = divergent_offset
        same = "at an unknown offset" if divergent_offset is None else f"at offset {divergent_offset}"
        super().__init__(f"partition {tp}: the log was truncated {same}, records up to {position} were read")


class TopicRecreatedError(OffsetOutOfRangeError):
    """The topic was deleted and created again: `position` is an offset of the old topic, invalid in the new (KIP-516)."""

    def __init__(self, tp: TopicPartition, position: int) -> None:
        self.topic, self.partition = tp
        self.position = position
        super().__init__(
            f"partition {tp}: the topic was deleted and created again, offset {position} belongs to the old topic"
        )


class RetriesExhausted(AsyncGroupError):
    """Fetching a partition failed `fetch_retry_max` + 1 times in a row.

    Raised once by the partition's iterator, in a group to the claim's handler; if the reader continues, the count
    restarts at 0. `__cause__` is the last failure, `tp` the partition, `tries` the number of failures. As sarama's
    `ErrConsumerRetriesExhausted`, which closes the partition.
    """

    _has_foreign_text = True

    def __init__(self, tp: TopicPartition, tries: int, cause: Exception) -> None:
        self.tp = tp
        self.tries = tries
        self.__cause__ = cause
        super().__init__(f"partition {tp}: {tries} fetch attempts failed, the last one with: {cause}")


class RecordTooLargeError(AsyncGroupError):
    """A record batch is larger than the fetch limit, and the broker returned only its beginning.

    Brokers return the first batch of a response whole, of any size (KIP-74), so this occurs only with a broker
    that does not. Raised by the partition's iterator, in a group to the claim's handler, at each read until a larger
    `max_partition_fetch_bytes` (and `fetch_max_bytes`, `buffer_bytes`) admits the batch or a seek skips it. `tp` is
    the partition, `offset` the first offset of the batch, `size` its bytes, `limit` the bytes requested. As Kafka's
    `RecordTooLargeException`.
    """

    def __init__(self, tp: TopicPartition, offset: int, size: int, limit: int) -> None:
        self.tp = tp
        self.offset = offset
        self.size = size
        self.limit = limit
        super().__init__(
            f"partition {tp} at offset {offset}: a record batch of {size} bytes exceeds the {limit} bytes requested, and "
            "the broker truncated it (raise max_partition_fetch_bytes, fetch_max_bytes, buffer_bytes)"
        )


class CommitFailedError(AsyncGroupError):
    """Offsets that could not be committed: `errors` maps each partition to its error; all others are committed."""

    _has_foreign_text = True
    _MAX_NAMED: ClassVar[int] = 10
    """The largest number of partitions that the message lists."""

    def __init__(self, group_id: str, errors: Mapping[TopicPartition, AsyncGroupError]) -> None:
        self.group_id = group_id
        self.errors = dict(errors)
        rows = [f"{tp.topic}-{tp.partition}: {error}" for tp, error in sorted(self.errors.items())]
        if (more := len(rows) - self._MAX_NAMED) > 0:
            rows[self._MAX_NAMED :] = [f"and {more} more"]
        super().__init__(
            f"group {group_id!r}: offsets of {len(self.errors)} partition(s) not committed: {'; '.join(rows)}"
        )


class RevokeTimeout(AsyncGroupError):
    """The handler of a revoked partition still ran at its limit, although it was cancelled: `limit` in seconds.

    The member gave the partition up nevertheless, so that the group does not remove it. The marks since the last commit
    are dropped: their records are delivered again, to the new owner, while the handler may still run.
    """

    def __init__(self, group_id: str, tp: TopicPartition, limit: float) -> None:
        self.group_id = group_id
        self.topic, self.partition = tp
        self.limit = limit
        super().__init__(
            f"group {group_id!r}: the handler of {tp} was cancelled, and still runs {limit:.1f} s after the revocation: "
            "the member gives the partition up, and drops its marks since the last commit"
        )


class ClaimStuck(AsyncGroupError):
    """A handler had a record of this partition for longer than `max_poll_interval` without a sign of progress.

    A sign is that it asks for the next record, marks, seeks, pauses, or calls `claim.renew()`. The member leaves its group, so
    that others get its partitions (a static member of a classic group only ends its heartbeats), and its session ends as
    lost. `seconds` is how long the claim has been stuck.
    """

    def __init__(self, group_id: str, tp: TopicPartition, seconds: float, limit: float) -> None:
        self.group_id = group_id
        self.topic, self.partition = tp
        self.seconds = seconds
        super().__init__(
            f"group {group_id!r}: claim {tp} is stuck: for {seconds:.1f} s its handler asked for no next record and did not "
            f"mark, seek, pause or renew (max_poll_interval={limit:g} s; `claim.renew()` during long work prevents this)"
        )


class EventLoopBlocked(AsyncGroupError):
    """The event loop of a group member ran nothing for `seconds`: a handler or another task did not await.

    In that time heartbeats go out from a thread, if `heartbeat_thread` is on.
    """

    def __init__(self, group_id: str, seconds: float) -> None:
        self.group_id = group_id
        self.seconds = seconds
        super().__init__(f"group {group_id!r}: the event loop was blocked for {seconds:.1f} s")


class MarkDropped(AsyncGroupError):
    """A record was marked by `ConsumerGroup.mark` after the claim that it was read from had ended: it is not committed.

    The record will be delivered again, to this member or another one. `topic`, `partition` and `offset` are those of
    the record. `ConsumerGroup.errors()` yields this error, and the next `ConsumerGroup.commit()` raises it in its
    `errors`.
    """

    def __init__(self, tp: TopicPartition, offset: int, reason: str) -> None:
        self.topic, self.partition = tp
        self.offset = offset
        super().__init__(f"partition {tp}: the mark of offset {offset} is dropped: {reason}")


class DeliveryFailedError(AsyncGroupError):
    """Records given to `Producer.enqueue` that could not be delivered.

    `failed` maps each partition to the number of records and the first error; partition -1 stands for a topic whose
    partitions could not be looked up. `count` is the total number of records.
    """

    _has_foreign_text = True

    def __init__(self, failed: Mapping[TopicPartition, tuple[int, Exception]]) -> None:
        self.failed = dict(failed)
        self.count = sum(count for count, _ in self.failed.values())
        rows = "; ".join(str(error) for _, (_, error) in sorted(self.failed.items()))
        super().__init__(f"{self.count} records not delivered: {rows}")


class AssignmentError(AsyncGroupError):
    """An assignment that cannot be computed or does not match the subscription."""

    _has_foreign_text = True


class ProducerLockHeld(AsyncGroupError):
    """Another producer holds the lock of a topic (`ExclusiveProducer`). Pulsar's ProducerBusyException.

    `group_id` is the group that serves as the lock.
    """

    def __init__(self, topic: str, group_id: str) -> None:
        self.topic = topic
        self.group_id = group_id
        super().__init__(f"another producer of topic {topic!r} holds the lock, group {group_id!r}")


class ProducerLockLost(ClosedError):
    """The producer was closed because it no longer holds the lock of its topic (`ExclusiveProducer`).

    `group_id` is the group that serves as the lock. Another producer may write now.
    """

    _has_foreign_text = True

    def __init__(self, topic: str, group_id: str, reason: str) -> None:
        self.topic = topic
        self.group_id = group_id
        super().__init__(
            f"the producer of topic {topic!r} has lost its lock, group {group_id!r}, and is closed: {reason}"
        )


class QueueFull(AsyncGroupError):
    """The producer's buffer is full; `send` and `enqueue` wait until there is space."""


class SessionEnd(AsyncGroupError):
    """Why a session ended: the value of `session.cause` and `claim.cause`. Never raised into a handler."""

    _has_foreign_text = True


class Rebalanced(SessionEnd):
    """The coordinator rebalances the group: a member joined, left or changed its topics."""


class PartitionsChanged(SessionEnd):
    """The partitions of a subscribed topic changed: some were added, or the topic was deleted or created again."""


class TopicsChanged(SessionEnd):
    """The member subscribes to other topics: by `ConsumerGroup.set_topics()`, or because its pattern matches others."""


class MemberLost(SessionEnd):
    """The member was fenced, its session expired, or no broker answered for `session_timeout`. Nothing is committed."""


class ClaimReturned(SessionEnd):
    """`consume_claim` returned before its claim ended; the session ends for all claims, as in sarama."""


class HandlerFailed(SessionEnd):
    """The handler raised; its exception is `__cause__`, and `consume()` raises it unchanged."""


class SessionFailed(SessionEnd):
    """Work of the session outside of the handler failed; the error is `__cause__`, and `consume()` raises it unchanged."""


class GroupClosed(SessionEnd):
    """`aclose()` was called on the group."""


class CallerCancelled(SessionEnd):
    """The task that runs `consume()` or `run()` was cancelled."""
