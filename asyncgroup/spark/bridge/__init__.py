"""The bridge to Spark: `ForeachBatch` for consumer groups, `QueueForeachBatch` for work queues.

- `foreach_batch` passes the records of a group: a `session_bridge` for each session takes them from its claims into a `record_queue`, and
  runs `batches`, from the call of the function (`jobs`) to its `commits`.
- `queue_foreach_batch` passes the deliveries of a work queue, each batch a `queue_batch` with its `queue_rows`; `failed_rows` are those that
  failed.
- Both: `arguments`, `frames` (DataFrames), `statistics`.
"""
