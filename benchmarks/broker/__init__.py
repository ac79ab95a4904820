"""The embedded broker, librdkafka's mock cluster and kfake: throughput, large groups, idle groups, start time."""

from benchmarks.broker.run import main

__all__ = ["main"]
