"""The executors: Python workers that fetch ranges of offsets and return them as Arrow batches.

`workers` and `worker_cluster` keep the event loop and connections between tasks. `range_reader` reads the ranges of a task,
each of which is a `range_progress`: `range_fetch` makes requests, `range_answers`, `range_ends` and `range_loss` process
responses.
"""
