"""Clients of Apache Pulsar on one broker: asyncgroup, pulsar-client (C++) with and without asyncio, and Java's."""

from benchmarks.pulsar.run import main

__all__ = ["main"]
