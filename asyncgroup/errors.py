"""The error tree: everything that asyncgroup raises derives from `AsyncGroupError`.

Errors of a single module are beside their code: `MalformedTimestamp` (`columns`), `CoordinatorMoved`
(`cluster.coordinators`), and those of `broker`, `testing` and `spark`.

AsyncGroupError
├── ConfigError (also ValueError)      an invalid configuration value: key, value and what is allowed
├── InvalidRecordError (also ValueError)   a record that cannot be written: its field, the value and what is allowed
│   └── RecordRejectedError (also BrokerError)   a broker refused this record for its contents
├── UsageError (also RuntimeError)     a call that the object's state does not allow
│   ├── ClosedError                    the object was closed
│   │   └── ProducerLockLost           an ExclusiveProducer no longer holds its lock
│   ├── NotTransactionalError          a call for transactions on a producer without a transactional_id
│   ├── NoTransactionError             a call that needs an open transaction, as writing with a transactional_id does
│   └── TransactionInProgressError     a second transaction of a producer before the first one has ended
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
│   └── BatchRejectedError             a record was not written because of another record of its batch
├── OffsetLookupError                  offsets that could not be looked up, per partition
├── OffsetOutOfRangeError              a position outside the log, and no reset policy
│   ├── LogTruncatedError              the log lost records that were already read
│   └── TopicRecreatedError            the topic of the position was deleted and created again
├── RetriesExhausted                   fetching a partition failed more often than fetch_retry_max allows
├── RecordTooLargeError                a record batch exceeds the fetch limit, and the broker truncated it
├── CommitFailedError                  offsets that could not be committed, per partition
├── RevokeTimeout                      a handler that still ran when its partition had to be given up
├── HookTimeout                        setup, on_assigned, on_revoked, on_lost or cleanup took too long
├── HandlerCancelled                   a method of a handler raised CancelledError, though nothing cancelled it
├── ClaimStuck                         a handler made no progress with a record for max_poll_interval
├── EventLoopBlocked                   a handler or another task did not await for more than a second
├── MarkDropped                        a record was marked through its group after its claim had ended
├── DeliveryFailedError                records that could not be delivered, per partition
├── TransactionError                   a transaction of a producer failed
│   ├── TransactionAbortedError        it was, or can only be, aborted; the producer can begin another one
│   ├── ProducerFencedError            the transactional id has a newer epoch; the producer can only be closed
│   └── TransactionOutcomeUnknown      it may be committed or not; the producer can only be closed
├── AssignmentError                    the group leader sent an assignment that does not match the subscription
├── ConsumerBusy                       another member holds the group of an exclusive consumer
├── ProducerLockHeld                   another ExclusiveProducer holds the lock
├── CopyFailedError                    a record could not be copied to a retry or dead letter topic; tried again
├── DeadLetterRateError                too many records of a work queue are dead letters
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

from collections.abc import Mapping, Sequence
from typing import ClassVar

from asyncgroup.error_codes import ErrorCode, error_name, is_retriable
from asyncgroup.escaping import MAX_TEXT_LENGTH, printable
from asyncgroup.topic_partition import TopicPartition

__all__ = [
    "AssignmentError",
    "AsyncGroupError",
    "AuthenticationError",
    "BatchRejectedError",
    "BrokerError",
    "CallerCancelled",
    "ClaimReturned",
    "ClaimStuck",
    "ClosedError",
    "CommitFailedError",
    "ConfigError",
    "ConnectError",
    "ConnectionLost",
    "ConsumerBusy",
    "CopyFailedError",
    "CorruptRecordsError",
    "DeadLetterRateError",
    "DecodeError",
    "DeliveryFailedError",
    "ErrorCode",
    "EventLoopBlocked",
    "GroupClosed",
    "HandlerCancelled",
    "HandlerFailed",
    "HookTimeout",
    "InvalidRecordError",
    "LogTruncatedError",
    "MalformedResponse",
    "MarkDropped",
    "MemberLost",
    "NoBrokersError",
    "NoTransactionError",
    "NotTransactionalError",
    "OffsetLookupError",
    "OffsetOutOfRangeError",
    "PartitionsChanged",
    "ProducerFencedError",
    "ProducerLockHeld",
    "ProducerLockLost",
    "ProtocolError",
    "QueueFull",
    "Rebalanced",
    "RecordRejectedError",
    "RecordTooLargeError",
    "RequestTimedOut",
    "RetriesExhausted",
    "RevokeTimeout",
    "SessionEnd",
    "SessionFailed",
    "TopicRecreatedError",
    "TopicsChanged",
    "TransactionAbortedError",
    "TransactionError",
    "TransactionInProgressError",
    "TransactionOutcomeUnknown",
    "TransportError",
    "UnsupportedVersionError",
    "UsageError",
]


class AsyncGroupError(Exception):
    """Base of all errors that asyncgroup itself raises.

    `retriable` says whether the same call may succeed later (Kafka's `RetriableException`). For a producer's record
    `may_be_written` says whether it may be in the log although it failed: False is certain.
    """

    retriable: bool = False
    may_be_written: bool = False
    _has_foreign_text: ClassVar[bool] = False
    """Whether the message may contain text of another program; control characters in it are then escaped."""

    def __init__(self, *args: object) -> None:
        if self._has_foreign_text:
            # in `args`, which log handlers and reports may read without `str`
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
        # the repr of a value has no control characters; the key may come from a file
        text = key if allowed is None else f"{printable(key)}={value!r} is not allowed: {allowed}"
        super().__init__(text)


class InvalidRecordError(AsyncGroupError, ValueError):
    """A record that cannot be written, because of its contents: writing the same record again fails again.

    `field` is the argument of `Producer.send` that is refused (`size` for a record that is too large, `record` for one as a
    whole), `value` its value and `allowed` what is valid. The record is not in the log, unless `may_be_written` says so. Other
    records are not affected. As Java's `RecordTooLargeException` and `SerializationException`.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"{field}={value!r} is not allowed: {allowed}")


class UsageError(AsyncGroupError, RuntimeError):
    """A call that the object's current state does not allow."""


class ClosedError(UsageError):
    """The object was closed, or its context manager was never entered."""


class NotTransactionalError(UsageError):
    """A call for transactions on a producer whose configuration has no `transactional_id`."""


class NoTransactionError(UsageError):
    """A call that needs an open transaction: a producer with a `transactional_id` writes in transactions only."""


class TransactionInProgressError(UsageError):
    """A transaction was begun before the last one of the same producer had ended: transactions cannot be nested."""


class TransportError(AsyncGroupError):
    """A broker did not answer: the request may or may not have been processed."""

    _has_foreign_text = True
    retriable = True


class ConnectError(TransportError):
    """No connection to a broker could be made; the message names every address tried."""


class ConnectionLost(TransportError):
    """The connection ended before the response arrived."""


class RequestTimedOut(TransportError):
    """No response within the request timeout; the connection is closed, because responses arrive in request order.

    Of a producer's record: not acknowledged within `delivery_timeout`, retries included. It may be in the log if
    `may_be_written` says so.
    """


class NoBrokersError(TransportError):
    """No broker of the cluster, bootstrap addresses included, could be reached."""


class ProtocolError(AsyncGroupError):
    """Bytes, sizes or versions that do not match the protocol of Kafka, or of Pulsar."""

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
        # a broker's text is shortened: it may contain a whole request
        text = f": {printable(detail, MAX_TEXT_LENGTH)}" if detail else ""
        super().__init__(f"{what}: {self.name} ({code}){text}")


class BatchRejectedError(BrokerError):
    """A broker rejected a batch because of another record in it (KIP-467): this one is not written, and can be sent again.

    The other record's call raises a RecordRejectedError with the reason. If `may_be_written` is set, an earlier attempt had no
    result, and `retriable` is False. Java raises a plain KafkaException.
    """

    _MAX_NAMED: ClassVar[int] = 10
    """The largest number of records that the message lists."""

    def __init__(
        self, code: int, what: str, rejected: Sequence[int], *, may_be_written: bool = False
    ) -> None:
        named = ", ".join(map(str, rejected[: self._MAX_NAMED]))
        # a batch may have thousands of records
        if (more := len(rejected) - self._MAX_NAMED) > 0:
            named += f" and {more} more"
        reason = f"record{'s' if len(rejected) > 1 else ''} {named} of its batch {'were' if len(rejected) > 1 else 'was'} rejected"
        super().__init__(
            # an earlier attempt may be in the log: sending the record again could write it twice
            code,
            what,
            reason if may_be_written else f"not written, because {reason}; send it again",
        )
        self.may_be_written = may_be_written
        self.retriable = not may_be_written


class RecordRejectedError(InvalidRecordError, BrokerError):
    """A broker refused a record for its contents: MESSAGE_TOO_LARGE, INVALID_RECORD or INVALID_TIMESTAMP.

    `code`, `name` and `what` are those of a BrokerError; `field` is `record`, `value` None, and `allowed` the broker's reason.
    """

    def __init__(self, code: int, what: str, detail: str | None = None) -> None:
        # not by `super()`: the text of InvalidRecordError would name neither the code nor the topic
        BrokerError.__init__(self, code, what, detail)
        self.field = "record"
        self.value = None
        self.allowed = detail or self.name


class OffsetLookupError(AsyncGroupError):
    """Offsets that could not be looked up: `errors` maps each partition that failed to its error."""

    _MAX_NAMED: ClassVar[int] = 10
    """The largest number of partitions that the message lists."""

    def __init__(self, errors: Mapping[TopicPartition, AsyncGroupError]) -> None:
        # a copy: the caller's mapping may go on
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
        # the leader does not know any of the reader's epochs: the two logs may have no common part
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
        # set here, as the error is kept and raised later, without `from`
        self.__cause__ = cause
        super().__init__(f"partition {tp}: {tries} fetch attempts failed, the last one with: {cause}")


class RecordTooLargeError(AsyncGroupError):
    """A record batch is larger than the fetch limit, and the broker returned only its beginning.

    Brokers return the first batch of a response whole, of any size (KIP-74), so this occurs only with a broker
    that does not. Raised by the partition's iterator, in a group to the claim's handler, at each read until a larger
    `max_partition_fetch_bytes` (and `fetch_max_bytes`, `buffer_bytes`) admits the batch or a seek skips it. `tp` is
    the partition, `offset` the first offset of the batch, `size` its bytes, `limit` the bytes requested. As the
    `RecordTooLargeException` of Kafka's consumer. A producer's record that is too large raises InvalidRecordError.
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
        # one line for each partition up to the limit; `errors` has all of them
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


class HookTimeout(AsyncGroupError):
    """A method of the handler was cancelled, as it took longer than a rebalance or the end of its session allows.

    `method` is its name, `seconds` is how long it ran until then. `still_runs`: it ignores the cancellation, and still ran when
    the last commit should have been complete. The end of the session waits for it. A rebalance during the session does not:
    partitions are given up also if `on_revoked` is not done. If partitions are revoked while `setup` or `on_assigned` hangs, the
    session ends, and `run()` joins again; if it ignores its cancellation, the member leaves the group before.

    A method that is cancelled because the caller of `run()` was cancelled is reported only if it still runs.
    """

    def __init__(self, group_id: str, method: str, seconds: float, *, still_runs: bool = False) -> None:
        self.group_id = group_id
        self.method = method
        self.seconds = seconds
        self.still_runs = still_runs
        # only then is there something to do: the hook ignores its cancellation
        goes_on = ", and still runs" if still_runs else ""
        super().__init__(f"group {group_id!r}: {method} was cancelled after {seconds:.1f} s{goes_on}")


class HandlerCancelled(AsyncGroupError):
    """A method of the handler raised CancelledError, though nothing cancelled it.

    Raised as it is, it would look like a cancellation of the caller: a TaskGroup would end the consumer without an error.
    """


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
    partitions could not be looked up. `count` is the total number of records, and `may_be_written` says whether one of them
    may be in the log. The records themselves are not kept: `Interceptor.on_acknowledgement` receives each of them
    with its error.
    """

    _has_foreign_text = True

    def __init__(
        self, failed: Mapping[TopicPartition, tuple[int, Exception]], *, may_be_written: bool = False
    ) -> None:
        self.failed = dict(failed)
        self.may_be_written = may_be_written
        self.count = sum(count for count, _ in self.failed.values())
        # the first error of each partition: the others of it are mostly the same
        rows = "; ".join(str(error) for _, (_, error) in sorted(self.failed.items()))
        super().__init__(f"{self.count} record{'s' if self.count != 1 else ''} not delivered: {rows}")


class TransactionError(AsyncGroupError):
    """A transaction failed. `transactional_id` names the producer, `__cause__` is the reason if there is one."""

    _has_foreign_text = True

    def __init__(self, transactional_id: str, text: str) -> None:
        self.transactional_id = transactional_id
        super().__init__(f"transactional id {transactional_id!r}: {text}")


class TransactionAbortedError(TransactionError):
    """The transaction was aborted, or can only be aborted after a failure: none of its records is committed.

    `__cause__` is the first failure. The producer can begin the next transaction (an "abortable" error in Java).
    """

    def __init__(self, transactional_id: str, reason: str) -> None:
        super().__init__(transactional_id, f"the transaction is aborted: {reason}")


class ProducerFencedError(TransactionError):
    """The coordinator refused the producer's epoch; the transaction is aborted, and the producer can only be closed.

    `producer_id` and `epoch` are those of this producer, `current` is the pair that the coordinator has now
    (DescribeTransactions, KIP-664) and `state` the state of its transaction; both are None if it did not answer. As
    Java's `ProducerFencedException`.
    """

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        transaction_timeout: float | None = None,
        current: tuple[int, int] | None = None,
        state: str | None = None,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.current = current
        self.state = state
        limit = "" if transaction_timeout is None else f"={transaction_timeout:g} s"
        now = ""
        if current is not None:
            # who has fenced this producer: a larger epoch of the same id was given to its successor
            now = f"; the coordinator has producer id {current[0]} with epoch {current[1]}, state {state}"
        super().__init__(
            transactional_id,
            f"fenced: producer id {producer_id} with epoch {epoch} is no longer valid{now}. Either another producer with the "
            f"same transactional_id was started, or the transaction took longer than transaction_timeout{limit} and the "
            "coordinator aborted it, or an administrator did. Close this producer",
        )


class TransactionOutcomeUnknown(TransactionError):
    """A request to end the transaction may have been processed or not; the producer can only be closed.

    It got no answer, or an error that a coordinator also sends after it has written to its log (NOT_COORDINATOR,
    COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, UNKNOWN_SERVER_ERROR). Then either the time has passed, or the next
    attempt was refused, which does not say that the first one was.

    `commit` says what was requested. A commit may have been made: the next producer with the same transactional id completes
    it or aborts the transaction. Without one, the coordinator aborts an open transaction after `transaction_timeout`.
    """

    def __init__(self, transactional_id: str, reason: str, *, commit: bool) -> None:
        self.commit = commit
        what = "the transaction may be committed or not" if commit else "the transaction may still be open"
        super().__init__(transactional_id, f"{what}: {reason}. Close this producer")


class AssignmentError(AsyncGroupError):
    """An assignment that cannot be computed or does not match the subscription."""

    _has_foreign_text = True


class ConsumerBusy(AsyncGroupError):
    """Another member holds the group of an exclusive consumer. Pulsar's ConsumerBusyException.

    `group_id` is the group. `holder` describes the other member: its member id, and client id and host if they are known;
    None if nothing is.
    """

    _has_foreign_text = True

    def __init__(self, group_id: str, holder: str | None = None) -> None:
        self.group_id = group_id
        self.holder = holder
        shown = "" if holder is None else f": {holder}"
        super().__init__(f"another consumer holds the group {group_id!r}{shown}")


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


class CopyFailedError(AsyncGroupError):
    """A record could not be copied to a retry or dead letter topic; it is not acknowledged, and the copy is tried again.

    `record_topic`, `partition` and `offset` are those of the record, `topic` is where the copy belongs, `tries` the number of
    failed attempts, and `__cause__` the error of the last one.
    """

    _has_foreign_text = True

    def __init__(
        self, record_topic: str, partition: int, offset: int, topic: str, tries: int, cause: BaseException
    ) -> None:
        self.record_topic, self.partition, self.offset = record_topic, partition, offset
        self.topic = topic
        self.tries = tries
        self.__cause__ = cause
        # a queue that is closed tries no more
        self.retriable = not isinstance(cause, ClosedError)
        where, why = f"{record_topic}-{partition}@{offset}", f"{type(cause).__name__}: {cause}"
        super().__init__(f"{where}: copy to topic {topic!r} failed ({tries}): {why}")


class DeadLetterRateError(AsyncGroupError):
    """Too many records of a work queue were dead letters, so that it copies no more of them (`Breaker`).

    `dead` of the `ended` records of the last `window` seconds were copied to the dead letter topic. The records that would
    follow are not acknowledged, and are delivered again.
    """

    def __init__(
        self, group_id: str, dead: int, ended: int, window: float, *, share: float, minimum: int
    ) -> None:
        self.group_id = group_id
        self.dead = dead
        self.ended = ended
        self.window = window
        super().__init__(
            f"group {group_id!r}: {dead} of the {ended} records that ended in the last {window:g} s are dead letters, "
            f"more than share={share:g} with minimum={minimum}: no further ones are written"
        )


class QueueFull(AsyncGroupError):
    """`Producer.send_nowait` reached a limit, which the message names; `send` and `enqueue` wait instead.

    Limits are `buffer_bytes`, `max_pending_records`, those of a partition, and the MemoryBudget.
    """


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
