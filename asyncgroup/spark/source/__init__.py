"""The source `asyncgroup`: Spark plans ranges of offsets, its executors fetch them themselves.

- What a user asks for: `options` (names in `option_names`; `kafka_options`, `offset_options`, `patterns`, `values`) become
  `settings`; offsets are written as in `offsets_json`, errors as in `errors` (their sentences: `conditions`).
- The driver's half: `stream_reader` and `batch_reader` are what Spark calls. `progress` is the state of a stream, from the
  start (`initial_offsets`) through the ends of batches (`limits`, `log_sizes`) to their ranges (`planner`, `splitting`);
  `commits` (`group_members`) tells the group. All of that asks the brokers by `broker_lookups`, with `patience`, on the
  event loop of a `broker_client` (which stands still between Spark's calls, as those of workers do: `standing`).
- The executors' half: `workers` keeps connections for `range_reader`, whose state is in `range_progress`; `range_fetch` is
  what is asked, `range_answers`, `range_ends` and `range_loss` what comes of it.

Driver and executors share nothing but pickled settings and ranges.
"""
