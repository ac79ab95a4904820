"""The states of a transaction (Kafka's `TransactionState`)."""

from __future__ import annotations

from enum import Enum

__all__ = ["IDLE_STATES", "TransactionState"]


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
