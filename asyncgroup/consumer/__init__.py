"""Reading partitions: one fetcher task a broker, one buffer a partition, iterators that hand out records."""

from asyncgroup.consumer.consumer import Consumer
from asyncgroup.consumer.partition_consumer import PartitionConsumer

__all__ = ["Consumer", "PartitionConsumer"]
