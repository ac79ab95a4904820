"""A rebalance under load: the gaps of each partition with asyncgroup, aiokafka and confluent-kafka."""

from benchmarks.rebalance.run import main

__all__ = ["main"]
