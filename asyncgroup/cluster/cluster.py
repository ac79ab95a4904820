"""One Kafka cluster: its metadata, leaders and coordinators; the only owner of connections and metadata."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self

from asyncgroup.checks import check_topic
from asyncgroup.cluster.coordinators import CoordinatorClient
from asyncgroup.cluster.metadata import BrokerInfo, ClusterView, TopicInfo, merge
from asyncgroup.cluster.network_client import NetworkClient
from asyncgroup.cluster.single_flight import SingleFlightRefresh
from asyncgroup.config import ClientConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ConfigError,
    ErrorCode,
    NoBrokersError,
    RequestTimedOut,
)
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["Cluster", "as_cluster"]

_log = logging.getLogger("asyncgroup.cluster")

IDLE_CHECK_SECONDS: Final = 60.0
"""How often idle connections are looked for, at least."""


class Cluster(NetworkClient):
    """A connection to one Kafka cluster, shared by consumers, groups and producers.

        async with Cluster("localhost:9092") as cluster:
            print(cluster.view.brokers, await cluster.partitions("orders"))

    Raises ConfigError for a malformed `bootstrap_servers`; entering raises NoBrokersError if none of them answers.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        config: ClientConfig | None = None,
        *,
        hooks: Iterable[object] | Hooks = (),
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(bootstrap_servers, config, hooks=hooks, rng=rng)
        self._topics: dict[str, int] = {}
        self._updated = asyncio.Event()
        self._refresh = SingleFlightRefresh(self._tasks, self._refresh_once)
        self.coordinators = CoordinatorClient(self, self.refresh)

    def __repr__(self) -> str:
        state = "open" if self._tasks.is_open else "closed"
        servers = ",".join(str(address) for address in self._bootstrap)
        return (
            f"<Cluster {servers}: {state}, {len(self.view.brokers)} brokers, {len(self.view.topics)} topics>"
        )

    # --- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._tasks.start()
        try:
            await self._resolve_bootstrap()
            await self.refresh()
        except BaseException:
            await self.aclose()
            raise
        self._tasks.spawn(self._maintain)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection; requests under way fail with ConnectionLost. Safe to call twice."""
        self._pool.close()
        try:
            await self._tasks.stop()
        finally:
            await self._hedged.aclose()
            await self._pool.aclose()

    async def _maintain(self) -> None:
        """Refresh metadata at its interval and close idle connections."""
        interval = self.config.metadata_refresh_interval
        turn = min(interval or IDLE_CHECK_SECONDS, self.config.connections_max_idle, IDLE_CHECK_SECONDS)
        time = asyncio.get_running_loop().time
        while True:
            due = self.view.updated_at + interval if interval else float("inf")
            await asyncio.sleep(min(turn, max(due - time(), 0.0)))
            self._pool.close_idle()
            if time() >= due:
                try:
                    await self.refresh()
                except AsyncGroupError as error:
                    _log.warning("metadata refresh failed: %s", error)
                    await asyncio.sleep(turn)

    # --- metadata -----------------------------------------------------------------------------------------------

    def track(self, topics: Iterable[str]) -> None:
        """Keep these topics in every refresh, until `untrack`."""
        for topic in topics:
            self._topics[topic] = self._topics.get(topic, 0) + 1

    def untrack(self, topics: Iterable[str]) -> None:
        """Undo one `track`."""
        for topic in topics:
            self._topics[topic] = self._topics.get(topic, 1) - 1
            if self._topics[topic] <= 0:
                del self._topics[topic]

    async def wait_updated(self) -> None:
        """Wait until the metadata was refreshed once more."""
        await self._updated.wait()

    async def refresh(self) -> None:
        """Ask for the metadata of the tracked topics; concurrent calls share requests.

        A call during a refresh waits for the next one, since the one under way may be older than its reason.
        Raises NoBrokersError, AuthenticationError, BrokerError, RequestTimedOut (`metadata_timeout`), ClosedError.
        """
        await self._refresh()

    async def _refresh_once(self) -> None:
        requested = None if self.config.metadata_full else sorted(self._topics)
        response = await self._fetch_metadata(requested)
        if requested is None:
            response.topics += await self._missing_topics(response)
        self.view = merge(self.view, response, requested, asyncio.get_running_loop().time())
        self._pool.close_nodes_except(set(self.view.brokers))
        self._updated.set()
        self._updated = asyncio.Event()
        self.hooks.emit("on_metadata", self.view.cluster_id, len(self.view.brokers), len(self.view.topics))

    async def _missing_topics(
        self, response: m.MetadataResponse
    ) -> list[m.MetadataResponse.MetadataResponseTopic]:
        """Tracked topics that a response for all topics lacks, asked for by name: only that may create them."""
        missing = self._topics.keys() - {topic.name for topic in response.topics}
        return list((await self._fetch_metadata(sorted(missing))).topics) if missing else []

    async def _fetch_metadata(self, requested: list[str] | None) -> m.MetadataResponse:
        """A metadata response that can be used; `requested` is None for all topics."""
        async with self._metadata_limit("metadata"):
            return await self._request_metadata(requested)

    @asynccontextmanager
    async def _metadata_limit(self, what: str) -> AsyncIterator[None]:
        """`metadata_timeout` for what is inside; raises RequestTimedOut."""
        limit = self.config.metadata_timeout
        try:
            async with asyncio.timeout(limit) as scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise RequestTimedOut(f"{what}: not found out within metadata_timeout={limit!r} s") from None

    async def _request_metadata(self, requested: list[str] | None) -> m.MetadataResponse:
        def build(version: int) -> m.MetadataRequest:
            return self._metadata_request(requested, version)

        response = await self.request_any(m.MetadataRequest, build)
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            # KIP-1102: the nodes we know belong to another cluster by now; only the bootstrap addresses count
            response = await self._hedged_request(m.MetadataRequest, build, self._by_load(self._bootstrap))
        if response.error_code:
            raise BrokerError(response.error_code, "metadata")
        if not response.brokers:
            raise NoBrokersError("the broker that was asked for metadata knows of no brokers yet")
        return response

    def _metadata_request(self, requested: list[str] | None, version: int) -> m.MetadataRequest:
        topics = None
        if requested is not None or version == 0:  # version 0 says "all topics" by an empty list
            topics = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in requested or ()]
        allow = self.config.allow_auto_topic_creation or version < 4
        return m.MetadataRequest(topics=topics, allow_auto_topic_creation=allow)

    def update_leader(
        self, tp: TopicPartition, leader: int, epoch: int, brokers: Iterable[BrokerInfo] = ()
    ) -> None:
        """Take over a newer leader that a response named (KIP-951)."""
        self.view = self.view.with_leader(tp, leader, epoch, brokers)

    async def all_topics(self) -> dict[str, TopicInfo]:
        """Every topic of the cluster, asked for now; tracked ones stay as they are."""
        response = await self._fetch_metadata(None)
        return dict(merge(ClusterView(), response, None, asyncio.get_running_loop().time()).topics)

    async def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """These topics, known or looked up; single partitions may still be without a leader.

        Raises ConfigError for an impossible name, BrokerError for a topic that stays unknown or may not be read
        after `metadata_retry_max` further tries, RequestTimedOut after `metadata_timeout`.
        """
        wanted = [check_topic(name) for name in ([names] if isinstance(names, str) else names)]
        self.track(wanted)
        try:
            async with self._metadata_limit(f"topics {', '.join(wanted)}"):
                await self._find_topics(wanted)
            return {name: self.view.topics[name] for name in wanted}
        finally:
            self.untrack(wanted)

    async def _find_topics(self, wanted: list[str]) -> None:
        backoff = self.metadata_backoff()
        if self._first_error(wanted) is not None:
            await self.refresh()
        while (problem := self._first_error(wanted)) is not None:
            if backoff.failures >= self.config.metadata_retry_max or not problem.retriable:
                raise problem
            await asyncio.sleep(backoff.next())
            await self.refresh()

    def _first_error(self, names: Iterable[str]) -> BrokerError | None:
        for name in names:
            topic = self.view.topics.get(name)
            if topic is None:
                return BrokerError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}", "it does not exist"
                )
            if topic.error_code:
                return BrokerError(topic.error_code, f"topic {name!r}")
            if not topic.partitions:
                return BrokerError(
                    ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r}", "it has no partitions yet"
                )
        return None

    async def partitions(self, topic: str) -> list[int]:
        """The partition numbers of a topic, in order; raises as `topics` does."""
        return (await self.topics([topic]))[topic].numbers

    async def leader(self, tp: TopicPartition) -> int:
        """The node that leads a partition, looked up if unknown; raises BrokerError if there is none for long."""
        self.track([tp.topic])
        try:
            async with self._metadata_limit(f"leader of {tp}"):
                return await self._find_leader(tp)
        finally:
            self.untrack([tp.topic])

    async def _find_leader(self, tp: TopicPartition) -> int:
        backoff = self.metadata_backoff()
        while (leader := self.view.leader(tp)) < 0:
            topic = (await self.topics([tp.topic]))[tp.topic]
            if (leader := self.view.leader(tp)) >= 0:
                break
            known = tp.partition in topic.partitions
            if backoff.failures >= self.config.metadata_retry_max:
                code = ErrorCode.LEADER_NOT_AVAILABLE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise BrokerError(code, f"partition {tp}", None if known else "it does not exist")
            await asyncio.sleep(backoff.next())
            await self.refresh()
        return leader


def as_cluster(
    bootstrap_servers: str | Iterable[str] | Cluster, config: ClientConfig, hooks: Iterable[object]
) -> tuple[Cluster, bool]:
    """A client's cluster, and whether it is the client's own: made of addresses, to be opened and closed with it.

    Raises ConfigError for malformed addresses, and for hooks beside an existing Cluster, which would never call them.
    """
    if not isinstance(bootstrap_servers, Cluster):
        return Cluster(bootstrap_servers, config, hooks=hooks), True
    if hooks:
        raise ConfigError("hooks", hooks, "none beside an existing Cluster: give them to the Cluster")
    return bootstrap_servers, False
