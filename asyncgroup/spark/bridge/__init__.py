"""The bridge to Spark: `ForeachBatch` for consumer groups, `QueueForeachBatch` for work queues."""
