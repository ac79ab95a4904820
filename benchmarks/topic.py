"""The topic that clients read: created, loaded once, and removed at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import uuid4

from asyncgroup import BrokerError, Cluster, Consumer, TopicPartition
from asyncgroup.errors import OffsetLookupError
from asyncgroup.offsets import OffsetManager
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import BatchBuilder

__all__ = ["Topic"]

BATCH_BYTES: Final = 64 << 10
"""Bytes of a record batch: between Java's default and the batches of a busy producer."""
STEP: Final = 8
"""Batches between two steps of the progress bar."""
SMALL_STEP: Final = 64
"""The same of small batches, which are sent without waiting for each."""
LOADERS: Final = 16
"""Partitions that are loaded at a time, each over a connection."""
RETRIES: Final = 20
LEADERS_LIMIT: Final = 60.0
"""Seconds for all partitions of a new topic to get their leaders."""
BY_NAME: Final = 12
"""The last Produce version that names a topic instead of giving its id."""
HEADER_BYTES: Final = 8
"""Bytes of a header's value."""
FIRST_TIMESTAMP: Final = 1_700_000_000_000
"""The timestamp of the first record of each partition, in ms."""


class Topic:
    """A topic with `records` records, spread evenly over `partitions`; values have `size` bytes, keys eight.

    If it is `skewed`, the first partition has half of all records. `topics` are so many topics with `partitions` each; they
    are created and removed together, and only the first of them is loaded.

    With `largest` the size of a value is random, from `size` to `largest` bytes. A record batch has at most
    `batch_records` records and `batch_bytes` bytes. With a `codec` values compress to about half of their size. Each record
    has `headers` headers of eight bytes.
    """

    def __init__(
        self,
        cluster: Cluster,
        partitions: int,
        records: int,
        size: int,
        *,
        largest: int | None = None,
        batch_records: int | None = None,
        batch_bytes: int = BATCH_BYTES,
        codec: str = "none",
        headers: int = 0,
        skewed: bool = False,
        topics: int = 1,
    ) -> None:
        self._cluster = cluster
        self.name = f"benchmark-{uuid4().hex[:12]}"
        self.names = [self.name, *(f"{self.name}-{number}" for number in range(1, topics))]
        self.partitions = partitions
        self.size = size
        self._largest = largest or size
        self._batch_records = batch_records
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._headers = headers
        is_skewed = skewed and partitions > 1
        self.hot = records // 2 if is_skewed else 0
        """Records of the first partition if it has more than the others."""
        self._share = -(-(records - self.hot) // (partitions - is_skewed))
        self._exists = False

    @property
    def records(self) -> int:
        """The number of records, rounded up to the same number in each partition, or in each but the first one."""
        return sum(map(self._share_of, range(self.partitions)))

    @property
    def tps(self) -> list[TopicPartition]:
        """The partitions of all topics."""
        return [TopicPartition(name, number) for name in self.names for number in range(self.partitions)]

    def _share_of(self, partition: int) -> int:
        return self.hot if self.hot and not partition else self._share

    async def create(self) -> None:
        """Create the topic, empty."""
        # the timestamps are constant, and by now older than the default retention time
        keep = m.CreateTopicsRequest.CreatableTopicConfig("retention.ms", "-1")
        creatable = m.CreateTopicsRequest.CreatableTopic
        topics = [creatable(name, self.partitions, -1, configs=[keep]) for name in self.names]
        request = m.CreateTopicsRequest(topics=topics)
        response = await self._cluster.request_any(m.CreateTopicsRequest, lambda _: request)
        for topic in response.topics:
            _check(topic.error_code, f"topic {topic.name}")
        self._exists = True
        self._cluster.track(self.names)

    async def wait_for_leaders(self) -> None:
        """Wait until each partition answers: of 1,000 new ones a broker has the last after some seconds."""
        partitions = self.tps
        async with asyncio.timeout(LEADERS_LIMIT), Consumer(self._cluster) as consumer:
            while True:
                try:
                    await consumer.end_offsets(partitions)
                except OffsetLookupError:
                    await asyncio.sleep(0.2)
                else:
                    return

    async def load(self, advance: Callable[[int], object]) -> None:
        """Create the topic and write its records; `advance(n)` is called after every n records."""
        await self.create()
        await self.wait_for_leaders()
        loaders = (self._load_partitions(first, advance) for first in range(min(LOADERS, self.partitions)))
        await asyncio.gather(*loaders)

    async def _load_partitions(self, first: int, advance: Callable[[int], object]) -> None:
        for number in range(first, self.partitions, LOADERS):
            await self._load_partition(number, advance)

    async def _load_partition(self, number: int, advance: Callable[[int], object]) -> None:
        rng, share = random.Random(number), self._share_of(number)
        written = 0
        while written < share:
            before, batches = written, list[bytes]()
            while written < share and len(batches) < (STEP if self._batch_records is None else SMALL_STEP):
                data, written = self._batch(rng, written, share)
                batches.append(data)
            if self._batch_records is None:
                for data in batches:
                    await self._produce(number, data)
            else:
                await asyncio.gather(*(self._produce(number, data) for data in batches))
            advance(written - before)

    def _batch(self, rng: random.Random, start: int, share: int) -> tuple[bytes, int]:
        """Return the record batch that begins with record `start` of `share` in a partition, and the next record's number."""
        builder = BatchBuilder(self._codec, size_limit=self._batch_bytes)
        number = start
        end = min(share, start + (self._batch_records or share))
        while number < end:
            value = rng.randbytes(self.size if self._largest == self.size else self._random_size(rng))
            if self._codec != "none":
                value = value[: len(value) // 2] + bytes(len(value) - len(value) // 2)
            headers = [(f"header-{name}", rng.randbytes(HEADER_BYTES)) for name in range(self._headers)]
            if not builder.append(FIRST_TIMESTAMP + number, b"%08d" % number, value, headers):
                break
            number += 1
        return builder.build(), number

    def _random_size(self, rng: random.Random) -> int:
        return rng.randint(self.size, self._largest)

    async def _produce(self, number: int, data: bytes) -> None:
        part = m.ProduceRequest.PartitionProduceData(number, data)
        topic = m.ProduceRequest.TopicProduceData(name=self.name, partition_data=[part])
        request = m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])

        async def write() -> None:
            leader = await self._cluster.leader(TopicPartition(self.name, number))
            lane = f"load-{number % LOADERS}"
            response = await self._cluster._inner.network.request(leader, request, lane=lane, highest=BY_NAME)
            _check(response.responses[0].partition_responses[0].error_code, f"{self.name}-{number}")

        await self._retried(write)

    async def _retried(self, attempt: Callable[[], Awaitable[object]]) -> None:
        """Retry retriable errors: a new topic has no leaders and coordinators at first."""
        retry = self._cluster._inner.retry(retries=RETRIES)
        while True:
            try:
                await attempt()
                return
            except BrokerError as error:
                if not error.retriable or not retry.failed():
                    raise
            await retry.wait()
            await self._cluster.refresh()

    async def committed(self, group_id: str) -> int:
        """Return the number of records below the committed offsets of a group."""
        partitions = [TopicPartition(self.name, number) for number in range(self.partitions)]
        offsets = await OffsetManager(self._cluster, group_id).fetch(partitions)
        return sum(entry.offset for entry in offsets.values())

    async def find_coordinator(self, group_id: str) -> None:
        """Make the cluster create `__consumer_offsets`, so that no measured client waits for it."""
        await self._retried(lambda: self.committed(group_id))

    async def remove(self, group_ids: list[str]) -> None:
        """Delete the topic, if it was created, and the groups that read it."""
        if not self._exists:
            return
        self._cluster.untrack(self.names)
        for group_id in group_ids:
            await self._cluster.coordinators.request(group_id, m.DeleteGroupsRequest([group_id]))
        response = await self._cluster.request_any(m.DeleteTopicsRequest, self._delete_request)
        for topic in response.responses:
            _check(topic.error_code, f"removal of {topic.name}")

    def _delete_request(self, version: int) -> m.DeleteTopicsRequest:
        if version < 6:
            return m.DeleteTopicsRequest(topic_names=self.names, timeout_ms=30_000)
        states = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in self.names]
        return m.DeleteTopicsRequest(topics=states, timeout_ms=30_000)


def _check(code: int, what: str) -> None:
    if code:
        raise BrokerError(code, what)
