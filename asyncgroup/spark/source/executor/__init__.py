"""The executors: Python workers that fetch ranges of offsets and return them as Arrow batches.

`workers` and `worker_cluster` keep the event loop and connections between tasks. `range_reader` reads the ranges of a task:
`range_fetcher` sends what the consumer's fetch scheduler plans and returns what happened, a `range_progress` is a partition's
state with an end, whose `poll_timer` knows how long and why no records have come. `range_columns` reads buffers by
column. Calls go down only, values come up.
"""
