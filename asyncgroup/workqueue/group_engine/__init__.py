"""The engine of a work queue on a consumer group.

- `source`: GroupSource, and what follows from the settings for the group, its producer and the topics of copies (`topic_names`).
- `engine` owns the group, the producer of copies and the tasks. `queue_handler` is the group's handler: each claim is a
  `claim_feed`, which gives records to the queue while it has capacity, and ends with the claim.
- Acknowledgements: `claim_window` has the acknowledged offsets, which are in the metadata of the claim's commits, and says
  when to commit; `claim_guard` and `crash_counts` let records begin one by one, if the window is full or after a crash.
- Copies: a `copy_writer` writes them one by one, or with the acknowledgements of the originals in transactions
  (`copy_transactions`; `copy_queue`: which the next one takes; `copy_batch`: the copies of one; `window_transaction`). The topics:
  `copy_topic_creation`, `retry_topics` (cleanup, retention, whether other groups use it).
- Modes with an order: `exclusive_group`, `failover_assignor`. `idle_member`: a member without partitions.
- `seeking`: the targets of `WorkQueue.seek`.
"""
