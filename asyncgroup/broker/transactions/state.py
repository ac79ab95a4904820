"""The states of a transaction (Kafka's `TransactionState`)."""

from __future__ import annotations

from enum import Enum

__all__ = ["IDLE_STATES", "TransactionState"]


class TransactionState(Enum):
    """Where a transactional id stands.

    A transaction is prepared when its outcome is settled, and complete when every partition has the marker. Kafka's
    `Dead` (an id about to expire) and `PrepareEpochFence` (a fence being written) do not occur: every step is done at
    once.
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
        """Whether the outcome is settled and markers are still being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    def __str__(self) -> str:
        return self.value


IDLE_STATES = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
"""Those in which a transactional id may be forgotten (`TransactionState.isExpirationAllowed`)."""

_PREDECESSORS: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: IDLE_STATES,
    TransactionState.ONGOING: IDLE_STATES | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # A client of KIP-890 may abort before anything was added: its epoch goes up all the same.
    TransactionState.PREPARE_ABORT: IDLE_STATES | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
}
