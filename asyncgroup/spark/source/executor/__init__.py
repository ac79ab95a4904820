"""The executors: Python workers that fetch ranges of offsets and return them as Arrow batches.

`workers` and `worker_cluster` keep the event loop and connections between tasks. `range_reader` reads the ranges of a task:
`range_fetcher` sends what the consumer's fetch scheduler plans, a `range_progress` is a partition's state with an end, with
`range_times` for its patience; `range_ends` and `range_loss` find and report what is missing.
"""
