"""Consume partitions: one task per broker, one buffer per partition, async iterators that return records.

A record's path: a `BrokerTask` sends the fetch that `FetchScheduler.plan` returns and gives the response's outcomes to
`apply`; the `TopicPartitionState` buffers whole record batches; the iterators of `PartitionConsumer` decode them, call the
interceptors and return the records.

- No reader waits for another one: each partition has its share of `buffer_bytes`. A full one is left out of the next
  fetch; one whose reader takes no record for `max_processing_time` is `stalled` until half of its share is free.
- A partition is in one `FetchState`. Failed fetches are retried without end, with growing pauses for each partition.
  Errors that the client recovers from are reported to `errors()` or logged, others are raised by the iterator once.
- Decisions are synchronous and get the time; waiting is in `fetcher`, `broker_task`, `partition_consumer`, `merged_reader`,
  `error_stream`, and in the requests of `list_offsets` and `validation`.

The modules:

- `partition` is a partition's private state, with the parts in `fetch_state`; what it asks of those that fetch it is in
  `partition_fetcher`, and marks follow it as its `position_listener`. `partition_consumer` is the public object over it, with
  `interceptors` and the streams of `error_stream`; `merged_reader` reads several as one.
- `buffer` has the records that were fetched: undecoded in a `batch_queue`, then by `decoding`. `chunk_filter` and
  `chunk_assembler` put the chunks of large values together.
- `fetch_scheduler` plans requests and applies outcomes, on the states of `partition_states` (with `retries`) and for each
  broker on `broker_partitions` (with `fetch_plan` and `fetch_session`).
- `fetch_outcome` says what a response means for each partition, `validation` what an epoch's end means (KIP-320),
  `offset_resets` where reading continues if a position is not in the log.
- `fetcher` and `broker_task` send the requests and wait; Spark's range reader has its own tasks.
- `list_offsets` looks up offsets by name or time.
- `consumer` is the public object for partitions without a group. `process_reports` calls the hooks of a partition's reader,
  `partition_warnings` logs partitions that keep failing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.consumer.consumer import Consumer, OffsetAndTimestamp
    from asyncgroup.consumer.partition_consumer import PartitionConsumer

__all__ = ["Consumer", "OffsetAndTimestamp", "PartitionConsumer"]

_NAMES = {
    "consumer": ["Consumer", "OffsetAndTimestamp"],
    "partition_consumer": ["PartitionConsumer"],
}
"""The public names of each module."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)
