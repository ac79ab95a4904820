"""What Prometheus and OpenTelemetry cost: reading in batches and one by one, with and without their hooks."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures."""
    # imported late: only this benchmark needs OpenTelemetry's SDK
    from benchmarks.telemetry.run import main as run

    return run(arguments)
