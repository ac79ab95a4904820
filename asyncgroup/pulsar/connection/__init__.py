"""Connections to Pulsar's brokers.

- `connecting` opens a `connection`, which has its `requests`, `credentials`, `keep_alive` and `send_buffer`.
- `reports`: the events of a connection and its requests for hooks.
- `listeners`: what it calls of producers and consumers, which are `registered`.
- `pool`: the connections of a client. `lookup`: which broker has a topic. `cluster_lookups`: in which cluster, when topics move.
"""
