"""The data source `format("asyncgroup")`: the driver plans ranges of offsets, executors fetch them from the brokers.

- Options: `options` (names in `option_names`; `kafka_options`, `offset_options`, `patterns`, `values`) parses them into
  `settings`. `offsets_json` is Spark's JSON of offsets; `errors` has the error classes, `conditions` their texts.
- Driver: Spark calls `stream_reader` and `batch_reader`. `progress` is the state of a streaming query: its start
  (`initial_offsets`), the ends of batches (`limits`, `log_sampler`), their ranges and tasks (`planner`, `splitting`), and
  the group's offsets (`group_committer`, `group_members`, `recreated_topics`). Broker requests are made by
  `broker_lookups`, retried by `retry_policy`, on the event loop of a `broker_client`, which runs only during Spark's calls
  (`idle_loop`).
- Executors: `workers` and `worker_cluster` keep connections for `range_reader`, whose state is `range_progress`;
  `range_fetch` makes requests, `range_answers`, `range_ends` and `range_loss` process responses.

Driver and executors share only pickled settings and ranges.
"""
