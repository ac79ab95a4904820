"""Groups with the consumer protocol (KIP-848), as Kafka's package `coordinator.group.modern`. They do no I/O.

- `consumer_group_member`, `modern_group`: a member and a group as immutable values; `topics` is what they see of the
  cluster's topics.
- `reconciliation`: brings a member's current assignment to its target; `range_assignor`, `uniform_assignor` compute targets
  from what is in `assignors`.
- `heartbeat`: answers one ConsumerGroupHeartbeat: a group and a request give the next group and a response;
  `heartbeat_messages` are the arguments and results, `consumer_checks` their validation.
- `consumer_groups`: holds the groups of a node, with their timers (`member_timers`) and their records in `__consumer_offsets`
  (`consumer_group_records`); `regexes` are the subscriptions by pattern.
- `classic_members`, `classic_requests`, `embedded_protocol`: members with the classic protocol in such a group.
- `protocol_change`: what the coordinators of both kinds of groups do for each other when a live group changes its protocol.
"""
