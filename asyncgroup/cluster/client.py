"""What the clients of one cluster share: requests, metadata and coordinators. `Cluster` is its public object."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from asyncgroup.cluster.coordinators import CoordinatorClient
from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.cluster.metadata_updater import MetadataUpdater
from asyncgroup.cluster.network_client import NetworkClient
from asyncgroup.config import ClientConfig
from asyncgroup.errors import AsyncGroupError
from asyncgroup.hooks import Hooks
from asyncgroup.wire.loading import load_client

__all__ = ["ClusterClient"]

_log = logging.getLogger("asyncgroup.cluster")

IDLE_CHECK_SECONDS: Final = 60.0
"""Longest interval between two checks for idle connections."""


class ClusterClient:
    """Composes a NetworkClient with its ConnectionPool, a MetadataUpdater and a CoordinatorClient, and offers their methods.

    Raises ConfigError if `bootstrap_servers` is malformed; entering raises NoBrokersError if none of them answers.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str],
        config: ClientConfig | None = None,
        *,
        hooks: Iterable[object] | Hooks = (),
        rng: random.Random | None = None,
    ) -> None:
        network = NetworkClient(bootstrap_servers, config, hooks=hooks, rng=rng)
        metadata = MetadataUpdater(network)
        self._network = network
        self._metadata = metadata
        self.config = network.config
        self.hooks = network.hooks
        self.random = network.random
        self.coordinators = CoordinatorClient(network, metadata.refresh)

        self.request = network.request
        self.request_versioned = network.request_versioned
        self.request_any = network.request_any
        self.send_oneway = network.send_oneway
        self.connection = network.connection
        self.backoff = network.backoff
        self.update_leader = network.update_leader

        pool = network.pool
        self.mark_slow = pool.mark_slow
        self.limit_reconnect_backoff = pool.limit_reconnect_backoff
        self.acquire_lane = pool.acquire_lane
        self.release_lane = pool.release_lane
        self.abandon_lane = pool.abandon_lane
        self.abort_lane = pool.abort_lane
        self.retire_lanes = pool.retire_lanes
        self.in_flight = pool.in_flight
        self.received_bytes = pool.received_bytes

        self.track = metadata.track
        self.untrack = metadata.untrack
        self.tracking = metadata.tracking
        self.refresh = metadata.refresh
        self.wait_updated = metadata.wait_updated
        self.topics = metadata.topics
        self.all_topics = metadata.all_topics
        self.partitions = metadata.partitions
        self.leader = metadata.leader

    def __repr__(self) -> str:
        return repr(self._network)

    @property
    def view(self) -> ClusterView:
        """The metadata of the last refresh."""
        return self._network.view

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._network.is_open

    @property
    def last_response_at(self) -> float:
        """Loop time of the last response of any broker; minus infinity before the first one."""
        return self._network.last_response_at

    async def __aenter__(self) -> Self:
        await load_client()
        await self._network.start()
        try:
            await self._network.resolve_bootstrap()
            await self.refresh()
        except BaseException:
            await self.aclose()
            raise
        self._network.spawn(self._maintain)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection; in-flight requests fail with ConnectionLost. Safe to call twice."""
        self._network.close()
        try:
            await self._metadata.aclose()
        finally:
            await self._network.aclose()

    async def _maintain(self) -> None:
        """Refresh the metadata every `metadata_refresh_interval` seconds and close idle connections."""
        interval = self.config.metadata_refresh_interval
        turn = min(interval or IDLE_CHECK_SECONDS, self.config.connections_max_idle, IDLE_CHECK_SECONDS)
        time = asyncio.get_running_loop().time
        while True:
            due = self.view.updated_at + interval if interval else float("inf")
            await asyncio.sleep(min(turn, max(due - time(), 0.0)))
            self._network.pool.close_idle()
            if time() >= due:
                try:
                    await self.refresh()
                except AsyncGroupError as error:
                    _log.warning("metadata refresh failed: %s", error)
                    await asyncio.sleep(turn)
