"""From a call of `send` to a batch: wait for memory, split large values, look topics up, choose a partition.

- `writer` measures and appends a record. `send_steps` adds interceptors, hooks of each record, limits for each partition and
  sequence ids; `chunks` splits large values. All wait for `PendingLimits` (`asyncgroup.memory`): the producer's own, and a
  `MemoryBudget` that producers share.
- `router` looks topics up, and the `route` of a topic chooses a partition by the rules of `producer.partitioners`.
- `pipeline` holds all that follows: the router, the batches, the sender and their results.
"""
