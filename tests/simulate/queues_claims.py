"""Claims of work queues and their deliveries, as the oracle knows them. Pure state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from asyncgroup import Session, TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.workqueue import Delivery, DeliveryState
from tests.simulate.oracle import ClaimLog

__all__ = ["QueueClaim", "Visit"]


@dataclass(slots=True, eq=False)
class Visit:
    """One delivery at its handler."""

    delivery: Delivery
    claim: QueueClaim
    key: bytes | None
    """The key within which records are in order; None if it has none."""

    @property
    def offset(self) -> int:
        """The record's offset."""
        return self.delivery.record.offset

    def __str__(self) -> str:
        return f"{self.claim.tp}@{self.offset} attempt {self.delivery.attempt} at {self.claim.member}"


@dataclass(slots=True, eq=False)
class QueueClaim:
    """One partition of a queue, from its assignment to its end."""

    log: ClaimLog
    session: Session
    restored: AckWindow
    """What the group had committed when the claim began."""
    was_open: bool
    """Whether the commit says that its claim had not ended in order: deliveries are counted in advance then."""
    is_exact: bool
    """Whether `restored` is known by the coordinator's commits, and not only by the client."""
    began: float
    acked: set[int] = field(default_factory=set)
    failures: Counter[int] = field(default_factory=Counter)
    last: dict[int, Visit] = field(default_factory=dict)
    """The last visit of each record."""
    due: dict[int, float] = field(default_factory=dict)
    """When records are delivered again after a nack, in loop time."""
    revoked_at: float | None = None
    is_dead: bool = False
    """Whether its process has crashed."""
    is_given_up: bool = False
    """Whether a handler of its member ignores its cancellation and still runs."""
    has_failed_commit: bool = False
    is_settled: bool = False
    """Whether its last commit is done: it was revoked in order, or its session has ended so."""

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.log.tp

    @property
    def member(self) -> str:
        """The name of the member."""
        return self.log.member

    @property
    def ended_in_order(self) -> bool:
        """Whether its last commit must have had all."""
        return (
            self.is_settled
            and bool(self.last)
            and not (self.is_dead or self.is_given_up or self.has_failed_commit)
        )

    def attempts(self, offset: int) -> int:
        """Return how many deliveries of a record have failed."""
        last = self.last.get(offset)
        expired = last is not None and last.delivery.state is DeliveryState.EXPIRED
        return self.restored.attempts.get(offset, 0) + self.failures[offset] + expired

    def has_done(self, offset: int) -> bool:
        """Whether the record is acknowledged, as far as the claim knows."""
        return offset in self.acked or offset in self.restored
