"""What is known of one transactional id (Kafka's `TransactionMetadata`); pure state."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Final, NamedTuple

from asyncgroup.broker.transactions.state import TransactionState
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["NO_PRODUCER", "ProducerIdAndEpoch", "TransactionMetadata"]

NO_EPOCH: Final = -1

LAST_EPOCH: Final = 2**15 - 2
"""The highest epoch that a producer gets; one more is left, to fence it with."""


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and its epoch: who writes, and in which of its lives."""

    id: int = -1
    epoch: int = NO_EPOCH

    @property
    def is_exhausted(self) -> bool:
        """Whether no epoch is left, so that the next life needs another id."""
        return self.epoch >= LAST_EPOCH

    @property
    def bumped(self) -> ProducerIdAndEpoch:
        """The same producer an epoch later."""
        return ProducerIdAndEpoch(self.id, self.epoch + 1)


NO_PRODUCER: Final = ProducerIdAndEpoch()


class TransactionMetadata:
    """A transactional id: its producer, and the partitions of the transaction at hand.

    `last_producer_epoch` is the epoch before the last bump, so that a repeated request is known as one (KIP-360, KIP-890), -1
    after the start of a producer that did not say who it was; `previous_producer_id` the producer id before the current one.
    `timeout` is in seconds, `start_timestamp` says when the transaction at hand began (ms since 1970, -1: none did yet),
    `last_update_timestamp` when anything last changed. `next_producer` takes over when the markers are written, if the producer's epochs are used up.
    """

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
        self.previous_producer_id = -1
        self.timeout = 0.0
        self.start_timestamp = -1
        self.last_update_timestamp = -1
        self.state = TransactionState.EMPTY
        self.next_producer: ProducerIdAndEpoch | None = None
        self.partitions: dict[TopicPartition, None] = {}  # ordered, so that a run can be replayed

    def __repr__(self) -> str:
        return (
            f"<TransactionMetadata {self.transactional_id!r} {self.state} producer {self.producer.id} "
            f"epoch {self.producer.epoch}, {len(self.partitions)} partitions>"
        )

    def transition_to(self, state: TransactionState) -> None:
        """Enter `state`; a transition that `TransactionState.predecessors` does not allow is a bug and raises."""
        if self.state not in state.predecessors:
            raise RuntimeError(f"{self.transactional_id!r} may not go from {self.state} to {state}")
        self.state = state

    # -- checks ----------------------------------------------------------------------------------------------

    def check_producer(self, producer: ProducerIdAndEpoch) -> ErrorCode:
        """Whether `producer` may add to the transaction now."""
        if producer.id != self.producer.id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer.epoch != self.producer.epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.state.is_prepared else ErrorCode.NONE

    def check_init(self, expected: ProducerIdAndEpoch) -> ErrorCode:
        """Whether a producer that says who it was (`NO_PRODUCER`: nobody) may begin a new life (KIP-360)."""
        if expected != NO_PRODUCER and not self._may_continue(expected):
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.state.is_prepared else ErrorCode.NONE

    def _may_continue(self, expected: ProducerIdAndEpoch) -> bool:
        if self.producer.epoch == NO_EPOCH or expected.id == self.producer.id:
            return True
        return expected.id == self.previous_producer_id and expected.is_exhausted

    # -- changing --------------------------------------------------------------------------------------------

    def init_producer(self, expected: ProducerIdAndEpoch, new_id: int | None, timeout: float) -> ErrorCode:
        """A producer starts: epoch + 1, or `new_id` with epoch 0. A repeated request changes nothing."""
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
        self.last_producer_epoch, self.timeout, self.start_timestamp = last_producer_epoch, timeout, -1
        self.partitions.clear()
        self.transition_to(TransactionState.EMPTY)
        return ErrorCode.NONE

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Let the transaction begin, if it has not, and hold these partitions as well."""
        self.transition_to(TransactionState.ONGOING)
        self.partitions.update(dict.fromkeys(partitions))

    def fence_producer_epoch(self) -> None:
        """The epoch goes up behind the producer's back; it may take over again, unless another one comes first."""
        self.last_producer_epoch, self.producer = self.producer.epoch, self.producer.bumped

    def prepare(self, *, commit: bool) -> None:
        """The outcome is settled; markers carry the producer's epoch of now."""
        self.transition_to(TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT)

    def bump_epoch(self, new_id: int | None) -> None:
        """The epoch goes up with the end of each transaction (KIP-890); `new_id` takes over if that was the last."""
        self.last_producer_epoch, self.producer = self.producer.epoch, self.producer.bumped
        self.next_producer = None if new_id is None else ProducerIdAndEpoch(new_id, 0)

    def complete(self) -> None:
        """Every partition has the marker."""
        committed = self.state is TransactionState.PREPARE_COMMIT
        self.transition_to(TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT)
        self.partitions.clear()
        if self.next_producer is not None:
            self._rotate_producer_id(self.next_producer)
            self.next_producer = None

    def _rotate_producer_id(self, producer: ProducerIdAndEpoch) -> None:
        self.previous_producer_id, self.producer = self.producer.id, producer

    # -- as it was -------------------------------------------------------------------------------------------

    def copy(self) -> TransactionMetadata:
        """The transactional id as it is now."""
        copied = copy(self)
        copied.partitions = dict(self.partitions)
        return copied

    def restore_from(self, other: TransactionMetadata) -> None:
        """Be as `other` is."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))
