"""A group that rebalances under load: how long each partition stands still, in asyncgroup, aiokafka, confluent-kafka."""

from benchmarks.rebalance.run import main

__all__ = ["main"]
