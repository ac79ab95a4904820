"""The bridge from a consumer group to Spark: the handler `ForeachBatch` passes records to a function as DataFrames."""
