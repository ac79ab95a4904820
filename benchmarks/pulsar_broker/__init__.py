"""The embedded Pulsar beside an Apache Pulsar: one consumer, and a crowd of consumers, subscriptions and connections."""

from benchmarks.pulsar_broker.run import main

__all__ = ["main"]
