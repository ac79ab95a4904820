"""Recovery after faults: delay from acknowledged to handled, commit gaps, duplicates; beside aiokafka and confluent-kafka."""

from benchmarks.recovery.run import main

__all__ = ["main"]
