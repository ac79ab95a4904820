"""Group and transaction coordinators: look them up (FindCoordinator), cache them, and send them requests.

A cached coordinator is used until a request to it fails or the caller reports NOT_COORDINATOR by `mark_unknown`. It is
connected at the address that the lookup returned, as in Java (`AbstractCoordinator.FindCoordinatorResponseHandler`): the
metadata may be older.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple, TypeAlias, TypeVar

from asyncgroup.cluster.connection import Address
from asyncgroup.cluster.connection_pool import CONTROL
from asyncgroup.cluster.metadata import BrokerInfo
from asyncgroup.cluster.network_client import NetworkClient, RequestBuilder
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    ConnectionLost,
    ErrorCode,
    ProtocolError,
)
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message, Request

__all__ = ["GROUP", "TRANSACTION", "CoordinatorClient", "CoordinatorMoved"]

GROUP: Final = 0
TRANSACTION: Final = 1
"""Coordinator types (`FindCoordinatorRequest.CoordinatorType`)."""

BATCHED_FROM_VERSION: Final = 4
"""The first FindCoordinator version that takes a list of keys (KIP-699)."""

R = TypeVar("R", bound=Message)

_Result: TypeAlias = "m.FindCoordinatorResponse | m.FindCoordinatorResponse.Coordinator"

Key = tuple[int, str]
"""Coordinator type and group id (or transactional id)."""


class _Coordinator(NamedTuple):
    """A cached coordinator."""

    address: Address
    lookup: int
    """The number of the lookup that returned it."""
    brokers: Mapping[int, BrokerInfo]
    """The brokers in the metadata at that lookup."""


class CoordinatorMoved(ConnectionLost):
    """A request was cancelled at a former coordinator because a lookup returned another node, or another address."""


class CoordinatorClient:
    """The coordinators of a cluster, by key (a group id or transactional id) and coordinator type.

    `refresh` refreshes the metadata; it is called when a lookup returns a node without an address that `network` does not
    know.

    When a lookup returns another node or address than the one before, the requests that still wait at the former coordinator are
    cancelled with CoordinatorMoved, so that the caller can send them to the new one. Java disconnects from the former
    coordinator for the same purpose (`AbstractCoordinator.markCoordinatorUnknown`).
    """

    def __init__(self, network: NetworkClient, refresh: Callable[[], Awaitable[None]]) -> None:
        self._network = network
        self._refresh = refresh
        self._known: dict[Key, _Coordinator] = {}
        self._last_known: dict[Key, int] = {}
        """The node that the last lookup returned; kept by `mark_unknown`."""
        self._stale: dict[Key, int] = {}
        """The node that the next lookup asks last."""
        self._lookups = count(1)
        self._pending: dict[Key, dict[asyncio.Timeout, Address]] = {}
        """Requests in flight: the scope that cancels each, and where it was sent to."""

    async def find(self, key: str, kind: int = GROUP) -> int:
        """Return the coordinator's node id, looked up once if unknown. Raises BrokerError or NoBrokersError."""
        return (await self.locate(key, kind)).node_id

    async def locate(self, key: str, kind: int = GROUP) -> Address:
        """Return the coordinator's address, for requests to its node by `NetworkClient`. Raises as `find`."""
        return (await self.locate_all([key], kind))[key]

    async def locate_all(self, keys: Iterable[str], kind: int = GROUP) -> dict[str, Address]:
        """Return the address of each key's coordinator; one request looks up all that are unknown (KIP-699, Kafka 3.0).

        Raises as `find`, for the first key that has no coordinator, and ProtocolError if the response lacks a key.
        """
        wanted = list(dict.fromkeys(keys))
        # in rounds: older brokers look one key up at a time, and another task may have marked one as unknown
        while unknown := [key for key in wanted if self._cached(key, kind) is None]:
            _raise_first(await self._look_up(unknown, kind))
        return {key: self._known[kind, key].address for key in wanted}

    async def locate_each(
        self, keys: Iterable[str], kind: int = GROUP
    ) -> tuple[dict[str, Address], dict[str, AsyncGroupError]]:
        """As `locate_all`, and return the errors of the keys that have no coordinator. Raises ClosedError only."""
        wanted = list(dict.fromkeys(keys))
        errors: dict[str, AsyncGroupError] = {}
        while unknown := [k for k in wanted if k not in errors and self._cached(k, kind) is None]:
            try:
                errors |= await self._look_up(unknown, kind)
            except ClosedError:
                raise
            except AsyncGroupError as error:  # those that are known are asked nevertheless
                errors |= dict.fromkeys(unknown, error)
        return {key: self._known[kind, key].address for key in wanted if key not in errors}, errors

    def _cached(self, key: str, kind: int) -> Address | None:
        """Return the known coordinator, unless its node is missing in metadata that is newer than the lookup."""
        known, brokers = self._known.get((kind, key)), self._network.view.brokers
        # the metadata at the lookup may have lacked the node; newer metadata without it means that it is gone
        if known is None or (known.address.node_id not in brokers and brokers is not known.brokers):
            return None
        return known.address

    async def check(self, key: str, kind: int = GROUP) -> None:
        """Look a coordinator up although it is known, at other brokers first; use another one if that is the result.

        For a caller whose request waits there for longer than a broker takes to fail over. Raises as `find`.
        """
        if (known := self._known.get((kind, key))) is not None:
            # not replaced: a lookup that is already due asks the same node last
            self._stale.setdefault((kind, key), known.address.node_id)
        _raise_first(await self._look_up([key], kind))

    async def _look_up(self, keys: list[str], kind: int) -> dict[str, BrokerError]:
        """Look these keys up, with brokers before Kafka 3.0 only the first one; return the errors."""
        stale = (self._stale.get((kind, key)) for key in keys)
        response = await self._network.request_any(
            m.FindCoordinatorRequest,
            lambda version: _request(keys, kind, version),
            # one of them: nearly always all keys have the same former coordinator
            last=next((node_id for node_id in stale if node_id is not None), None),
        )
        results = _results(response, keys)
        brokers = self._network.view.brokers
        # a coordinator that has just joined the cluster, as after a failover
        if any(not found.error_code and _address(found, brokers) is None for found in results.values()):
            await self._refresh()
            brokers = self._network.view.brokers
        errors: dict[str, BrokerError] = {}
        for key, found in results.items():
            if found.error_code:
                errors[key] = BrokerError(found.error_code, f"coordinator of {key!r}", found.error_message)
            elif (address := _address(found, brokers)) is None:
                subject = f"coordinator of {key!r}, node {found.node_id}"
                errors[key] = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, subject)
            else:
                self._remember((kind, key), address)
        return errors

    def _remember(self, key: Key, address: Address) -> None:
        self._stale.pop(key, None)
        self._last_known[key] = address.node_id
        known = self._known.get(key)
        # a concurrent lookup that returned the same first has the number; but the metadata may be newer than that one
        is_same = known is not None and known.address == address
        number = known.lookup if known is not None and is_same else next(self._lookups)
        self._known[key] = _Coordinator(address, number, self._network.view.brokers)
        self._cancel_requests_elsewhere(key, address)

    def _cancel_requests_elsewhere(self, key: Key, address: Address) -> None:
        """Cancel the requests of this key that wait at other addresses than the coordinator's."""
        now = asyncio.get_running_loop().time()
        pending = self._pending.get(key, {})
        # a list, as the loop removes from the dict
        for scope in [scope for scope, sent_to in pending.items() if sent_to != address]:
            # at once: a further lookup must not reschedule it a second time
            del pending[scope]
            scope.reschedule(now)

    def lookup_number(self, key: str, kind: int = GROUP) -> int | None:
        """Return the number of the lookup that returned the current coordinator; None while it is unknown.

        Two different numbers mean that the coordinator was looked up in between, even if the node is the same.
        """
        known = self._known.get((kind, key))
        return known.lookup if known is not None else None

    def mark_unknown(self, key: str, node_id: int | None = None, kind: int = GROUP) -> None:
        """Look the coordinator up before the next request; if `node_id` is given, only if that is the coordinator."""
        known = self._known.get((kind, key))
        if known is not None and node_id in (None, known.address.node_id):
            del self._known[kind, key]

    def mark_stale(self, key: str, kind: int = GROUP) -> None:
        """Like `mark_unknown`, and ask the former coordinator last in the next lookup.

        A broker that was suspended and resumed may still consider itself the coordinator until it has caught up with
        the metadata.
        """
        if (former := self._last_known.get((kind, key))) is not None:
            self._stale[kind, key] = former
        self.mark_unknown(key, kind=kind)

    async def request(
        self,
        key: str,
        message: Request[R],
        *,
        lane: str = CONTROL,
        spare_lane: str | None = None,
        timeout: float | None = None,
        highest: int | None = None,
        kind: int = GROUP,
    ) -> R:
        """Send a request to the coordinator of `key`; after a failure the next request looks the coordinator up again.

        The lanes are those of `NetworkClient.request_versioned`. Raises BrokerError if there is no coordinator,
        TransportError (CoordinatorMoved if another node becomes the coordinator before the response arrives), ProtocolError.
        """
        return await self.request_versioned(
            key,
            type(message),
            lambda _: message,
            lane=lane,
            spare_lane=spare_lane,
            timeout=timeout,
            highest=highest,
            kind=kind,
        )

    async def request_versioned(
        self,
        key: str,
        cls: type[Request[R]],
        build: RequestBuilder[R],
        *,
        lane: str = CONTROL,
        spare_lane: str | None = None,
        timeout: float | None = None,
        highest: int | None = None,
        kind: int = GROUP,
    ) -> R:
        """Like `request`, for a message that depends on the version: `build(version)` makes it."""
        address = await self.locate(key, kind)
        return await self.request_at(
            address,
            (key,),
            cls,
            build,
            lane=lane,
            spare_lane=spare_lane,
            timeout=timeout,
            highest=highest,
            kind=kind,
        )

    async def request_at(
        self,
        address: Address,
        keys: Sequence[str],
        cls: type[Request[R]],
        build: RequestBuilder[R],
        *,
        lane: str = CONTROL,
        spare_lane: str | None = None,
        timeout: float | None = None,
        highest: int | None = None,
        kind: int = GROUP,
    ) -> R:
        """Like `request_versioned`, for several keys whose coordinator `locate` has just found at this address.

        It is cancelled if one of the keys moves, and after a failure all of them are looked up again.
        """
        # Without a deadline; `_cancel_requests_elsewhere` makes it expire when the coordinator moves.
        scope = asyncio.timeout(None)
        try:
            async with scope:
                for key in keys:
                    self._pending.setdefault((kind, key), {})[scope] = address
                try:
                    return await self._network.request_versioned(
                        address,
                        cls,
                        build,
                        lane=lane,
                        spare_lane=spare_lane,
                        timeout=timeout,
                        highest=highest,
                    )
                finally:
                    self._answered(scope, keys, kind)
        except TimeoutError:
            # a timeout of the request itself, or of the caller
            if not scope.expired():
                raise
            # the next request to that node, perhaps for another key, must not wait for the cancelled one
            for each in (lane, spare_lane):
                if each is not None:
                    self._network.pool.abandon_lane(self._network.lane_node(address), each)
            raise self._moved(address, keys, cls, kind) from None
        except AsyncGroupError:
            for key in keys:
                # only if it is still the one that has failed: another task may have found the new one
                if (known := self._known.get((kind, key))) is not None and known.address == address:
                    self.mark_unknown(key, kind=kind)
            raise

    def _answered(self, scope: asyncio.Timeout, keys: Sequence[str], kind: int) -> None:
        """A request is no longer in flight."""
        for key in keys:
            pending = self._pending.get((kind, key), {})
            pending.pop(scope, None)
            if not pending:
                self._pending.pop((kind, key), None)

    def _moved(
        self, address: Address, keys: Sequence[str], cls: type[Request[R]], kind: int
    ) -> CoordinatorMoved:
        """Return the error of a request that was cancelled, which names the key whose coordinator is elsewhere now."""
        nows = {key: known.address for key in keys if (known := self._known.get((kind, key))) is not None}
        moved = next((key for key, now in nows.items() if now != address), keys[0])
        now = nows.get(moved)
        where = address if now is not None and now.node_id == address.node_id else f"node {address.node_id}"
        return CoordinatorMoved(
            f"{where} is no longer the coordinator of {moved!r}: "
            f"{cls.NAME.removesuffix('Request')} was cancelled before a response arrived"
        )


def _raise_first(errors: Mapping[str, BrokerError]) -> None:
    for error in errors.values():
        raise error


def _address(found: _Result, brokers: Mapping[int, BrokerInfo]) -> Address | None:
    """Return where a lookup's result says that the coordinator is; without an address, as the metadata says."""
    if found.node_id < 0:
        return None
    if found.host and 0 < found.port < 65536:
        return Address(found.node_id, found.host, found.port)
    broker = brokers.get(found.node_id)
    return None if broker is None else Address(broker.node_id, broker.host, broker.port)


def _request(keys: list[str], kind: int, version: int) -> m.FindCoordinatorRequest:
    if version >= BATCHED_FROM_VERSION:
        return m.FindCoordinatorRequest(key_type=kind, coordinator_keys=keys)
    return m.FindCoordinatorRequest(key=keys[0], key_type=kind)


def _results(response: m.FindCoordinatorResponse, keys: list[str]) -> dict[str, _Result]:
    """Return the results by key. Up to version 3 the result is in the response's own fields, later in a list (KIP-699)."""
    if not response.coordinators:
        return {keys[0]: response}
    if len(keys) == 1:
        return {keys[0]: response.coordinators[0]}
    found = {each.key: each for each in response.coordinators}
    if missing := [key for key in keys if key not in found]:
        raise ProtocolError(
            f"the response to FindCoordinator has no entry for {', '.join(map(repr, missing))}"
        )
    return {key: found[key] for key in keys}
