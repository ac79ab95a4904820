"""The state of one transactional id (Kafka's `TransactionMetadata` and `TransactionState`). Pure: no timers, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from enum import Enum
from typing import Final, NamedTuple

from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["IDLE_STATES", "NO_PRODUCER", "ProducerIdAndEpoch", "TransactionMetadata", "TransactionState"]


class TransactionState(Enum):
    """The state of a transactional id.

    A transaction is prepared when its outcome is decided, and complete when every partition has the marker. Kafka's
    `Dead` (an id about to expire) and `PrepareEpochFence` (a fence being written) do not occur, as those steps are
    immediate here.
    """

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def predecessors(self) -> frozenset[TransactionState]:
        """The states from which this one may be entered."""
        return _PREDECESSORS[self]

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and some markers are not written yet."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    def __str__(self) -> str:
        return self.value


IDLE_STATES = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
"""The states in which a transactional id may expire (`TransactionState.isExpirationAllowed`)."""

_PREDECESSORS: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: IDLE_STATES,
    TransactionState.ONGOING: IDLE_STATES | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # A KIP-890 client may abort an empty transaction; its epoch is bumped as well.
    TransactionState.PREPARE_ABORT: IDLE_STATES | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
}


NO_EPOCH: Final = -1

LAST_EPOCH: Final = 2**15 - 2
"""The highest epoch that a producer gets; the next and last one is kept for fencing it."""


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and its epoch."""

    id: int = -1
    epoch: int = NO_EPOCH

    @property
    def is_exhausted(self) -> bool:
        """Whether no epoch is left, so that the producer needs a new id."""
        return self.epoch >= LAST_EPOCH

    @property
    def bumped(self) -> ProducerIdAndEpoch:
        """The same producer id with the next epoch."""
        return ProducerIdAndEpoch(self.id, self.epoch + 1)


NO_PRODUCER: Final = ProducerIdAndEpoch()


class TransactionMetadata:
    """A transactional id: its producer, and the partitions of its current transaction."""

    __slots__ = (
        "last_producer_epoch",
        "last_update_timestamp",
        "next_producer",
        "partitions",
        "previous_producer_id",
        "producer",
        "start_timestamp",
        "state",
        "timeout",
        "transactional_id",
    )

    def __init__(self, transactional_id: str, producer_id: int) -> None:
        self.transactional_id = transactional_id
        self.producer = ProducerIdAndEpoch(producer_id)
        self.last_producer_epoch = NO_EPOCH
        """The epoch before the last bump, by which a retried request is recognized (KIP-360, KIP-890); -1 after an
        InitProducerId without producer id and epoch.
        """
        self.previous_producer_id = -1
        """The producer id before the last change of ids, -1 if there was none."""
        self.timeout = 0.0
        """Seconds that a transaction may take."""
        self.start_timestamp = -1
        """When the current transaction began, in ms since 1970; -1 if none has begun yet."""
        self.last_update_timestamp = -1
        """When the transactional id was saved last, in ms since 1970."""
        self.state = TransactionState.EMPTY
        self.next_producer: ProducerIdAndEpoch | None = None
        """Replaces `producer` when the transaction completes, if its epochs are exhausted."""
        self.partitions: dict[TopicPartition, None] = {}
        """Partitions without a marker yet; a dict, as a set would not keep a reproducible order."""

    def __repr__(self) -> str:
        return (
            f"<TransactionMetadata {self.transactional_id!r} {self.state} producer {self.producer.id} "
            f"epoch {self.producer.epoch}, {len(self.partitions)} partitions>"
        )

    def transition_to(self, state: TransactionState) -> None:
        """Enter `state`. Raise RuntimeError if `TransactionState.predecessors` does not allow the transition."""
        if self.state not in state.predecessors:
            raise RuntimeError(
                f"transactional id {self.transactional_id!r}: invalid state transition from {self.state} to {state}"
            )
        self.state = state

    # -- checks ----------------------------------------------------------------------------------------------

    def check_producer(self, producer: ProducerIdAndEpoch) -> ErrorCode:
        """Return NONE if `producer` may add to the transaction now, else the error."""
        if producer.id != self.producer.id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer.epoch != self.producer.epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.state.is_prepared else ErrorCode.NONE

    def check_init(self, expected: ProducerIdAndEpoch) -> ErrorCode:
        """Return NONE if the producer may initialize, else the error.

        `expected`: the id and epoch that it had, as a recovering producer sends them (KIP-360), or `NO_PRODUCER`.
        """
        if expected != NO_PRODUCER and not self._may_continue(expected):
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.state.is_prepared else ErrorCode.NONE

    def _may_continue(self, expected: ProducerIdAndEpoch) -> bool:
        if self.producer.epoch == NO_EPOCH or expected.id == self.producer.id:
            return True
        return expected.id == self.previous_producer_id and expected.is_exhausted

    # -- changes ---------------------------------------------------------------------------------------------

    def init_producer(self, expected: ProducerIdAndEpoch, new_id: int | None, timeout: float) -> ErrorCode:
        """Initialize the producer: bump its epoch, or use `new_id` with epoch 0. A retried request changes nothing."""
        last_producer_epoch = NO_EPOCH
        if new_id is not None:
            last_producer_epoch = self.producer.epoch if expected != NO_PRODUCER else NO_EPOCH
            self._rotate_producer_id(ProducerIdAndEpoch(new_id, 0))
        elif expected == NO_PRODUCER:
            self.producer = self.producer.bumped
        elif self.producer.epoch in (NO_EPOCH, expected.epoch):
            last_producer_epoch = self.producer.epoch
            self.producer = self.producer.bumped
        elif expected.epoch == self.last_producer_epoch:
            last_producer_epoch = self.last_producer_epoch
        else:
            return ErrorCode.PRODUCER_FENCED
        self.last_producer_epoch = last_producer_epoch
        self.timeout = timeout
        self.start_timestamp = -1
        self.partitions.clear()
        self.transition_to(TransactionState.EMPTY)
        return ErrorCode.NONE

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction, which begins if it has not."""
        self.transition_to(TransactionState.ONGOING)
        self.partitions.update(dict.fromkeys(partitions))

    def fence_producer_epoch(self) -> None:
        """Bump the epoch to fence the producer; it may initialize again, unless another producer does so first."""
        self.last_producer_epoch = self.producer.epoch
        self.producer = self.producer.bumped

    def prepare(self, *, commit: bool) -> None:
        """Decide the outcome. The markers carry the producer's current epoch."""
        self.transition_to(TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT)

    def bump_epoch(self, new_id: int | None) -> None:
        """Bump the epoch at the end of a transaction (KIP-890).

        `new_id` replaces the producer id if no epoch is left.
        """
        self.last_producer_epoch = self.producer.epoch
        self.producer = self.producer.bumped
        self.next_producer = None if new_id is None else ProducerIdAndEpoch(new_id, 0)

    def complete(self) -> None:
        """Complete the transaction, when every partition has the marker."""
        committed = self.state is TransactionState.PREPARE_COMMIT
        self.transition_to(TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT)
        self.partitions.clear()
        if self.next_producer is not None:
            self._rotate_producer_id(self.next_producer)
            self.next_producer = None

    def _rotate_producer_id(self, producer: ProducerIdAndEpoch) -> None:
        self.previous_producer_id = self.producer.id
        self.producer = producer

    # -- copies ---------------------------------------------------------------------------------------------

    def copy(self) -> TransactionMetadata:
        """Return a copy of the current state."""
        copied = copy(self)
        copied.partitions = dict(self.partitions)
        return copied

    def restore_from(self, other: TransactionMetadata) -> None:
        """Take over the state of `other`."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))
