"""The state of a transactional producer: which call is allowed when, what may be sent, and what a failure means. State without I/O.

The states are those of Java's `TransactionManager`, and DETACHED. A transaction is of *version 1* or of *version 2* (KIP-890,
the finalized feature `transaction.version` ≥ 2):

- In version 1 a partition is added with AddPartitionsToTxn before the first Produce to it, and a group with AddOffsetsToTxn.
  The epoch stays the same over transactions, until the client asks for the next one by InitProducerId (KIP-360).
- In version 2 Produce and TxnOffsetCommit add the partition themselves, and each EndTxn returns the next epoch.

Sequence numbers: unlike those of an idempotent producer, the epochs are counted by the coordinator and are the same for all
partitions. A batch that fails makes the transaction abortable, and after the abort all partitions begin again at 0 under
the next epoch. Under the former one the brokers could take a new batch for a failed one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple

from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    NoTransactionError,
    TransactionAbortedError,
    TransactionInProgressError,
)
from asyncgroup.lifecycle import copy_error, describe_error
from asyncgroup.log_events import log_fields
from asyncgroup.model import TopicPartition
from asyncgroup.producer.transactions.requests import PRODUCE, TransactionAction, action_of

__all__ = ["NO_PRODUCER", "ProducerIdentity", "TransactionManager", "TransactionPhase"]

_log = logging.getLogger("asyncgroup.producer")


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch; -1 and -1 for none."""

    producer_id: int
    epoch: int


NO_PRODUCER: Final = ProducerIdentity(-1, -1)


class TransactionPhase(Enum):
    """What a transactional producer does."""

    UNINITIALIZED = "uninitialized"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    ABORTABLE_ERROR = "in a transaction that can only be aborted"
    COMMITTING = "committing"
    ABORTING = "aborting"
    DETACHED = "detached from an open transaction"
    FATAL_ERROR = "failed"
    CLOSED = "closed"

    def __str__(self) -> str:
        return self.value


OPEN: Final = frozenset({TransactionPhase.IN_TRANSACTION, TransactionPhase.ABORTABLE_ERROR})
"""States with a transaction that the caller may end."""

ENDING: Final = frozenset({TransactionPhase.COMMITTING, TransactionPhase.ABORTING})

WRITING: Final = frozenset({TransactionPhase.IN_TRANSACTION, TransactionPhase.COMMITTING})
"""States in which records and offsets that were accepted are sent."""


def _keep(_error: AsyncGroupError) -> None:
    """Fail no records."""


class TransactionManager:
    """The state of one transactional id, as its client, the sender and the router see it.

    `fail_records(error)` fails all records that are not done. `on_change` is called after each change of `state`.
    """

    def __init__(
        self,
        transactional_id: str,
        fail_records: Callable[[AsyncGroupError], None] = _keep,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.transactional_id = transactional_id
        self._fail_records = fail_records
        self._on_change = on_change
        self._state = TransactionPhase.UNINITIALIZED
        self.producer_id, self.epoch = NO_PRODUCER
        self.is_v2 = False
        """Whether the transaction is one of KIP-890."""
        self.error: AsyncGroupError | None = None
        """Why the transaction can only be aborted, or why the producer can only be closed."""
        self.partitions: set[TopicPartition] = set()
        """Partitions that Produce may be sent to."""
        self.new_partitions: dict[TopicPartition, None] = {}
        """Partitions that must be added first (version 1); a dict used as an ordered set."""
        self.is_started = False
        """Whether the coordinator may know of the transaction, so that it must be ended by EndTxn."""
        self.needs_bump = False
        """Whether the epoch must be bumped by InitProducerId before the next transaction."""
        self.skips_end = False
        """Whether the coordinator would refuse EndTxn, so that InitProducerId has to abort the transaction."""
        self.partitions_wanted = asyncio.Event()
        """Set when there are new partitions to add (version 1)."""
        self.fenced = asyncio.Event()
        """Set when a broker has refused the epoch: all records fail once the coordinator was asked for the current one."""

    def __repr__(self) -> str:
        return (
            f"<TransactionManager {self.transactional_id!r} {self._state}: producer id {self.producer_id}, "
            f"epoch {self.epoch}, {len(self.partitions)} partitions>"
        )

    @property
    def state(self) -> TransactionPhase:
        """What the producer does."""
        return self._state

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that the caller may end."""
        return self._state in OPEN

    @property
    def is_ending(self) -> bool:
        """Whether the transaction is being committed or aborted."""
        return self._state in ENDING

    @property
    def may_add(self) -> bool:
        """Whether partitions and groups can be added to the transaction."""
        return self._state in WRITING

    @property
    def producer(self) -> ProducerIdentity:
        """The producer id and epoch."""
        return ProducerIdentity(self.producer_id, self.epoch)

    def _enter(self, state: TransactionPhase) -> None:
        self._state = state
        self._on_change()

    # --- calls ----------------------------------------------------------------------------------------------------

    def check_ready(self) -> None:
        """Raise if a transaction cannot begin now: TransactionInProgressError, ClosedError, or the fatal error."""
        if self._state is not TransactionPhase.READY:
            raise self._refusal()

    def refusal(self) -> AsyncGroupError:
        """Return why a record cannot be written now."""
        if self._state is TransactionPhase.READY or self.is_ending:
            text = f"transactional id {self.transactional_id!r}: a record is written in a transaction only"
            return NoTransactionError(
                f"{text} (`async with producer.transaction()`); the producer is {self._state}"
            )
        return self._refusal()

    def check_open(self, call: str) -> None:
        """Raise unless records can be written: NoTransactionError, TransactionAbortedError, or the fatal error."""
        if self._state is TransactionPhase.READY or self.is_ending:
            raise NoTransactionError(
                f"{call} needs an open transaction (`async with producer.transaction()`); the producer is {self._state}"
            )
        if self._state is not TransactionPhase.IN_TRANSACTION:
            raise self._refusal()

    def _refusal(self) -> AsyncGroupError:
        match self._state:
            case TransactionPhase.FATAL_ERROR:
                assert self.error is not None
                return copy_error(self.error)
            case TransactionPhase.ABORTABLE_ERROR:
                return self.aborted_error()
            case TransactionPhase.UNINITIALIZED | TransactionPhase.CLOSED:
                return ClosedError("the producer is closed, or was never entered with `async with`")
            case TransactionPhase.DETACHED:
                return ClosedError("the producer's transaction was detached: it can only be closed")
            case _:
                return TransactionInProgressError(
                    f"transactional id {self.transactional_id!r} is {self._state}: a producer has one transaction at a time"
                )

    def aborted_error(self) -> TransactionAbortedError:
        """Return the error of a transaction that can only be aborted, or that was aborted by its caller."""
        reason = "by its caller" if self.error is None else describe_error(self.error)
        error = TransactionAbortedError(self.transactional_id, reason)
        error.__cause__ = self.error
        return error

    # --- life of a transaction ------------------------------------------------------------------------------------

    def initialize(self, producer_id: int, epoch: int, *, is_v2: bool) -> None:
        """Use the producer id and epoch of InitProducerId, and the transaction version of the next transaction."""
        # a broker may have fenced it while the request was under way
        if self._state is TransactionPhase.FATAL_ERROR:
            return
        self.producer_id, self.epoch, self.is_v2 = producer_id, epoch, is_v2
        self._reset()
        self._enter(TransactionPhase.READY)

    def begin(self) -> None:
        """Begin a transaction; raises as `check_ready`. No request: the coordinator begins it with the first partition or group."""
        self.check_ready()
        self._enter(TransactionPhase.IN_TRANSACTION)

    def admit(self, tp: TopicPartition) -> bool:
        """Return whether Produce may be sent to a partition now; if not, it is one of `new_partitions`."""
        if tp in self.partitions:
            return True
        if not self.may_add:
            return False
        if self.is_v2:
            # even a Produce that fails may have begun the transaction
            self.partitions.add(tp)
            self.is_started = True
            return True
        self.new_partitions[tp] = None
        self.partitions_wanted.set()
        return False

    def on_partitions_added(self, partitions: Iterable[TopicPartition]) -> None:
        """AddPartitionsToTxn succeeded. Partitions that were added before stay, also if later ones fail."""
        self.is_started = True
        self.partitions.update(partitions)
        self.new_partitions = {tp: None for tp in self.new_partitions if tp not in self.partitions}

    def on_group_added(self) -> None:
        """AddOffsetsToTxn succeeded, or TxnOffsetCommit is about to be sent (version 2)."""
        self.is_started = True

    def on_unknown_result(self) -> None:
        """A request got no answer: the coordinator may have added what it asked for (version 1)."""
        self.needs_bump |= not self.is_v2

    def begin_commit(self) -> None:
        """Accept no more records; those accepted must be acknowledged before EndTxn is sent."""
        self.check_open("commit")
        self._enter(TransactionPhase.COMMITTING)

    def begin_abort(self, *, has_gap: bool = False) -> None:
        """Accept no more records, and add no more partitions. `has_gap`: the outcome of a batch is unknown."""
        self.needs_bump |= has_gap and not self.is_v2
        self.new_partitions.clear()
        self._enter(TransactionPhase.ABORTING)

    def complete(self, *, producer: tuple[int, int] | None = None, is_v2: bool) -> None:
        """The transaction has ended: with `producer`, the next id and epoch, or under the same one.

        A change to version 2 needs a new epoch first, as in Java.
        """
        if self._state is TransactionPhase.FATAL_ERROR:
            return
        if producer is not None:
            self.producer_id, self.epoch = producer
            self.needs_bump = False  # EndTxn has made the next epoch
        self.needs_bump |= is_v2 and not self.is_v2
        self.is_v2 = is_v2
        if self.needs_bump or self.skips_end:
            self._enter(TransactionPhase.UNINITIALIZED)
        else:
            self._reset()
            self._enter(TransactionPhase.READY)

    def detach(self) -> None:
        """Leave the transaction open, with all its records acknowledged."""
        assert self._state is TransactionPhase.COMMITTING, self._state
        self._enter(TransactionPhase.DETACHED)

    def close(self) -> None:
        """Refuse all later calls."""
        self._enter(TransactionPhase.CLOSED)

    def _reset(self) -> None:
        self.error = None
        self.partitions.clear()
        self.new_partitions.clear()
        self.is_started = self.needs_bump = self.skips_end = False

    # --- failures -------------------------------------------------------------------------------------------------

    def is_fencing(self, code: int) -> bool:
        """Return whether an error code of Produce means that the producer is fenced."""
        return action_of(PRODUCE, code) is TransactionAction.FENCED

    def on_record_failed(self, error: Exception) -> None:
        """A record that was accepted is lost: the transaction can only be aborted."""
        action = action_of(PRODUCE, error.code) if isinstance(error, BrokerError) else TransactionAction.ABORT
        if not isinstance(error, AsyncGroupError):  # a partitioner's, or a bug
            wrapped = AsyncGroupError(describe_error(error))
            wrapped.__cause__ = error
            error = wrapped
        if action is TransactionAction.FATAL:
            self.fail_fatally(error)
        else:
            self.fail(error, skips_end=action is TransactionAction.REINITIALIZE)

    def fail(self, error: AsyncGroupError, *, skips_end: bool = False) -> bool:
        """The transaction can only be aborted: its other records fail at once; return whether this is its first failure.

        `skips_end`: by InitProducerId, as the coordinator would refuse EndTxn.
        """
        self.skips_end |= skips_end
        # the first failure stays; an abort fails all records as well
        if not self.may_add:
            return False
        self.needs_bump |= not self.is_v2
        self.error = error
        self.new_partitions.clear()  # AddPartitionsToTxn would add them to a transaction that is to be aborted
        self._enter(TransactionPhase.ABORTABLE_ERROR)
        fields = log_fields("transaction_failed", transactional_id=self.transactional_id, error=error)
        text = "transactional id %s: the transaction must be aborted: %s"
        _log.info(text, self.transactional_id, error, extra=fields)
        self._fail_records(self.aborted_error())
        return True

    def fail_fatally(self, error: AsyncGroupError) -> bool:
        """The producer can only be closed, and all its records fail; return whether this is its first fatal error, which stays."""
        is_first = self._state is not TransactionPhase.FATAL_ERROR
        if is_first:
            self.error = error
            self.new_partitions.clear()
            self._enter(TransactionPhase.FATAL_ERROR)
            fields = log_fields("producer_failed", transactional_id=self.transactional_id, error=error)
            text = "transactional id %s: the producer can only be closed: %s"
            _log.info(text, self.transactional_id, error, extra=fields)  # its callers get the error
        self._fail_records(error)
        return is_first
