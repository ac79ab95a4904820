"""SendingLoad: batches linger longer while sending takes most of the event loop's time.

A batch costs client and broker the same, however few records it has. With 1,000 partitions or topics and few records for each,
all of the loop's time can go into batches of one record: the callers, who add a tenth of that for each record, get so little of it
that no batch receives a second one within `linger`. Brokers that are busy have the same effect on other clients; librdkafka's
`queue.buffering.backpressure.threshold` is its answer. Here sending gets at most half of the time, as far as batches can wait.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_DELAY", "SendingLoad"]

MAX_DELAY: Final = 0.25
"""Seconds that a batch lingers at most because of the load."""


class SendingLoad:
    """The time that sending has taken and the event loop has not had for others yet. State without I/O.

    It is at most `most` seconds.
    """

    def __init__(self, most: float = MAX_DELAY) -> None:
        self._most = most
        self._owed = 0.0  # seconds, at loop time `_at`
        self._at = 0.0

    def __repr__(self) -> str:
        return f"<SendingLoad: {self._owed * 1000:.1f} ms owed>"

    def add(self, began: float, ended: float) -> None:
        """Sending had the event loop between two loop times."""
        self._owed = min(self.owed(began) + ended - began, self._most)
        self._at = ended

    def owed(self, now: float) -> float:
        """Return the seconds for which open batches should wait: others have the event loop then."""
        return max(self._owed - (now - self._at), 0.0)
