"""Kafka's wire protocol: bytes to typed messages and back. Starts no I/O."""
