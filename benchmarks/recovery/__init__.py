"""Recovery after faults: delivery delay, commit gaps and duplicates of asyncgroup, aiokafka and confluent-kafka."""

from benchmarks.recovery.run import main

__all__ = ["main"]
