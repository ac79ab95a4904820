"""The error tree: everything that asyncgroup raises derives from `AsyncGroupError`.

AsyncGroupError
├── ConfigError (also ValueError)      a configuration value, with key, value and what is allowed
├── UsageError (also RuntimeError)     a call that the object's state does not allow
│   └── ClosedError                    the object was closed
├── TransportError                     no answer from a broker
│   ├── ConnectError                   no connection could be made
│   ├── ConnectionLost                 the connection ended while a request was under way
│   ├── RequestTimedOut                no response in time
│   └── NoBrokersError                 no broker of the cluster could be reached
├── ProtocolError                      bytes or versions that do not fit
│   ├── DecodeError                    malformed bytes
│   ├── UnsupportedVersionError        broker and client share no version, or a field does not exist in it
│   └── CorruptRecordsError            a record batch whose CRC or form is wrong
├── BrokerError                        a broker answered with an error code
├── OffsetOutOfRangeError              a position outside the log, and no reset policy
├── CommitFailedError                  offsets that could not be committed, per partition
├── DeliveryFailedError                records that could not be delivered, per partition
├── AssignmentError                    a group's leader sent an assignment that does not fit
├── QueueFull                          no room for another record in the producer
└── SessionEnd                         why a consumer-group session ended (`session.cause`)
    ├── Rebalanced                     the group rebalances: another member joined or left
    ├── PartitionsChanged              a subscribed topic has another number of partitions
    ├── MemberLost                     fenced, expired, or no broker answered for session_timeout
    ├── ClaimReturned                  consume_claim returned on a live claim
    ├── HandlerFailed                  the handler raised
    ├── SessionFailed                  the session's own work failed: its start offsets, for example
    ├── GroupClosed                    the group was closed
    └── CallerCancelled                the task in consume() was cancelled
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from asyncgroup.error_codes import ErrorCode, error_name, is_retriable

if TYPE_CHECKING:
    from asyncgroup.model import TopicPartition

__all__ = [
    "AssignmentError",
    "AsyncGroupError",
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
    "MemberLost",
    "NoBrokersError",
    "OffsetOutOfRangeError",
    "PartitionsChanged",
    "ProtocolError",
    "QueueFull",
    "Rebalanced",
    "RequestTimedOut",
    "SessionEnd",
    "SessionFailed",
    "TransportError",
    "UnsupportedVersionError",
    "UsageError",
]


class AsyncGroupError(Exception):
    """Base of every error that asyncgroup raises by itself.

    `retriable` says whether the same call may succeed later (Kafka's `RetriableException`).
    """

    retriable: bool = False


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


class DecodeError(ProtocolError):
    """Malformed bytes: the message names the message, the version and the place."""


class UnsupportedVersionError(ProtocolError):
    """Broker and client share no version of an API, or a field cannot be said in the version in use."""


class CorruptRecordsError(ProtocolError):
    """A record batch with a wrong CRC or an impossible header; names topic, partition and offset where known."""


class BrokerError(AsyncGroupError):
    """A broker answered with an error code.

    `code` is the number on the wire, `name` Kafka's name for it, `retriable` whether Kafka's own client would retry.
    `what` says what was asked for (the topic, the group, …).
    """

    def __init__(self, code: int, what: str, detail: str | None = None) -> None:
        self.code = code
        self.name = error_name(code)
        self.retriable = is_retriable(code)
        self.what = what
        super().__init__(f"{what}: {self.name} ({code})" + (f": {detail}" if detail else ""))


class OffsetOutOfRangeError(AsyncGroupError):
    """A position that the log does not hold, where the configuration asks for an error instead of a reset."""


class CommitFailedError(AsyncGroupError):
    """Offsets that could not be committed: `failed` maps each partition to its error."""

    def __init__(self, group_id: str, failed: Mapping[TopicPartition, AsyncGroupError]) -> None:
        self.failed = dict(failed)
        rows = "; ".join(f"{tp.topic}-{tp.partition}: {error}" for tp, error in sorted(self.failed.items()))
        super().__init__(
            f"group {group_id!r}: offsets of {len(self.failed)} partition(s) not committed: {rows}"
        )


class DeliveryFailedError(AsyncGroupError):
    """Records given to `Producer.enqueue` that could not be delivered.

    `failed` maps each partition to the number of records and the first error; partition -1 stands for a topic whose
    partitions could not be learned. `count` is the number of all records.
    """

    def __init__(self, failed: Mapping[TopicPartition, tuple[int, Exception]]) -> None:
        self.failed = dict(failed)
        self.count = sum(count for count, _ in self.failed.values())
        rows = "; ".join(str(error) for _, (_, error) in sorted(self.failed.items()))
        super().__init__(f"{self.count} records not delivered: {rows}")


class AssignmentError(AsyncGroupError):
    """An assignment that cannot be made or does not fit the subscription."""


class QueueFull(AsyncGroupError):
    """The producer's buffer has no room for another record: wait with `send` or `enqueue`."""


class SessionEnd(AsyncGroupError):
    """Why a session ended; never raised into a handler by itself, but found as `session.cause` and `claim.cause`."""


class Rebalanced(SessionEnd):
    """The coordinator rebalances the group: a member joined, left or changed its topics."""


class PartitionsChanged(SessionEnd):
    """A subscribed topic has another number of partitions than the assignment was made for."""


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
