"""All fetching of a client: partitions go to the fetcher of their leader, and to another one when the leader moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.broker_fetcher import BrokerFetcher
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.list_offsets import EARLIEST, LATEST, list_offsets
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import AsyncGroupError, OffsetOutOfRangeError, TransportError
from asyncgroup.model import TopicPartition

__all__ = ["Fetchers"]

_log = logging.getLogger("asyncgroup.consumer")

RESETS = {"earliest": EARLIEST, "latest": LATEST}
Spawn = Callable[..., None]


class Fetchers:
    """The broker fetchers of a client and the partitions that wait for one.

    `spawn(function, *args)` runs a coroutine function in the task group of whoever owns this object. `on_error` hears
    of what goes wrong and heals by itself. `owner` names the client's own connections.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        spawn: Spawn,
        on_error: Callable[[Exception], None] | None = None,
        *,
        owner: str = "",
    ) -> None:
        self._cluster, self._config, self._spawn = cluster, config, spawn
        self._on_error = on_error or _log_error
        self._owner = owner
        self.budget = Budget(config.buffer_bytes, config.max_partition_fetch_bytes)
        self._consumers: dict[TopicPartition, PartitionConsumer] = {}
        self._fetchers: dict[int, BrokerFetcher] = {}
        self._homeless: dict[TopicPartition, PartitionConsumer] = {}
        self._homeless_now = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Fetchers: {len(self._consumers)} partitions at {len(self._fetchers)} brokers>"

    @property
    def last_fetch(self) -> float:
        """Loop time of the last answer of any broker."""
        return max((fetcher.last_fetch for fetcher in self._fetchers.values()), default=float("-inf"))

    def start(self) -> None:
        """Start dispatching and the stall timer."""
        self._spawn(self._dispatch_loop)
        self._spawn(self._watch_progress)

    def add(self, consumer: PartitionConsumer) -> None:
        """Fetch a partition from now on."""
        self._consumers[consumer.tp] = consumer
        self.budget.members = len(self._consumers)
        self._send_home(consumer)

    def remove(self, consumer: PartitionConsumer) -> None:
        """Stop fetching a partition; what is under way for it is dropped."""
        if self._consumers.get(consumer.tp) is not consumer:
            return
        del self._consumers[consumer.tp]
        self._homeless.pop(consumer.tp, None)
        self.budget.members = len(self._consumers)
        for fetcher in self._fetchers.values():
            fetcher.remove(consumer)

    def _send_home(self, consumer: PartitionConsumer) -> None:
        """Bring a partition to its leader; where none is known, the dispatch loop has to find one."""
        leader = self._cluster.view.leader(consumer.tp)
        if leader >= 0:
            self._homeless.pop(consumer.tp, None)
            self._fetcher(leader).add(consumer)
        else:
            self._wait_for_news(consumer)

    def _wait_for_news(self, consumer: PartitionConsumer) -> None:
        self._homeless[consumer.tp] = consumer
        self._homeless_now.set()

    async def _dispatch_loop(self) -> None:
        """Refresh metadata for partitions without a fetcher, with pauses that grow while that does not help."""
        backoff = self._cluster.backoff()
        clock, dispatched = asyncio.get_running_loop().time, float("-inf")
        while True:
            await self._homeless_now.wait()
            if clock() - dispatched > self._config.retry_backoff_max:
                backoff.reset()  # the last dispatch did help, at least for a while
            await asyncio.sleep(backoff.next())
            # one that comes during the refresh must wait for the next, as this one may be older than its trouble
            self._homeless_now.clear()
            waiting = list(self._homeless.values())
            await self._refresh()
            dispatched = clock()
            for consumer in waiting:
                if self._homeless.get(consumer.tp) is consumer:
                    self._send_home(consumer)

    async def _refresh(self) -> None:
        try:
            await self._cluster.refresh()
        except AsyncGroupError as error:
            self._on_error(error)

    def _fetcher(self, node_id: int) -> BrokerFetcher:
        fetcher = self._fetchers.get(node_id)
        if fetcher is None:
            fetcher = self._fetchers[node_id] = BrokerFetcher(
                node_id, self._cluster, self._config, self.budget, self._redispatch, self._reset, self._owner
            )
            self._spawn(fetcher.run)
            self._spawn(fetcher.run_express)
        return fetcher

    def _redispatch(self, consumers: list[PartitionConsumer], error: Exception, *, hinted: bool) -> None:
        self._on_error(error)
        for consumer in consumers:
            (self._send_home if hinted else self._wait_for_news)(consumer)

    def _reset(self, consumer: PartitionConsumer) -> None:
        policy = self._config.auto_offset_reset
        if policy == "error":
            consumer.fail(
                OffsetOutOfRangeError(f"{consumer.tp}: offset {consumer.fetch_offset} is not in the log")
            )
            # it is asked for again when the reader has met the error, or sought elsewhere
            self._send_home(consumer)
            return
        _log.warning(
            "%s: offset %d is not in the log, going to %s", consumer.tp, consumer.fetch_offset, policy
        )
        self._spawn(self._find_offset, consumer, RESETS[policy], consumer.version)

    async def _find_offset(self, consumer: PartitionConsumer, spec: int, version: int) -> None:
        """Look a reset offset up until it is found or nobody wants it any more."""
        backoff = self._cluster.backoff()
        while self._consumers.get(consumer.tp) is consumer and consumer.version == version:
            try:
                found = (await list_offsets(self._cluster, {consumer.tp: spec}))[consumer.tp]
                end = (await list_offsets(self._cluster, {consumer.tp: LATEST}))[consumer.tp]
            except AsyncGroupError as error:
                if not (isinstance(error, TransportError) or getattr(error, "retriable", False)):
                    consumer.fail(error)
                    break
                self._on_error(error)
                await asyncio.sleep(backoff.next())
            else:
                if consumer.version == version:
                    consumer.reset(found, end)
                break
        if self._consumers.get(consumer.tp) is consumer:
            self._send_home(consumer)

    async def _watch_progress(self) -> None:
        """MaxProcessingTime: one timer looks at every partition; nothing is counted per record."""
        while True:
            await asyncio.sleep(self._config.max_processing_time)
            for consumer in self._consumers.values():
                consumer.check_progress()


def _log_error(error: Exception) -> None:
    _log.info("healing: %s", error)
