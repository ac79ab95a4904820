"""Connections to Pulsar's brokers: what is sent and received on one, the pool of them, and lookups of topics."""
