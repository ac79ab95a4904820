"""Connection lanes: for each node one connection a purpose, made on demand.

A broker serves the requests of a connection one after another. So what may wait long (a parked JoinGroup, a long
poll) has a lane of its own, and never delays heartbeats, commits or lookups. A lane that cannot connect delays nobody
else: there is no lock around connecting but the lane's own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection

from asyncgroup.cluster.backoff import Backoff
from asyncgroup.cluster.connecting import connect
from asyncgroup.cluster.connection import Address, Connection, LastResponses
from asyncgroup.cluster.transport import tls_context, warn_if_credentials_unencrypted
from asyncgroup.config import ClientConfig
from asyncgroup.errors import AsyncGroupError, ClosedError, ConnectError
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import BackgroundTasks, await_shared, mark_retrieved

__all__ = ["CONTROL", "ConnectionPool"]

CONTROL = "control"


class _Lane:
    """The connection to one node for one purpose."""

    __slots__ = ("address", "backoff", "closed", "connecting", "connection", "purpose", "retry_at")

    def __init__(self, address: Address, purpose: str, backoff: Backoff) -> None:
        self.address, self.purpose, self.backoff = address, purpose, backoff
        self.connection: Connection | None = None
        self.connecting: asyncio.Future[Connection] | None = None
        self.retry_at = float("-inf")
        self.closed = False

    @property
    def is_open(self) -> bool:
        """Whether a connection stands."""
        return self.connection is not None and self.connection.is_open

    @property
    def in_flight(self) -> int:
        """Requests whose response has not come yet."""
        return self.connection.in_flight if self.connection is not None else 0


class ConnectionPool:
    """All lanes of a cluster; `tasks` runs the connecting."""

    def __init__(
        self, tasks: BackgroundTasks, config: ClientConfig, hooks: Hooks, rng: random.Random
    ) -> None:
        self._tasks, self._config, self._hooks, self._random = tasks, config, hooks, rng
        self._tls_context = tls_context(config)
        warn_if_credentials_unencrypted(config)
        self._lanes: dict[tuple[int, str], _Lane] = {}
        self._retired: list[Connection] = []
        self._closed = False
        self._reconnect_backoff_max = float("inf")
        self._users: dict[str, int] = {}
        """How many clients hold a purpose that several share."""
        self._slow_nodes: dict[int, float] = {}
        """Nodes that owed an answer for too long, with the loop's time at which that was noted."""
        self.last_responses = LastResponses()

    def mark_slow(self, node_id: int) -> None:
        """Note that a node has owed an answer for too long: `rank` puts it last until it answers something."""
        self._slow_nodes[node_id] = asyncio.get_running_loop().time()

    def _is_slow(self, node_id: int) -> bool:
        since = self._slow_nodes.get(node_id)
        if since is not None and self.last_responses.nodes.get(node_id, float("-inf")) > since:
            del self._slow_nodes[node_id]
            return False
        return since is not None

    def rank(self, node_id: int) -> tuple[bool, int, bool]:
        """Sort key of nodes for a request that any can answer; the smallest first.

        Last come nodes that could not be connected to, nodes that lost a connection and have no other, and suspected
        ones. Then the load counts, a connection being made as one request, and among equals a connection that stands
        wins over one to be made (`NetworkClient.leastLoadedNode`).
        """
        lanes = [lane for lane in self._lanes.values() if lane.address.node_id == node_id]
        failing = any(lane.backoff.failures > 0 for lane in lanes) or self._is_slow(node_id)
        if not any(lane.is_open for lane in lanes):
            # a broker that was killed has no requests in flight, and would seem the least loaded one
            failing = failing or any(lane.connection is not None for lane in lanes)
        load = sum(lane.in_flight + (lane.connecting is not None) for lane in lanes)
        return failing, load, not any(lane.is_open for lane in lanes if lane.purpose == CONTROL)

    def in_flight(self, node_id: int, purpose: str) -> int:
        """Requests of a lane whose response has not come yet."""
        lane = self._lanes.get((node_id, purpose))
        return lane.in_flight if lane is not None else 0

    def received_bytes(self, node_id: int, purpose: str) -> int:
        """Bytes that a lane's present connection has received, those of unfinished responses included."""
        lane = self._lanes.get((node_id, purpose))
        return lane.connection.received_bytes if lane is not None and lane.connection is not None else 0

    async def connection(self, address: Address, purpose: str) -> Connection:
        """The open connection of a lane, made if there is none. Raises ConnectError and what `connect` does."""
        if self._closed:
            raise ClosedError(f"{self._tasks.name} is closed")
        lane = self._lane(address, purpose)
        if lane.connection is not None and lane.connection.is_open:
            if not lane.connection.session_expired:
                return lane.connection
            self._retire(lane, lane.connection)
        if lane.connecting is None:
            made: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
            made.add_done_callback(mark_retrieved)
            self._tasks.spawn(self._connect, lane, made, name=f"connect {address} {purpose}")
            lane.connecting = made
        return await await_shared(lane.connecting)

    def limit_reconnect_backoff(self, seconds: float) -> None:
        """Wait at most so long before another attempt to connect; the least limit counts."""
        self._reconnect_backoff_max = min(self._reconnect_backoff_max, seconds)

    def abandon(self, node_id: int, purpose: str) -> None:
        """Nobody waits any more for what is under way on a lane, and the next request shall not wait behind it."""
        if self.in_flight(node_id, purpose):
            self.replace(node_id, purpose)

    def abort_purpose(self, purpose: str) -> None:
        """Close the connections of a purpose at once, to whatever node; what is under way there fails."""
        for key, lane in list(self._lanes.items()):
            if lane.purpose == purpose:
                del self._lanes[key]
                self._close_lane(lane)

    def replace(self, node_id: int, purpose: str) -> None:
        """The next request shall go by another connection, which asks anew what the node offers."""
        lane = self._lanes.get((node_id, purpose))
        if lane is not None and lane.connection is not None and not self._closed:
            self._retire(lane, lane.connection)

    def _retire(self, lane: _Lane, connection: Connection) -> None:
        """Leave a connection to what is under way on it; the next one, after a SASL session's end, authenticates anew.

        Kafka also allows to authenticate again in place (KIP-368), but between requests only: a parked JoinGroup or a
        long poll would hold that up beyond the session's end.
        """
        connection.retire()
        lane.connection = None
        self._retired = [one for one in self._retired if not one.is_disconnected]
        self._retired.append(connection)

    def _lane(self, address: Address, purpose: str) -> _Lane:
        lane = self._lanes.get((address.node_id, purpose))
        if lane is None or lane.address != address:
            if lane is not None:
                self._close_lane(lane)
            backoff = Backoff(self._config.retry_backoff, self._config.retry_backoff_max, self._random)
            lane = self._lanes[address.node_id, purpose] = _Lane(address, purpose, backoff)
        return lane

    async def _connect(self, lane: _Lane, made: asyncio.Future[Connection]) -> None:
        loop = asyncio.get_running_loop()
        try:
            if (pause := lane.retry_at - loop.time()) > 0:
                await asyncio.sleep(pause)
            connection = await connect(
                lane.address, lane.purpose, self._config, self._hooks, self.last_responses, self._tls_context
            )
        except AsyncGroupError as error:
            lane.retry_at = loop.time() + min(lane.backoff.next(), self._reconnect_backoff_max)
            made.set_exception(error)
        except Exception as error:  # noqa: BLE001  whatever it was, those who wait must hear of it
            made.set_exception(error)
        except BaseException:
            made.set_exception(ClosedError(f"{lane.address}: the cluster was closed while connecting"))
            raise
        else:
            self._connected(lane, connection, made)
        finally:
            lane.connecting = None

    def _connected(self, lane: _Lane, connection: Connection, made: asyncio.Future[Connection]) -> None:
        if lane.closed or self._closed:
            # nobody would ever close a connection that belongs to no lane
            connection.close()
            made.set_exception(ConnectError(f"{lane.address}: no longer wanted, the node has moved"))
            return
        lane.backoff.reset()
        lane.connection = connection
        made.set_result(connection)

    def _close_lane(self, lane: _Lane) -> None:
        lane.closed = True
        if lane.connection is not None:
            lane.connection.close()

    def close_idle(self) -> None:
        """Close connections unused for `connections_max_idle`."""
        oldest = asyncio.get_running_loop().time() - self._config.connections_max_idle
        self._close_unused(lambda lane: lane.connection is None or lane.connection.last_used < oldest)

    def close_nodes_except(self, node_ids: set[int]) -> None:
        """Close the connections to nodes that the cluster no longer has (bootstrap addresses, below zero, too)."""
        self._close_unused(lambda lane: lane.address.node_id not in node_ids)

    def acquire(self, purpose: str) -> None:
        """One more client uses a purpose that several share, until `release`."""
        self._users[purpose] = self._users.get(purpose, 0) + 1

    def release(self, purpose: str) -> None:
        """Undo one `acquire`; the last one closes the purpose's connections."""
        self._users[purpose] -= 1
        if not self._users[purpose]:
            del self._users[purpose]
            self.retire_purposes({purpose})

    def retire_purposes(self, purposes: Collection[str], node_id: int | None = None) -> None:
        """Close the connections for these purposes (to one node), each as soon as nothing is under way on it."""
        for key, lane in list(self._lanes.items()):
            if key[1] in purposes and node_id in (None, key[0]):
                del self._lanes[key]
                lane.closed = True  # a connection that is still being made is closed when it stands
                if lane.connection is not None:
                    self._retire(lane, lane.connection)

    def _close_unused(self, condition: Callable[[_Lane], bool]) -> None:
        for key, lane in list(self._lanes.items()):
            if lane.connecting is None and lane.in_flight == 0 and condition(lane):
                del self._lanes[key]
                self._close_lane(lane)

    def close(self) -> None:
        """Make no more connections and end those that stand."""
        self._closed = True
        for lane in self._lanes.values():
            self._close_lane(lane)
        for connection in self._retired:
            connection.close()

    async def aclose(self) -> None:
        """Close every connection and wait until their transports are gone."""
        self.close()
        lanes, self._lanes = self._lanes, {}
        standing = [lane.connection for lane in lanes.values() if lane.connection is not None]
        retired, self._retired = self._retired, []
        for connection in (*standing, *retired):
            await connection.aclose()
