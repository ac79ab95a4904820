"""Time from sending a record to handling it at a given rate, and the consumer's CPU time for each record."""

from benchmarks.latency.run import main

__all__ = ["main"]
