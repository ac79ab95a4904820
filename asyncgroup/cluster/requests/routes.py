"""Routes: which node a request goes to for each of its keys, and what is forgotten when that was the wrong one.

A route groups keys by node; a key whose node is not found has an error, and the others go on.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.connection import Address
from asyncgroup.cluster.connection_pool import CONTROL, Node
from asyncgroup.cluster.coordinators import GROUP
from asyncgroup.cluster.network_client import RequestBuilder
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ErrorCode,
    NoBrokersError,
    UnsupportedVersionError,
)
from asyncgroup.model import TopicPartition
from asyncgroup.wire.message import Message, Request

__all__ = [
    "AtCoordinator",
    "ByController",
    "ByCoordinator",
    "ByLeader",
    "ByNode",
    "Located",
    "RequestRoute",
    "Shard",
    "ToAnyNode",
    "ToCoordinator",
    "ToNode",
    "ToOneTarget",
]

K = TypeVar("K", bound=Hashable)
R = TypeVar("R", bound=Message)


# --- where a request is sent ------------------------------------------------------------------------------------------


class Target(Protocol):
    """Sends a request to one node; `str()` names the node in messages."""

    async def request(
        self,
        cls: type[Request[R]],
        build: RequestBuilder[R],
        *,
        lane: str = CONTROL,
        timeout: float | None = None,
        highest: int | None = None,
    ) -> R:
        """Send the request that `build(version)` makes. Raises TransportError, ProtocolError, ClosedError.

        `timeout` is in seconds, by default `request_timeout`; `highest` limits the version.
        """


class ToNode:
    """A node by id, or at an address."""

    __slots__ = ("_cluster", "node")

    def __init__(self, cluster: ClusterClient, node: Node) -> None:
        self._cluster = cluster
        self.node = node

    def __str__(self) -> str:
        return f"node {self.node if isinstance(self.node, int) else self.node.node_id}"

    async def request(
        self,
        cls: type[Request[R]],
        build: RequestBuilder[R],
        *,
        lane: str = CONTROL,
        timeout: float | None = None,
        highest: int | None = None,
    ) -> R:
        """See `Target`."""
        return await self._cluster.network.request_versioned(
            self.node, cls, build, lane=lane, timeout=timeout, highest=highest
        )


class ToAnyNode:
    """The least-loaded node, and the next one on failure or after 1 s without a response; `lane`, `timeout` and `highest` do not count.

    Raises UnsupportedVersionError if all nodes lack the API or the version.
    """

    __slots__ = ("_cluster",)

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    def __str__(self) -> str:
        return "a broker"

    async def request(
        self,
        cls: type[Request[R]],
        build: RequestBuilder[R],
        *,
        lane: str = CONTROL,  # noqa: ARG002  the hedged request has its own
        timeout: float | None = None,  # noqa: ARG002
        highest: int | None = None,  # noqa: ARG002
    ) -> R:
        """See `Target`."""
        try:
            return await self._cluster.network.request_any(cls, build)
        except NoBrokersError as error:
            if isinstance(error.__cause__, UnsupportedVersionError):
                raise error.__cause__ from None  # another attempt would not change that
            raise


class ToCoordinator:
    """The coordinator of some keys: the request is cancelled when one of them moves, and a failure makes it unknown."""

    __slots__ = ("_cluster", "_keys", "_kind", "address")

    def __init__(self, cluster: ClusterClient, address: Address, keys: Sequence[str], kind: int) -> None:
        self._cluster = cluster
        self.address = address
        self._keys = keys
        self._kind = kind

    def __str__(self) -> str:
        return f"node {self.address.node_id}"

    async def request(
        self,
        cls: type[Request[R]],
        build: RequestBuilder[R],
        *,
        lane: str = CONTROL,
        timeout: float | None = None,
        highest: int | None = None,
    ) -> R:
        """See `Target`; raises CoordinatorMoved besides."""
        return await self._cluster.coordinators.request_at(
            self.address,
            self._keys,
            cls,
            build,
            lane=lane,
            timeout=timeout,
            highest=highest,
            kind=self._kind,
        )


class Shard(Generic[K]):
    """A part of a request: the keys that one node is asked for."""

    __slots__ = ("keys", "target")

    def __init__(self, target: Target, keys: list[K]) -> None:
        self.target = target
        self.keys = keys

    def __repr__(self) -> str:
        return f"<Shard {self.keys} to {self.target}>"


class Located(Generic[K]):
    """The parts of a request, and the errors of keys whose node was not found."""

    __slots__ = ("errors", "shards")

    def __init__(self, shards: list[Shard[K]], errors: dict[K, AsyncGroupError]) -> None:
        self.shards = shards
        self.errors = errors

    def __repr__(self) -> str:
        return f"<Located {self.shards}, errors {self.errors}>"


# --- routes -----------------------------------------------------------------------------------------------------------


class RequestRoute(Protocol[K]):
    """Finds the nodes for the keys of a request."""

    async def locate(self, keys: Sequence[K]) -> Located[K]:
        """Group the keys by node. Raises an error that concerns all of them."""

    def forget(self, shard: Shard[K], key: K) -> None:
        """Look this key's node up before the next attempt: it refused the request or did not answer."""


class ByCoordinator:
    """Groups, or with `kind=TRANSACTION` transactional ids, by their coordinators."""

    def __init__(self, cluster: ClusterClient, kind: int = GROUP) -> None:
        self._cluster = cluster
        self._kind = kind

    async def locate(self, keys: Sequence[str]) -> Located[str]:
        """See `RequestRoute`."""
        found, errors = await self._cluster.coordinators.locate_each(keys, self._kind)
        by_address: dict[Address, list[str]] = {}
        for key, address in found.items():
            by_address.setdefault(address, []).append(key)
        shards = [
            Shard(ToCoordinator(self._cluster, address, part, self._kind), part)
            for address, part in by_address.items()
        ]
        return Located(shards, errors)

    def forget(self, shard: Shard[str], key: str) -> None:
        """See `RequestRoute`."""
        node_id = shard.target.address.node_id if isinstance(shard.target, ToCoordinator) else None
        self._cluster.coordinators.mark_unknown(key, node_id, self._kind)


class AtCoordinator(Generic[K]):
    """Parts of one group, such as its members: all at its coordinator."""

    def __init__(self, cluster: ClusterClient, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id

    async def locate(self, keys: Sequence[K]) -> Located[K]:
        """See `RequestRoute`."""
        address = await self._cluster.coordinators.locate(self._group_id)
        target = ToCoordinator(self._cluster, address, (self._group_id,), GROUP)
        return Located([Shard(target, list(keys))], {})

    def forget(self, shard: Shard[K], key: K) -> None:  # noqa: ARG002  one coordinator for all keys
        """See `RequestRoute`."""
        node_id = shard.target.address.node_id if isinstance(shard.target, ToCoordinator) else None
        self._cluster.coordinators.mark_unknown(self._group_id, node_id)


class ByController(Generic[K]):
    """The controller; with KRaft any broker forwards requests to it, so any is asked while the metadata names none."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def locate(self, keys: Sequence[K]) -> Located[K]:
        """See `RequestRoute`; the metadata is refreshed if the controller is unknown."""
        if (controller := self._controller()) is None:
            await self._cluster.try_refresh()
            controller = self._controller()
        target = ToAnyNode(self._cluster) if controller is None else ToNode(self._cluster, controller)
        return Located([Shard(target, list(keys))], {})

    def _controller(self) -> int | None:
        view = self._cluster.view
        return view.controller_id if view.controller_id in view.brokers else None

    def forget(self, shard: Shard[K], key: K) -> None:  # noqa: ARG002  one controller for all keys
        """See `RequestRoute`."""
        if isinstance(shard.target, ToNode) and isinstance(shard.target.node, int):
            self._cluster.doubt_controller(shard.target.node)


class ByLeader:
    """Partitions by their leaders; `what` names the request in the error of a partition without one."""

    def __init__(self, cluster: ClusterClient, what: str) -> None:
        self._cluster = cluster
        self._what = what
        self._is_stale = False

    async def locate(self, keys: Sequence[TopicPartition]) -> Located[TopicPartition]:
        """See `RequestRoute`; the metadata is refreshed after a failure. The caller tracks the topics."""
        if self._is_stale:
            self._is_stale = False
            await self._cluster.try_refresh()
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in keys:
            by_leader.setdefault(self._cluster.view.leader(tp), []).append(tp)
        code = ErrorCode.LEADER_NOT_AVAILABLE
        errors: dict[TopicPartition, AsyncGroupError] = {
            tp: BrokerError(code, f"{self._what} {tp}") for tp in by_leader.pop(-1, ())
        }
        self._is_stale = bool(errors)
        return Located([Shard(ToNode(self._cluster, n), part) for n, part in by_leader.items()], errors)

    def forget(self, shard: Shard[TopicPartition], key: TopicPartition) -> None:
        """See `RequestRoute`."""
        self._is_stale = True
        if isinstance(shard.target, ToNode) and isinstance(shard.target.node, int):
            self._cluster.doubt_leader(key, shard.target.node)


class ByNode:
    """Keys that are node ids, each asked by itself: the brokers of a cluster."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def locate(self, keys: Sequence[int]) -> Located[int]:
        """See `RequestRoute`."""
        return Located([Shard(ToNode(self._cluster, key), [key]) for key in keys], {})

    def forget(self, shard: Shard[int], key: int) -> None:
        """See `RequestRoute`: a node id is what it is; its address is looked up with each connection."""


class ToOneTarget(Generic[K]):
    """All keys at one target: a node that was named, or any node."""

    def __init__(self, target: Target) -> None:
        self._target = target

    async def locate(self, keys: Sequence[K]) -> Located[K]:
        """See `RequestRoute`."""
        return Located([Shard(self._target, list(keys))], {})

    def forget(self, shard: Shard[K], key: K) -> None:
        """See `RequestRoute`: nothing was looked up."""
