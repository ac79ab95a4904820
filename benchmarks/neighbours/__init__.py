"""A fast partition beside a slow one on the same broker: asyncgroup, aiokafka, confluent-kafka, sarama."""

from benchmarks.neighbours.run import main

__all__ = ["main"]
