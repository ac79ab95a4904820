"""The log of a partition: batches in segments, in memory or in files; producers, leader epochs, compaction.

- `partition_log` is the log. An append passes `batch_validator`, `producer_state` and `leader_epochs`, and is found by `batch_index`;
  `record_reader` reads records, `control_batches` writes the markers of transactions.
- `segments`: the batches, in memory (`memory_chunks`) or in files (`file_segments`, over `open_files`); `recovery` reads these after
  a restart.
- Compaction: `segment_cleaner` chooses segments, `compaction` the records that stay, `compacted_batches` rewrites their batches.
- `topic_configs`, with the table `topic_config_keys`; `config_values` has the types of values, also for brokers and groups.
- `fetch_sessions`: what the fetch session of a client was sent of these logs (KIP-227).
"""
