"""Consume partitions: one fetcher per broker, one buffer per partition, async iterators that hand out records.

A record's path: `BrokerFetcher` fetches all fetchable partitions of a broker, `PartitionConsumer` buffers whole record
batches, and its iterators decode them, call the interceptors and hand the records out.

- No reader waits for another one: each partition has its share of `buffer_bytes`. A full one is left out of the next
  fetch; one whose reader takes no record for `max_processing_time` is `stalled` until half of its share is free.
- Failed fetches are retried without end, with growing pauses for each partition (`Fetchers`, `Retries`). Errors that the
  client recovers from are reported to `errors()` or logged, others are raised by the iterator once.
- `resets` decides where to begin, and where to continue if a position is not in the log.

The modules:

- `fetchers` assigns each partition to the fetcher of its leader or preferred read replica (`fetch_position`), and again
  after a pause (`retries`, `delay_queue`) or as soon as metadata names a new leader (`leader_watch`).
- `fetch_plan` and `fetch_session` make requests, `answers` handles the results of partitions.
- `validator` has positions validated by new leaders (`validation`); `resetter` looks up positions (`resets`,
  `list_offsets`).
- `buffer`, `decoding`, `aborted` and `lazy_records` make records of bytes, within the `budget`.
- `fetched_partition` is the fetcher's side of a partition, `partition_consumer` the reader's, with `batches` and
  `interceptors`; `merged_reader` and `ready_queue` read several partitions as one.
- `offset_lookups` implements the offset lookups of `consumer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.consumer.consumer import Consumer
    from asyncgroup.consumer.interceptors import Interceptor
    from asyncgroup.consumer.offset_lookups import OffsetAndTimestamp
    from asyncgroup.consumer.partition_consumer import PartitionConsumer

__all__ = ["Consumer", "Interceptor", "OffsetAndTimestamp", "PartitionConsumer"]

_HOMES = {
    "Consumer": "consumer",
    "Interceptor": "interceptors",
    "OffsetAndTimestamp": "offset_lookups",
    "PartitionConsumer": "partition_consumer",
}
"""The module of each public name."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
