"""Counts of a work queue since it was opened."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QueueCounts"]


@dataclass(slots=True)
class QueueCounts:
    """What has happened since the queue was opened."""

    delivered: int = 0
    """Deliveries that were handed out, repeated ones included."""
    acked: int = 0
    """Records that were acknowledged."""
    nacked: int = 0
    """Deliveries that were nacked, or whose handler raised."""
    expired: int = 0
    """Deliveries whose ack timeout has passed."""
    reconsumed: int = 0
    """Records that were copied to a retry topic."""
    dead_lettered: int = 0
    """Records that were copied to a dead letter topic."""
