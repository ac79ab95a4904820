"""The public `Cluster`: metadata, partition leaders and coordinators of one Kafka cluster.

A Cluster owns all connections and the metadata; consumers, groups and producers share one, or make their own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Self, TypeVar

from asyncgroup.checks import check_rng
from asyncgroup.cluster.bootstrap import BootstrapServers
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.coordinators import GROUP, CoordinatorClient
from asyncgroup.cluster.metadata import ClusterView, TopicInfo
from asyncgroup.cluster.network_client import RequestBuilder
from asyncgroup.config import ClientConfig
from asyncgroup.errors import ConfigError
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import BackgroundTasks
from asyncgroup.model import TopicPartition
from asyncgroup.named_arguments import ClientArguments
from asyncgroup.wire.message import Message, Request

__all__ = ["Cluster", "as_cluster", "start_tasks"]

R = TypeVar("R", bound=Message)


class Cluster(ClientArguments):
    """A connection to one Kafka cluster, shared by consumers, groups and producers.

        async with Cluster("localhost:9092") as cluster:
            print(cluster.view.brokers, await cluster.partitions("orders"))

    `bootstrap_servers` may be a function that returns the servers, also an async one: it is called at the start and whenever
    no known broker answers. Raises ConfigError if `bootstrap_servers` is malformed; entering raises NoBrokersError if none of
    them answers.
    """

    _CONFIG = "ClientConfig"

    def __init__(
        self,
        bootstrap_servers: BootstrapServers,
        config: ClientConfig | None = None,
        *,
        hooks: Iterable[object] | Hooks = (),
        rng: random.Random | None = None,
    ) -> None:
        check_rng(rng)
        self._inner = ClusterClient(bootstrap_servers, config, hooks=hooks, rng=rng)
        self.config = self._inner.config
        self.hooks = self._inner.hooks
        """The hooks of all clients that share this Cluster; another client may `emit` events to them."""
        self.coordinators = Coordinators(self._inner.coordinators)
        """Lookups of group and transaction coordinators, and requests to them."""

    def __repr__(self) -> str:
        return repr(self._inner)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._inner.aclose()

    async def aclose(self) -> None:
        """Close every connection; in-flight requests fail with ConnectionLost. Safe to call twice."""
        await self._inner.aclose()

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._inner.is_open

    @property
    def view(self) -> ClusterView:
        """The metadata of the last refresh: brokers, tracked topics, partitions."""
        return self._inner.view

    # --- metadata -----------------------------------------------------------------------------------------------

    def track(self, topics: Iterable[str]) -> None:
        """Include these topics in every metadata refresh until `untrack`; calls are counted."""
        self._inner.track(topics)

    def untrack(self, topics: Iterable[str]) -> None:
        """Undo one `track` call."""
        self._inner.untrack(topics)

    def tracking(self, topics: Iterable[str]) -> AbstractContextManager[None]:
        """Include these topics in every metadata refresh during a `with` block."""
        return self._inner.tracking(topics)

    async def refresh(self) -> None:
        """Request the metadata of the tracked topics; concurrent calls share a request.

        A call during a refresh waits for the next one, because the response of the current one may be older than the
        event that made the caller ask. Raises NoBrokersError, AuthenticationError, BrokerError, RequestTimedOut (after
        `metadata_timeout`), ClosedError.
        """
        await self._inner.refresh()

    async def wait_updated(self) -> None:
        """Wait for the next metadata refresh."""
        await self._inner.wait_updated()

    async def all_topics(self) -> dict[str, TopicInfo]:
        """Request and return every topic of the cluster; `view` is not changed."""
        return await self._inner.all_topics()

    async def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Return these topics from `view`, or look them up without creating any; single partitions may still be leaderless.

        Raises ConfigError for an invalid name, BrokerError for a topic that is still unknown or unavailable after
        `metadata_retry_max` retries or whose error is not retriable, RequestTimedOut after `metadata_timeout`.
        """
        return await self._inner.topics(names)

    async def partitions(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic, in order; raises as `topics` does."""
        return await self._inner.partitions(topic)

    async def leader(self, tp: TopicPartition) -> int:
        """Return the node id of a partition's leader, looked up if unknown.

        Raises as `topics` does, and BrokerError if there is no leader after `metadata_retry_max` retries.
        """
        return await self._inner.leader(tp)

    # --- requests -----------------------------------------------------------------------------------------------

    async def request(
        self, node_id: int, message: Request[R], *, timeout: float | None = None, highest: int | None = None
    ) -> R:
        """Send a request to a node in the newest version that both sides support (at most `highest`).

        `timeout` (seconds, default `request_timeout`) starts when the request is sent; connecting has its own limit.
        Raises TransportError and ProtocolError; the caller checks the error codes in the response.
        """
        return await self._inner.network.request(node_id, message, timeout=timeout, highest=highest)

    async def request_any(
        self, cls: type[Request[R]], build: RequestBuilder[R], *, last: int | None = None
    ) -> R:
        """Send a request to the least-loaded node, and to the next one on failure or after 1 s without a response.

        `build(version)` makes the request. The broker `last` is asked after all others. Raises NoBrokersError with the
        error of every node, ClosedError.
        """
        return await self._inner.network.request_any(cls, build, last=last)


class Coordinators:
    """The coordinators of groups; with `kind=TRANSACTION` of `asyncgroup.cluster.coordinators`, of transactional ids."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._inner = client

    async def find(self, key: str, kind: int = GROUP) -> int:
        """Return the coordinator's node id, looked up once if unknown. Raises BrokerError or NoBrokersError."""
        return await self._inner.find(key, kind)

    def mark_unknown(self, key: str, node_id: int | None = None, kind: int = GROUP) -> None:
        """Look the coordinator up before the next request; if `node_id` is given, only if that is the coordinator."""
        self._inner.mark_unknown(key, node_id, kind)

    async def request(
        self,
        key: str,
        message: Request[R],
        *,
        timeout: float | None = None,
        highest: int | None = None,
        kind: int = GROUP,
    ) -> R:
        """Send a request to the coordinator of `key`; after a failure the next request looks the coordinator up again.

        Raises BrokerError if there is no coordinator, TransportError, ProtocolError; the caller checks the error codes in
        the response.
        """
        return await self._inner.request(key, message, timeout=timeout, highest=highest, kind=kind)


def as_cluster(
    bootstrap_servers: BootstrapServers | Cluster, config: ClientConfig, hooks: Iterable[object]
) -> tuple[Cluster, bool]:
    """Return a client's Cluster, and whether the client owns it: a new one, which the client opens and closes.

    Raises ConfigError for malformed addresses, and if hooks are given with an existing Cluster, which would never call
    them.
    """
    if not isinstance(bootstrap_servers, Cluster):
        return Cluster(bootstrap_servers, config, hooks=hooks), True
    if hooks:
        raise ConfigError(
            "hooks", hooks, "no hooks with an existing Cluster: pass them to the Cluster instead"
        )
    return bootstrap_servers, False


async def start_tasks(tasks: BackgroundTasks, own_cluster: Cluster | None) -> None:
    """Open the Cluster that a client owns, if it does, and start the client's tasks; if they cannot start, close it."""
    if own_cluster is not None:
        own_cluster._inner.network.check_not_started(tasks.name)
        await own_cluster.__aenter__()
    try:
        await tasks.start()
    except BaseException:
        if own_cluster is not None:
            await own_cluster.aclose()
        raise
