"""The data source `format("asyncgroup")`: the driver plans ranges of offsets, executors fetch them from the brokers.

Spark calls the `readers`. Three rooms:

- `options`: what a user can set, parsed into `options.settings`.
- `driver`: the state of a query, its broker requests, the plan of its batches, the commits to its group.
- `executor`: the reading of ranges in Python workers.

Driver and executors do not know each other: they share pickled settings and ranges, and `errors`.
"""
