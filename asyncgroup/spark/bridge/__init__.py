"""The bridge to Spark: records go to a function as DataFrames, of a consumer group by `ForeachBatch`, of a work queue by
`QueueForeachBatch`."""
