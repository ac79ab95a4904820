"""Work queues on one Kafka: asyncgroup, confluent's parallel-consumer, pyrallel-consumer, prosody and FastStream."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    # imported late: the processes of other libraries import this package in environments without asyncgroup
    from benchmarks.queue.run import main as run

    return run(arguments)
