"""Memory use of asyncgroup, aiokafka and confluent-kafka with a stuck handler and a large backlog."""

from benchmarks.memory.run import main

__all__ = ["main"]
