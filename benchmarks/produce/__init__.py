"""Writing to a topic: asyncgroup, aiokafka, confluent-kafka, kafka-python, sarama and franz-go."""

from benchmarks.produce.run import main

__all__ = ["main"]
