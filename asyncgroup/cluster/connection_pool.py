"""Connection pool: one connection per (broker, purpose), opened on demand. Each such pair is called a lane.

A broker serves the requests of a connection one after another. Requests that may be held for long (JoinGroup, Fetch)
therefore have a separate lane, so that they never delay heartbeats, commits or lookups. A lane that cannot connect
delays only its own callers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from asyncgroup.cluster.connecting import connect, tls_context, warn_if_credentials_unencrypted
from asyncgroup.cluster.connection import Address, Connection, LastResponses
from asyncgroup.cluster.features import FinalizedFeatures
from asyncgroup.config import ClientConfig
from asyncgroup.errors import AsyncGroupError, ClosedError, ConnectError
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import BackgroundTasks, await_shared, mark_retrieved
from asyncgroup.net.backoff import RetryBackoff
from asyncgroup.wire.message import Request

__all__ = ["CONTROL", "ConnectionPool", "Node"]

Node: TypeAlias = "int | Address"
"""A node by its id, at its address in the metadata; or another address at which a coordinator was named."""

CONTROL = "control"
"""The default purpose: metadata, lookups, and every request that names no other lane."""


class _Lane:
    """The connection to one node for one purpose, with its state while it connects or waits to reconnect."""

    __slots__ = ("address", "backoff", "closed", "connecting", "connection", "purpose", "retry_at")

    def __init__(self, address: Address, purpose: str, backoff: RetryBackoff) -> None:
        self.address = address
        self.purpose = purpose
        self.backoff = backoff  # its failures are reset by each successful connect
        self.connection: Connection | None = None
        self.connecting: asyncio.Future[Connection] | None = None  # shared by all callers while connecting
        self.retry_at = float("-inf")  # loop time before which no further connect is attempted
        self.closed = False  # no longer in the pool; a connect that succeeds afterwards is closed at once

    @property
    def is_open(self) -> bool:
        """Whether there is an open connection."""
        return self.connection is not None and self.connection.is_open

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for a response."""
        return self.connection.in_flight if self.connection is not None else 0


class ConnectionPool:
    """All connections of a cluster; `tasks` runs the tasks that connect."""

    def __init__(
        self, tasks: BackgroundTasks, config: ClientConfig, hooks: Hooks, rng: random.Random
    ) -> None:
        self._tasks = tasks
        self._config = config
        self._hooks = hooks
        self._random = rng
        self._tls_context = tls_context(config)
        warn_if_credentials_unencrypted(config)
        self._lanes: dict[tuple[Node, str], _Lane] = {}
        """Lanes by node and purpose."""
        self._retired: list[Connection] = []
        """Connections removed from their lane that still wait for responses."""
        self._closed = False
        self._reconnect_backoff_max = float("inf")  # seconds
        self._users: dict[str, int] = {}
        """Number of `acquire_lane` calls without `release_lane`, by purpose."""
        self._slow_nodes: dict[int, float] = {}
        """Loop time of the last `mark_slow`, by node id; a later response of the node makes it void."""
        self.last_responses = LastResponses()
        self.features = FinalizedFeatures()

    def mark_slow(self, node_id: int) -> None:
        """Make `rank` put a node last until its next response to any request, because a response of it is overdue."""
        self._slow_nodes[node_id] = asyncio.get_running_loop().time()

    def _is_slow(self, node_id: int) -> bool:
        since = self._slow_nodes.get(node_id)
        return since is not None and self.last_responses.nodes.get(node_id, float("-inf")) <= since

    def rank(self, node_id: int) -> tuple[bool, int, bool]:
        """Return the sort key of a node for a request that any node can answer; the smallest key is the best node.

        The key orders, as Java's `NetworkClient.leastLoadedNode` does: first, nodes whose last connect failed, whose
        connections are all lost, or that are marked slow come last; second, by requests in flight, a connection being
        opened counted as one; third, nodes with an open control connection before those without.
        """
        lanes = [lane for lane in self._lanes.values() if lane.address.node_id == node_id]
        failing = any(lane.backoff.failures > 0 for lane in lanes) or self._is_slow(node_id)
        if not any(lane.is_open for lane in lanes):
            # a killed broker has no requests in flight, so by load alone it would rank first
            failing = failing or any(lane.connection is not None for lane in lanes)
        load = sum(lane.in_flight + (lane.connecting is not None) for lane in lanes)
        return failing, load, not any(lane.is_open for lane in lanes if lane.purpose == CONTROL)

    def in_flight(self, node: Node, purpose: str = CONTROL) -> int:
        """Return the number of a lane's requests that wait for a response; the broker serves the next one after them."""
        lane = self._lanes.get((node, purpose))
        return lane.in_flight if lane is not None else 0

    def lane_awaiting(self, node: Node, cls: type[Request[Any]]) -> str | None:
        """Return the purpose of a node's lane on which a request of this API waits for a response; None if none does."""
        for (each, purpose), lane in self._lanes.items():
            if each == node and lane.connection is not None and lane.connection.awaits(cls):
                return purpose
        return None

    def received_bytes(self, node_id: int, purpose: str = CONTROL) -> int:
        """Return the bytes that a lane's current connection has received, including those of incomplete responses."""
        lane = self._lanes.get((node_id, purpose))
        return lane.connection.received_bytes if lane is not None and lane.connection is not None else 0

    async def connection(self, address: Address, purpose: str, node: Node | None = None) -> Connection:
        """Return the open connection of a lane, or open one; concurrent callers share the attempt.

        The lane is that of the node id, or of `node`. Raises ClosedError and what `connect` raises.
        """
        if self._closed:
            raise ClosedError(f"{self._tasks.name} is closed")
        lane = self._lane(address.node_id if node is None else node, address, purpose)
        if lane.connection is not None and lane.connection.is_open:
            if not lane.connection.session_expired:
                return lane.connection
            self._retire(lane, lane.connection)
        if lane.connecting is None:
            ready: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
            ready.add_done_callback(mark_retrieved)
            self._tasks.spawn(self._connect, lane, ready, name=f"connect {address} {purpose}")
            lane.connecting = ready
        return await await_shared(lane.connecting)

    def open_connection(self, address: Address, purpose: str) -> Connection | None:
        """Return the open connection of a lane; None if there is none, or if its SASL session has expired."""
        lane = self._lanes.get((address.node_id, purpose))
        if lane is None or lane.connection is None or lane.address != address:
            return None
        connection = lane.connection
        return connection if connection.is_open and not connection.session_expired else None

    def limit_reconnect_backoff(self, seconds: float) -> None:
        """Limit the backoff before reconnecting to `seconds`, for all lanes; of several limits the smallest applies.

        A group member needs it: it is expelled after `session_timeout`, and both its coordinator and the nodes that it
        asks for the coordinator may be any node.
        """
        self._reconnect_backoff_max = min(self._reconnect_backoff_max, seconds)

    def abandon_lane(self, node: Node, purpose: str) -> None:
        """Send the next request of a lane by a new connection, because no caller waits for those in flight.

        A broker serves a connection one request at a time, so that the next request would otherwise wait for, say, a
        long poll to return. The old connection closes when its in-flight requests are answered.
        """
        if self.in_flight(node, purpose):
            self.replace(node, purpose)

    def abort_lane(self, purpose: str) -> None:
        """Close the connections of a purpose to all nodes at once; in-flight requests fail with ConnectionLost."""
        for key, lane in list(self._lanes.items()):
            if lane.purpose == purpose:
                del self._lanes[key]
                self._close_lane(lane)

    def replace(self, node: Node, purpose: str) -> None:
        """Let the next request open a new connection, which requests ApiVersions again."""
        lane = self._lanes.get((node, purpose))
        if lane is not None and lane.connection is not None and not self._closed:
            self._retire(lane, lane.connection)

    def _retire(self, lane: _Lane, connection: Connection) -> None:
        """Remove a connection from its lane; it closes when its in-flight requests are answered.

        An expiring SASL session is replaced in this way too, rather than re-authenticated on the same connection
        (KIP-368): that is only possible between requests, and a held JoinGroup or Fetch could delay it until the
        session has expired.
        """
        connection.retire()
        lane.connection = None
        self._retired = [one for one in self._retired if not one.is_disconnected]
        self._retired.append(connection)

    def _lane(self, node: Node, address: Address, purpose: str) -> _Lane:
        lane = self._lanes.get((node, purpose))
        if lane is None or lane.address != address:
            if lane is not None:
                self._close_lane(lane)
            backoff = RetryBackoff.configured(self._config, self._random)
            lane = self._lanes[node, purpose] = _Lane(address, purpose, backoff)
        return lane

    async def _connect(self, lane: _Lane, ready: asyncio.Future[Connection]) -> None:
        loop = asyncio.get_running_loop()
        try:
            if (pause := lane.retry_at - loop.time()) > 0:
                await asyncio.sleep(pause)
            connection = await connect(
                lane.address, lane.purpose, self._config, self._hooks, self.last_responses, self._tls_context
            )
        except AsyncGroupError as error:
            lane.retry_at = loop.time() + min(lane.backoff.next(), self._reconnect_backoff_max)
            ready.set_exception(error)
        except Exception as error:  # noqa: BLE001  callers wait on `ready`, so every error is passed to them
            ready.set_exception(error)
        except BaseException:
            ready.set_exception(ClosedError(f"{lane.address}: the cluster was closed while connecting"))
            raise
        else:
            self._connected(lane, connection, ready)
        finally:
            lane.connecting = None

    def _connected(self, lane: _Lane, connection: Connection, ready: asyncio.Future[Connection]) -> None:
        if lane.closed or self._closed:
            # the lane has left the pool, so nothing else would close this connection
            connection.close()
            ready.set_exception(ConnectError(f"{lane.address}: closed while connecting"))
            return
        lane.backoff.reset()
        lane.connection = connection
        self.features.update(connection.features_epoch, connection.features)
        ready.set_result(connection)

    def _close_lane(self, lane: _Lane) -> None:
        lane.closed = True
        if lane.connection is not None:
            lane.connection.close()

    def close_idle(self) -> None:
        """Close connections without a request for `connections_max_idle` seconds."""
        oldest = asyncio.get_running_loop().time() - self._config.connections_max_idle
        self._close_unused(lambda lane: lane.connection is None or lane.connection.last_used < oldest)

    def close_nodes_except(self, node_ids: set[int]) -> None:
        """Close idle connections to all other nodes: those that left the cluster, and bootstrap addresses (ids below 0)."""
        self._close_unused(lambda lane: lane.address.node_id not in node_ids)

    def acquire_lane(self, purpose: str) -> None:
        """Count one more user of a purpose that several clients share, until `release_lane`."""
        self._users[purpose] = self._users.get(purpose, 0) + 1

    def release_lane(self, purpose: str) -> None:
        """Undo one `acquire_lane`; after the last one the purpose's connections close when they are idle."""
        self._users[purpose] -= 1
        if not self._users[purpose]:
            del self._users[purpose]
            self.retire_lanes({purpose})

    def retire_lanes(self, purposes: Collection[str], node_id: int | None = None) -> None:
        """Close the connections of these purposes (to one node, or to all), each when no request is in flight on it."""
        for key, lane in list(self._lanes.items()):
            if key[1] in purposes and node_id in (None, lane.address.node_id):
                del self._lanes[key]
                lane.closed = True  # a connection that is still being opened is closed by `_connected`
                if lane.connection is not None:
                    self._retire(lane, lane.connection)

    def _close_unused(self, condition: Callable[[_Lane], bool]) -> None:
        for key, lane in list(self._lanes.items()):
            if lane.connecting is None and lane.in_flight == 0 and condition(lane):
                del self._lanes[key]
                self._close_lane(lane)

    def close(self) -> None:
        """Close all connections now and refuse new ones."""
        self._closed = True
        for lane in self._lanes.values():
            self._close_lane(lane)
        for connection in self._retired:
            connection.close()

    async def aclose(self) -> None:
        """Close every connection and wait until the transports are closed."""
        self.close()
        lanes, self._lanes = self._lanes, {}
        active = [lane.connection for lane in lanes.values() if lane.connection is not None]
        retired, self._retired = self._retired, []
        for connection in (*active, *retired):
            await connection.aclose()
