"""Reading partitions: one fetcher task a broker, one buffer a partition, iterators that hand out records.

The way of a record: `BrokerFetcher` partitions a broker for all partitions that want more, `PartitionConsumer` holds what
comes as whole batches, its iterators decode them, pass them through the interceptors and hand them out.

- No reader waits for another one: each has its share of `buffer_bytes`, a full one is left out of the next fetch, and
  one whose reader takes nothing for `max_processing_time` (`stalled`) until half of its share is free.
- What fails is tried again for ever with growing pauses, each partition by itself (`Fetchers`, `Retries`). What heals is
  told to `errors()` or the log, what does not is raised by the iterator once.
- Where to begin, and where to go on when the log does not hold a position, is decided in `resets`.

Where to look: `fetchers` brings each partition to the fetcher of its leader (`fetch_position`: or of a nearer replica), and
back after a pause (`retries`, `waiting`) or as soon as metadata names a new leader (`leader_watch`). `fetch_plan` and `fetch_session` say what to ask, `answers` what an answer means;
`validator` has new leaders confirm positions (`validation`), `resetter` finds others (`resets`, `list_offsets`). From bytes
to records: `buffer`, `decoding`, `aborted` and `taken`, within the `budget`. A partition is `fetched_partition` to its fetcher and
`partition_consumer` to its readers, with `batches` and `interceptors`; `merged_reader` and `turns` make one reader of
several. `offset_lookups` answers what users ask about offsets.
"""

from asyncgroup.consumer.consumer import Consumer
from asyncgroup.consumer.interceptors import Interceptor
from asyncgroup.consumer.offset_lookups import OffsetAndTimestamp
from asyncgroup.consumer.partition_consumer import PartitionConsumer

__all__ = ["Consumer", "Interceptor", "OffsetAndTimestamp", "PartitionConsumer"]
