"""A consumer without a group: partitions by hand."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count
from types import TracebackType
from typing import Literal, Self

from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetchers import RESETS, Fetchers
from asyncgroup.consumer.list_offsets import list_offsets
from asyncgroup.consumer.partition_consumer import Interceptor, PartitionConsumer
from asyncgroup.errors import BrokerError, ClosedError, ConfigError, ErrorCode
from asyncgroup.hooks import refuse_hooks
from asyncgroup.lifecycle import Owner
from asyncgroup.model import TopicPartition

__all__ = ["Consumer"]


_NUMBERS = count(1)


class Consumer:
    """Reads partitions without joining a group; nothing is committed.

    async with Consumer("localhost:9092") as consumer:
        async for record in await consumer.partition("orders", 0, "earliest"):
            ...
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Cluster,
        config: ConsumerConfig | None = None,
        *,
        hooks: Iterable[object] = (),
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        self.config = ConsumerConfig.of(config)
        self._owns_cluster = not isinstance(bootstrap_servers, Cluster)
        refuse_hooks(hooks, owns_cluster=self._owns_cluster)
        self.cluster = (
            bootstrap_servers
            if isinstance(bootstrap_servers, Cluster)
            else Cluster(bootstrap_servers, self.config, hooks=hooks)
        )
        self._interceptors = tuple(interceptors)
        self._owner = Owner("Consumer", self._on_bug)
        self._fetchers = Fetchers(
            self.cluster, self.config, self._owner.spawn, owner=f"-consumer-{next(_NUMBERS)}"
        )
        self._partitions: dict[TopicPartition, PartitionConsumer] = {}

    def __repr__(self) -> str:
        return (
            f"<Consumer: {'open' if self._owner.is_open else 'closed'}, {len(self._partitions)} partitions>"
        )

    async def __aenter__(self) -> Self:
        if self._owns_cluster:
            await self.cluster.__aenter__()
        await self._owner.start()
        self._fetchers.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End every partition's iterator and close; safe to call twice."""
        for consumer in self._partitions.values():
            consumer.end()
        try:
            await self._owner.stop()
        finally:
            self.cluster.untrack(tp.topic for tp in self._partitions)
            self._partitions.clear()
            if self._owns_cluster:
                await self.cluster.aclose()

    async def topics(self) -> list[str]:
        """The names of all topics, in order."""
        return sorted(await self.cluster.all_topics())

    async def partitions(self, topic: str) -> list[int]:
        """The partition numbers of a topic; raises BrokerError for an unknown one."""
        return await self.cluster.partitions(topic)

    async def partition(
        self, topic: str, partition: int, offset: int | Literal["earliest", "latest"] = "latest"
    ) -> PartitionConsumer:
        """Start reading a partition at an offset, or at the log's start or end.

        Raises ConfigError for a partition read already or an offset below 0, BrokerError for an unknown partition,
        ClosedError on a consumer that is not open.
        """
        tp = TopicPartition(topic, partition)
        self._check_free(tp)
        if offset not in RESETS and not (isinstance(offset, int) and offset >= 0):
            raise ConfigError("offset", offset, "0 or more, 'earliest' or 'latest'")
        if partition not in await self.partitions(topic):
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}", "it does not exist")
        start = (
            offset
            if isinstance(offset, int)
            else (await list_offsets(self.cluster, {tp: RESETS[offset]}))[tp]
        )
        self._check_free(tp)  # another call may have been quicker
        consumer = PartitionConsumer(
            tp, start, self.config, self._fetchers.budget, self.cluster.hooks, self._interceptors
        )
        consumer.on_close = partial(self._forget, consumer)
        self.cluster.track([topic])
        self._partitions[tp] = consumer
        self._fetchers.add(consumer)
        return consumer

    def _check_free(self, tp: TopicPartition) -> None:
        if not self._owner.is_open:
            raise ClosedError("the Consumer is not open: use `async with Consumer(…)`")
        if tp in self._partitions:
            raise ConfigError("partition", str(tp), "a partition that this consumer does not read yet")

    def _forget(self, consumer: PartitionConsumer) -> None:
        if self._partitions.get(consumer.tp) is consumer:
            del self._partitions[consumer.tp]
            self._fetchers.remove(consumer)
            self.cluster.untrack([consumer.topic])

    def _on_bug(self, error: Exception) -> None:
        """A task of ours failed: nothing will come any more, and readers must hear of it."""
        for consumer in self._partitions.values():
            consumer.fail(error)
