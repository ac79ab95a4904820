"""The driver: plans the batches of a query, and commits the offsets of finished ones.

- `progress` is the state of a streaming query: its start (`initial_offsets`), the ends of batches (`limits`), their ranges
  and tasks (`planner`).
- The query's group: `group_committer` commits offsets, `recreated_topics` detects by them that a topic was deleted.
- `broker_lookups` makes the requests, `retry_policy` repeats them, on the event loop of a `broker_client`, which runs only
  during Spark's calls. `leader_requests` keeps a silent leader from delaying others, `unavailable_partitions` remembers what failed.
- `end_offsets`: up to where a query may read. `topic_check` asks `recreated_topics` for the topics of a checkpoint.
"""
