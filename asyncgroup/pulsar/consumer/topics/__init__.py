"""The topics and partitions of a consumer.

- `consumed_topics`: named topics, with partitions that are added to them. `topic_discovery`: those of a pattern, which
  `topic_list_watcher` is notified of.
- `consumer_partitions`: a consumer for each partition. `partition_turns`: those of them that have messages;
  `partition_calls`: calls of all at once.
"""
