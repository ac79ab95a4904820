"""ConsumerEpoch: distinguishes entries that were pushed before a redelivery of everything from later ones. Pure state.

In Exclusive and Failover subscriptions a redelivery is of all that is not acknowledged, in order. Entries that the broker pushed
before it has processed the request would be delivered out of order: they have an older epoch, and are dropped on arrival and,
since the request may be sent while they are queued, when they would be delivered.
"""

from __future__ import annotations

__all__ = ["ConsumerEpoch"]


class ConsumerEpoch:
    """The epoch of one consumer: the number of its redeliveries of everything."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = 0

    def __repr__(self) -> str:
        return f"<ConsumerEpoch {self.current}>"

    def advance(self) -> int:
        """Everything is to be delivered again; return the epoch for the command."""
        self.current += 1
        return self.current

    def is_old(self, epoch: int | None) -> bool:
        """Whether an entry was pushed before the last redelivery of everything; an entry without an epoch was not."""
        return epoch is not None and epoch < self.current
