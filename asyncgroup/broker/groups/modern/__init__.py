"""Groups with the consumer protocol (KIP-848), as Kafka's package `coordinator.group.modern`. They do no I/O.

- `member`, `group`: a member and a group as immutable values; `topics` is what they see of the cluster's topics.
- `reconciliation`: brings a member's current assignment to its target; `range_assignor`, `uniform_assignor` compute targets
  from what is in `assignors`.
- `heartbeat`: answers one ConsumerGroupHeartbeat: a group and a request give the next group and a response.
- `coordinator`: holds the groups of a node, with their timers (`member_timers`) and their records in `__consumer_offsets`
  (`records`); `regexes` are the subscriptions by pattern.
- `classic_members`, `classic_requests`, `conversion`: members with the classic protocol, and live groups that change theirs.
- `requests`, `checks`, `interfaces`: arguments and results, their validation, what the coordinators of both kinds of groups
  do for each other.
"""
