"""The topic that is read: created, loaded once, and removed at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import uuid4

from asyncgroup import BrokerError, Cluster, TopicPartition
from asyncgroup.offsets import OffsetManager
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import BatchBuilder

__all__ = ["Topic"]

BATCH_BYTES: Final = 64 << 10
"""Bytes of a record batch: between Java's default and what a busy producer makes."""
STEP: Final = 8
"""Batches between two steps of the progress bar."""
RETRIES: Final = 20
BY_NAME: Final = 12
"""The last Produce version in which a topic goes by its name."""
FIRST_TIMESTAMP: Final = 1_700_000_000_000


class Topic:
    """A topic of `partitions` with `records` in all, evenly; `size` bytes of value and eight of key each.

    With `largest` the values have `size` to `largest` bytes; a record batch has at most `batch_records` records and
    `batch_bytes` bytes.
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
    ) -> None:
        self._cluster = cluster
        self.name = f"benchmark-{uuid4().hex[:12]}"
        self.partitions, self.size = partitions, size
        self._largest = largest or size
        self._batch_records, self._batch_bytes = batch_records, batch_bytes
        self.share = -(-records // partitions)
        self._exists = False

    @property
    def records(self) -> int:
        """How many there are: `records` rounded up to the same number for each partition."""
        return self.share * self.partitions

    async def create(self) -> None:
        """Create the topic, empty."""
        # the timestamps are the same in every run, and older than the default retention
        keep = m.CreateTopicsRequest.CreatableTopicConfig("retention.ms", "-1")
        topic = m.CreateTopicsRequest.CreatableTopic(self.name, self.partitions, -1, configs=[keep])
        request = m.CreateTopicsRequest(topics=[topic])
        response = await self._cluster.request_any(m.CreateTopicsRequest, lambda _: request)
        _check(response.topics[0].error_code, f"topic {self.name}")
        self._exists = True
        self._cluster.track([self.name])

    async def load(self, advance: Callable[[int], object]) -> None:
        """Create the topic and write its records; `advance(n)` hears of every n written."""
        await self.create()
        await asyncio.gather(*(self._load_partition(number, advance) for number in range(self.partitions)))

    async def _load_partition(self, number: int, advance: Callable[[int], object]) -> None:
        rng = random.Random(number)
        written = 0
        while written < self.share:
            before = written
            for _ in range(STEP):
                data, written = self._batch(rng, written)
                await self._produce(number, data)
                if written == self.share:
                    break
            advance(written - before)

    def _batch(self, rng: random.Random, start: int) -> tuple[bytes, int]:
        """The record batch that begins with record `start` of a partition, and the number behind its last record."""
        builder = BatchBuilder(size_limit=self._batch_bytes)
        number = start
        end = min(self.share, start + (self._batch_records or self.share))
        while number < end:
            value = rng.randbytes(self.size if self._largest == self.size else self._random_size(rng))
            if not builder.append(FIRST_TIMESTAMP + number, b"%08d" % number, value):
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
            lane = f"load-{number}"
            response = await self._cluster.request(leader, request, lane=lane, highest=BY_NAME)
            _check(response.responses[0].partition_responses[0].error_code, f"{self.name}-{number}")

        await self._retried(write)

    async def _retried(self, attempt: Callable[[], Awaitable[object]]) -> None:
        """A topic that was just made takes a moment to have its leaders and coordinators."""
        backoff = self._cluster.backoff()
        while True:
            try:
                await attempt()
                return
            except BrokerError as error:
                if not error.retriable or backoff.failures >= RETRIES:
                    raise
            await asyncio.sleep(backoff.next())
            await self._cluster.refresh()

    async def committed(self, group_id: str) -> int:
        """How many records the committed offsets of a group cover."""
        partitions = [TopicPartition(self.name, number) for number in range(self.partitions)]
        offsets = await OffsetManager(self._cluster, group_id).fetch(partitions)
        return sum(entry.offset for entry in offsets.values())

    async def find_coordinator(self, group_id: str) -> None:
        """Have the topic of committed offsets made, so that no client waits for it."""
        await self._retried(lambda: self.committed(group_id))

    async def remove(self, group_ids: list[str]) -> None:
        """Delete the topic, if it was made, and the groups that read it."""
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
