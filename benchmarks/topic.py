"""The topic that clients read: created, loaded once, and removed at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import uuid4

from asyncgroup import BrokerError, Cluster, Consumer, TopicPartition
from asyncgroup.cluster import client_of
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
    ) -> None:
        self._cluster = cluster
        self.name = f"benchmark-{uuid4().hex[:12]}"
        self.partitions = partitions
        self.size = size
        self._largest = largest or size
        self._batch_records = batch_records
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._headers = headers
        self.share = -(-records // partitions)
        """Records of each partition."""
        self._exists = False

    @property
    def records(self) -> int:
        """The number of records, rounded up to the same number in each partition."""
        return self.share * self.partitions

    async def create(self) -> None:
        """Create the topic, empty."""
        # the timestamps are constant, and by now older than the default retention time
        keep = m.CreateTopicsRequest.CreatableTopicConfig("retention.ms", "-1")
        topic = m.CreateTopicsRequest.CreatableTopic(self.name, self.partitions, -1, configs=[keep])
        request = m.CreateTopicsRequest(topics=[topic])
        response = await self._cluster.request_any(m.CreateTopicsRequest, lambda _: request)
        _check(response.topics[0].error_code, f"topic {self.name}")
        self._exists = True
        self._cluster.track([self.name])

    async def wait_for_leaders(self) -> None:
        """Wait until each partition answers: of 1,000 new ones a broker has the last after some seconds."""
        partitions = [TopicPartition(self.name, number) for number in range(self.partitions)]
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
        loaders = (self._load_partitions(first, advance) for first in range(min(LOADERS, self.partitions)))
        await asyncio.gather(*loaders)

    async def _load_partitions(self, first: int, advance: Callable[[int], object]) -> None:
        for number in range(first, self.partitions, LOADERS):
            await self._load_partition(number, advance)

    async def _load_partition(self, number: int, advance: Callable[[int], object]) -> None:
        rng = random.Random(number)
        written = 0
        while written < self.share:
            before, batches = written, list[bytes]()
            while written < self.share and len(batches) < (
                STEP if self._batch_records is None else SMALL_STEP
            ):
                data, written = self._batch(rng, written)
                batches.append(data)
            if self._batch_records is None:
                for data in batches:
                    await self._produce(number, data)
            else:
                await asyncio.gather(*(self._produce(number, data) for data in batches))
            advance(written - before)

    def _batch(self, rng: random.Random, start: int) -> tuple[bytes, int]:
        """Return the record batch that begins with record `start` of a partition, and the next record's number."""
        builder = BatchBuilder(self._codec, size_limit=self._batch_bytes)
        number = start
        end = min(self.share, start + (self._batch_records or self.share))
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
            response = await client_of(self._cluster).network.request(
                leader, request, lane=lane, highest=BY_NAME
            )
            _check(response.responses[0].partition_responses[0].error_code, f"{self.name}-{number}")

        await self._retried(write)

    async def _retried(self, attempt: Callable[[], Awaitable[object]]) -> None:
        """Retry retriable errors: a new topic has no leaders and coordinators at first."""
        retry = client_of(self._cluster).retry(retries=RETRIES)
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
        self._cluster.untrack([self.name])
        for group_id in group_ids:
            await self._cluster.coordinators.request(group_id, m.DeleteGroupsRequest([group_id]))
        response = await self._cluster.request_any(m.DeleteTopicsRequest, self._delete_request)
        _check(response.responses[0].error_code, f"removal of {self.name}")

    def _delete_request(self, version: int) -> m.DeleteTopicsRequest:
        if version < 6:
            return m.DeleteTopicsRequest(topic_names=[self.name], timeout_ms=30_000)
        state = m.DeleteTopicsRequest.DeleteTopicState(name=self.name)
        return m.DeleteTopicsRequest(topics=[state], timeout_ms=30_000)


def _check(code: int, what: str) -> None:
    if code:
        raise BrokerError(code, what)
