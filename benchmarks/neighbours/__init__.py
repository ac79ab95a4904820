"""A fast and a slow partition on the same broker, read by asyncgroup, aiokafka, confluent-kafka and sarama."""

from benchmarks.neighbours.run import main

__all__ = ["main"]
