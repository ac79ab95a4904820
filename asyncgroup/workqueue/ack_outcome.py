"""AckOutcome: the result of an acknowledgement."""

from __future__ import annotations

from enum import Enum

__all__ = ["AckOutcome"]


class AckOutcome(Enum):
    """The result of an acknowledgement; true if the record is acknowledged."""

    ACKED = "acknowledged: the next grouped commit contains it"
    COMMITTED = "acknowledged and committed"
    EXPIRED = (
        "too late: the ack timeout has passed, or an earlier record was nacked in order: delivered again"
    )
    LOST = "too late: the partition was revoked, its log changed, or the queue was closed; the record is delivered again"

    def __bool__(self) -> bool:
        return self in (AckOutcome.ACKED, AckOutcome.COMMITTED)
