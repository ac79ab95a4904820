"""The producer: batches by partition, retries in order, Java's partitioner."""

from asyncgroup.producer.producer import Producer

__all__ = ["Producer"]
