"""The cases (how slow the other partition is) and the clients of the `neighbours` benchmark."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["CASES", "CLIENTS", "Case", "Client"]


class Case(NamedTuple):
    """A slow handler: it pauses `pause` seconds after every `every` records. Ratios are to the case `baseline`."""

    name: str
    title: str
    every: int
    pause: float
    baseline: str | None = None
    large_fetches: bool = False

    @property
    def is_batch(self) -> bool:
        """Whether the measured partition is the slow one, read in batches of `every` records."""
        return self.every > 1

    @property
    def nominal(self) -> float:
        """Records per second that the slow handler would process if it never waited for records; 0 if it reads none."""
        return self.every / self.pause if self.pause else 0.0


CASES: Final = {
    case.name: case
    for case in (
        Case("alone", "fast partition alone", 0, 0.0),
        Case("20ms", "beside 20 ms a record", 1, 0.02, "alone"),
        Case("2ms", "beside 2 ms a record", 1, 0.002, "alone"),
        Case("150ms", "beside 150 ms a record", 1, 0.15, "alone"),
        Case("never", "beside one that is never read", 0, 0.0, "alone"),
        Case("batch-alone", "300 ms per 5,000 records, alone", 5000, 0.3, None, True),
        Case(
            "batch-idle", "300 ms per 5,000 records, beside idle partitions", 5000, 0.3, "batch-alone", True
        ),
    )
}
"""Cases by name, in the order in which they are measured: a baseline comes before the cases compared to it."""


class Client(NamedTuple):
    """A client: its distribution, for the version, and its function for `benchmarks.worker`; sarama has neither."""

    name: str
    distribution: str | None
    function: str


CLIENTS: Final = {
    client.name: client
    for client in (
        Client("asyncgroup", "asyncgroup", "benchmarks.neighbours.asyncgroup_client:run"),
        Client("aiokafka", "aiokafka", "benchmarks.neighbours.aiokafka_client:run"),
        Client("confluent-kafka", "confluent-kafka", "benchmarks.neighbours.confluent:run"),
        Client("sarama", None, ""),
    )
}
