"""The embedded broker beside librdkafka's mock cluster and kfake: rates that clients see, large groups, idle ones, start."""

from benchmarks.broker.run import main

__all__ = ["main"]
