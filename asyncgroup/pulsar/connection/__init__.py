"""Connections to Pulsar's brokers.

- `connecting` opens a `connection`, which has its `requests` and `credentials` and calls its `listeners`.
- `pool`: the connections of a client. `lookup`: which broker has a topic.
"""
