"""Groups with the consumer protocol (KIP-848), as Kafka's package `coordinator.group.modern`. They do no I/O.

- `member`, `group`: a member and a group as immutable values; `topics` is what they see of the cluster's topics.
- `reconciliation`: brings a member's current assignment to its target; `range_assignor`, `uniform_assignor` compute targets.
- `heartbeat`: answers one ConsumerGroupHeartbeat: a group and a request give the next group and a response.
- `coordinator`: holds the groups of a node, with their timers and their records in `__consumer_offsets` (`records`).
"""
