"""The error tree: everything that asyncgroup raises derives from `AsyncGroupError`.

AsyncGroupError
├── ConfigError (also ValueError)      a configuration value, with key, value and what is allowed
├── UsageError (also RuntimeError)     a call that the object's state does not allow
│   └── ClosedError                    the object was closed
├── TransportError                     no answer from a broker
│   ├── ConnectError                   no connection could be made
│   ├── ConnectionLost                 the connection ended while a request was under way
│   │   └── MalformedResponse (also DecodeError)   it was given up: what came is no answer
│   ├── RequestTimedOut                no response in time
│   └── NoBrokersError                 no broker of the cluster could be reached
├── ProtocolError                      bytes or versions that do not fit
│   ├── DecodeError                    malformed bytes
│   ├── UnsupportedVersionError        broker and client share no version, or a field does not exist in it
│   └── CorruptRecordsError            a record batch whose CRC or form is wrong
├── AuthenticationError                broker and client do not trust each other: SASL or TLS
├── BrokerError                        a broker answered with an error code
├── OffsetLookupError                  offsets that could not be looked up, per partition
├── OffsetOutOfRangeError              a position outside the log, and no reset policy
│   ├── LogTruncatedError              the log lost records that were read already
│   └── TopicRecreatedError            the position is of a topic that was deleted and made anew
├── RetriesExhausted                   a partition that could not be fetched, as often as fetch_retry_max allows
├── RecordTooLargeError                a record batch larger than what was asked for, which the broker cut off
├── CommitFailedError                  offsets that could not be committed, per partition
├── MarkDropped                        a record was marked through its group after its claim was gone
├── DeliveryFailedError                records that could not be delivered, per partition
├── AssignmentError                    a group's leader sent an assignment that does not fit
├── QueueFull                          no room for another record in the producer
└── SessionEnd                         why a consumer-group session ended (`session.cause`)
    ├── Rebalanced                     the group rebalances: another member joined or left
    ├── PartitionsChanged              a subscribed topic has other partitions: more of them, none, or new ones
    ├── TopicsChanged                  the member subscribes to other topics
    ├── MemberLost                     fenced, expired, or no broker answered for session_timeout
    ├── ClaimReturned                  consume_claim returned on a live claim
    ├── HandlerFailed                  the handler raised
    ├── SessionFailed                  the session's own work failed: its start offsets, for example
    ├── GroupClosed                    the group was closed
    └── CallerCancelled                the task in consume() was cancelled
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from asyncgroup.error_codes import ErrorCode, error_name, is_retriable
from asyncgroup.escaping import LONGEST_TEXT, printable

if TYPE_CHECKING:
    from asyncgroup.model import TopicPartition

__all__ = [
    "AssignmentError",
    "AsyncGroupError",
    "AuthenticationError",
    "BrokerError",
    "CallerCancelled",
    "ClaimReturned",
    "ClosedError",
    "CommitFailedError",
    "ConfigError",
    "ConnectError",
    "ConnectionLost",
    "CorruptRecordsError",
    "DecodeError",
    "DeliveryFailedError",
    "ErrorCode",
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
    "SessionEnd",
    "SessionFailed",
    "TopicRecreatedError",
    "TopicsChanged",
    "TransportError",
    "UnsupportedVersionError",
    "UsageError",
]


class AsyncGroupError(Exception):
    """Base of every error that asyncgroup raises by itself.

    `retriable` says whether the same call may succeed later (Kafka's `RetriableException`).
    """

    retriable: bool = False
    _quotes_others: ClassVar[bool] = False
    """Whether the text may hold what another program has written; it is then escaped, and one line."""

    def __init__(self, *args: object) -> None:
        if self._quotes_others:
            args = tuple(printable(each) if isinstance(each, str) else each for each in args)
        super().__init__(*args)


class ConfigError(AsyncGroupError, ValueError):
    """A configuration value that is not allowed.

    `key` and `value` name the culprit, `allowed` says what would do. They are None where one sentence says it all.
    """

    def __init__(self, key: str, value: object = None, allowed: str | None = None) -> None:
        self.key, self.value, self.allowed = key, value, allowed
        text = key if allowed is None else f"{key}={value!r} is not allowed: {allowed}"
        super().__init__(text)


class UsageError(AsyncGroupError, RuntimeError):
    """A call that the object's present state does not allow."""


class ClosedError(UsageError):
    """The object was closed, or its context manager was never entered."""


class TransportError(AsyncGroupError):
    """A broker did not answer: the request may or may not have been carried out."""

    _quotes_others = True
    retriable = True


class ConnectError(TransportError):
    """No connection to a broker could be made; the message names every address tried."""


class ConnectionLost(TransportError):
    """The connection ended before the response came."""


class RequestTimedOut(TransportError):
    """No response within the request's time limit; the connection is given up, as answers come in order."""


class NoBrokersError(TransportError):
    """No broker of the cluster, bootstrap addresses included, could be reached."""


class ProtocolError(AsyncGroupError):
    """Bytes, sizes or versions that do not fit Kafka's protocol."""

    _quotes_others = True


class DecodeError(ProtocolError):
    """Malformed bytes: the message names the message, the version and the place."""


class MalformedResponse(ConnectionLost, DecodeError):
    """A broker's answer was no valid one, so nothing more on its connection can be believed: it was given up.

    As after any lost connection the request may or may not have been carried out, and may succeed elsewhere or later.
    """


class UnsupportedVersionError(ProtocolError):
    """Broker and client share no version of an API, or a field cannot be said in the version in use."""


class CorruptRecordsError(ProtocolError):
    """A record batch with a wrong CRC or an impossible header; names topic, partition and offset where known."""


class AuthenticationError(AsyncGroupError):
    """A broker refuses this client's credentials, or cannot prove that it is the one it should be; trying again is no use.

    The message names the broker, the SASL mechanism and the user, or the TLS check that failed; never a secret
    (`AuthenticationException` of kafka-clients).
    """

    _quotes_others = True


class BrokerError(AsyncGroupError):
    """A broker answered with an error code.

    `code` is the number on the wire, `name` Kafka's name for it, `retriable` whether Kafka's own client would retry.
    `what` says what was asked for (the topic, the group, …).
    """

    _quotes_others = True

    def __init__(self, code: int, what: str, detail: str | None = None) -> None:
        self.code = code
        self.name = error_name(code)
        self.retriable = is_retriable(code)
        self.what = what
        text = f": {printable(detail, LONGEST_TEXT)}" if detail else ""
        super().__init__(f"{what}: {self.name} ({code}){text}")


class OffsetLookupError(AsyncGroupError):
    """Offsets that could not be looked up: `errors` maps each partition that failed to its error."""

    NAMED: ClassVar[int] = 10
    """How many partitions the message names."""

    def __init__(self, errors: Mapping[TopicPartition, AsyncGroupError]) -> None:
        self.errors = dict(errors)
        rows = [f"{tp}: {error}" for tp, error in sorted(self.errors.items())]
        if (more := len(rows) - self.NAMED) > 0:
            rows[self.NAMED :] = [f"and {more} more"]
        super().__init__(f"offsets of {len(self.errors)} partition(s) are not known: {'; '.join(rows)}")


class OffsetOutOfRangeError(AsyncGroupError):
    """A position that the log does not hold, where the configuration asks for an error instead of a reset."""

    _quotes_others = True


class LogTruncatedError(OffsetOutOfRangeError):
    """The log lost records that were read already: a replica without them became the leader (KIP-320).

    `topic`, `partition`, `position` (the next offset that the reader would get), and `divergent_offset`: up to there
    the log is as it was; None if the leader knows nothing of it. As Java's `LogTruncationException`.
    """

    def __init__(self, tp: TopicPartition, position: int, divergent_offset: int | None) -> None:
        self.topic, self.partition = tp
        self.position, self.divergent_offset = position, divergent_offset
        same = "at an unknown offset" if divergent_offset is None else f"at offset {divergent_offset}"
        super().__init__(f"partition {tp}: the log was truncated {same}, records up to {position} were read")


class TopicRecreatedError(OffsetOutOfRangeError):
    """The topic was deleted, and one of the same name made since: a position in the old one means nothing in the new.

    `topic`, `partition` and `position` say which (KIP-516).
    """

    def __init__(self, tp: TopicPartition, position: int) -> None:
        self.topic, self.partition = tp
        self.position = position
        super().__init__(
            f"partition {tp}: the topic was deleted and made anew, offset {position} was in the old one"
        )


class RetriesExhausted(AsyncGroupError):
    """A partition could not be fetched `fetch_retry_max` times and once more, without a success in between.

    Raised once by the partition's iterator, in a group to the claim's handler; a reader that goes on reading starts
    the count anew. `__cause__` is the last failure, `tp` the partition, `tries` the number of failures. As sarama's
    `ErrConsumerRetriesExhausted`, which closes the partition.
    """

    _quotes_others = True

    def __init__(self, tp: TopicPartition, tries: int, cause: Exception) -> None:
        self.tp, self.tries = tp, tries
        self.__cause__ = cause
        super().__init__(f"partition {tp}: {tries} tries to fetch it failed, the last one by: {cause}")


class RecordTooLargeError(AsyncGroupError):
    """A record batch is larger than what was asked for, and the broker returned only its beginning.

    Brokers return such a batch whole if it is the first of an answer (KIP-74), so this is met only where a broker does
    not. Raised by the partition's iterator, in a group to the claim's handler, at each read until a larger
    `max_partition_fetch_bytes` (and `fetch_max_bytes`, `buffer_bytes`) allows for the batch or a seek skips it.
    `tp` is the partition, `offset` the first one of the batch, `size` its bytes, `limit` the bytes asked for. As
    Kafka's `RecordTooLargeException`.
    """

    def __init__(self, tp: TopicPartition, offset: int, size: int, limit: int) -> None:
        self.tp, self.offset, self.size, self.limit = tp, offset, size, limit
        super().__init__(
            f"partition {tp} at offset {offset}: a record batch of {size} bytes, and the broker does not return more "
            f"than the {limit} that were asked for (raise max_partition_fetch_bytes, fetch_max_bytes, buffer_bytes)"
        )


class CommitFailedError(AsyncGroupError):
    """Offsets that could not be committed: `errors` maps each partition to its error; all others are committed."""

    _quotes_others = True
    NAMED: ClassVar[int] = 10
    """How many partitions the message names."""

    def __init__(self, group_id: str, errors: Mapping[TopicPartition, AsyncGroupError]) -> None:
        self.group_id, self.errors = group_id, dict(errors)
        rows = [f"{tp.topic}-{tp.partition}: {error}" for tp, error in sorted(self.errors.items())]
        if (more := len(rows) - self.NAMED) > 0:
            rows[self.NAMED :] = [f"and {more} more"]
        super().__init__(
            f"group {group_id!r}: offsets of {len(self.errors)} partition(s) not committed: {'; '.join(rows)}"
        )


class MarkDropped(AsyncGroupError):
    """A mark by `ConsumerGroup.mark` came too late: the claim that the record was read by is gone, so it is not committed.

    The record is delivered again, to this member or to another one. `topic`, `partition` and `offset` (of the record)
    say which; yielded by `ConsumerGroup.errors()`, and raised by the next `ConsumerGroup.commit()` in its `errors`.
    """

    def __init__(self, tp: TopicPartition, offset: int, reason: str) -> None:
        self.topic, self.partition = tp
        self.offset = offset
        super().__init__(f"partition {tp}: the mark of offset {offset} is dropped: {reason}")


class DeliveryFailedError(AsyncGroupError):
    """Records given to `Producer.enqueue` that could not be delivered.

    `failed` maps each partition to the number of records and the first error; partition -1 stands for a topic whose
    partitions could not be learned. `count` is the number of all records.
    """

    _quotes_others = True

    def __init__(self, failed: Mapping[TopicPartition, tuple[int, Exception]]) -> None:
        self.failed = dict(failed)
        self.count = sum(count for count, _ in self.failed.values())
        rows = "; ".join(str(error) for _, (_, error) in sorted(self.failed.items()))
        super().__init__(f"{self.count} records not delivered: {rows}")


class AssignmentError(AsyncGroupError):
    """An assignment that cannot be made or does not fit the subscription."""

    _quotes_others = True


class QueueFull(AsyncGroupError):
    """The producer's buffer has no room for another record: wait with `send` or `enqueue`."""


class SessionEnd(AsyncGroupError):
    """Why a session ended; never raised into a handler by itself, but found as `session.cause` and `claim.cause`."""

    _quotes_others = True


class Rebalanced(SessionEnd):
    """The coordinator rebalances the group: a member joined, left or changed its topics."""


class PartitionsChanged(SessionEnd):
    """A subscribed topic has other partitions than the assignment was made for: it grew, was deleted, or made anew."""


class TopicsChanged(SessionEnd):
    """The member subscribes to other topics: by `ConsumerGroup.set_topics()`, or because its pattern matches others."""


class MemberLost(SessionEnd):
    """The membership is gone: fenced, expired, or no broker answered for `session_timeout`. Nothing is committed."""


class ClaimReturned(SessionEnd):
    """`consume_claim` returned although its claim was alive; the session ends for all claims, as in sarama."""


class HandlerFailed(SessionEnd):
    """The handler raised; the exception itself is `__cause__` and leaves `consume()` as itself."""


class SessionFailed(SessionEnd):
    """The session's own work failed, and no handler's; the error is `__cause__` and leaves `consume()` as itself."""


class GroupClosed(SessionEnd):
    """`aclose()` was called on the group."""


class CallerCancelled(SessionEnd):
    """The task that runs `consume()` or `run()` was cancelled."""
