"""Groups and offsets, written to `__consumer_offsets` and read from memory.

- `offset_store`: the writes, in order, until they are replicated.
- `loaded_partition`, `replayed`: the content of a partition in memory.
- `coordinator_records`: encodes and decodes the records.
- `offsets_topic`: the logs of the topic; what groups see of the cluster's topics.
"""
