"""A handler that is stuck under a backlog: how much memory asyncgroup, aiokafka and confluent-kafka hold."""

from benchmarks.memory.run import main

__all__ = ["main"]
