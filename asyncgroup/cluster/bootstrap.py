"""Bootstrap servers: the addresses that a client starts from, given once or returned by a function that is asked again.

A function is Pulsar's `ServiceUrlProvider`, and for Kafka's clients what KIP-899 and KIP-1102 leave open: to rebootstrap with
addresses that were not known when the client was started.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

from asyncgroup.checks import parse_servers
from asyncgroup.cluster.connection import Address
from asyncgroup.config import ClientConfig
from asyncgroup.errors import NoBrokersError
from asyncgroup.lifecycle import SingleFlight, describe_error
from asyncgroup.net.addresses import canonical_names

__all__ = ["PROVIDER", "Bootstrap", "BootstrapServers"]

Servers: TypeAlias = "str | Iterable[str]"

BootstrapServers: TypeAlias = "str | Iterable[str] | Callable[[], Servers | Awaitable[Servers]]"
"""`host:port,host:port`, several `host:port`, or a function that returns one of them.

The function may be async. It is called at the start, and again whenever no known broker answers; a plain one must not block.
The heartbeat thread of a group also calls it, if no known broker answers there.
"""

PROVIDER: Final = Address(-(2**31), "the bootstrap provider", 0)
"""Stands for the addresses that the function will return, in a list of nodes to ask."""


class Bootstrap:
    """The bootstrap addresses of a cluster. Their node ids are below 0, and never used for two addresses.

    Raises ConfigError if the servers are malformed.
    """

    def __init__(self, servers: BootstrapServers, config: ClientConfig) -> None:
        self._config = config
        self._provider: Callable[[], Any] | None = None
        self._next_id = -1
        self.addresses: list[Address] = []
        """Empty until the provider was asked."""
        if callable(servers):
            self._provider = servers
        else:
            self._set(parse_servers(servers))
        self._single_flight = SingleFlight("calls of the bootstrap provider", self._ask)

    def __repr__(self) -> str:
        if self._provider is not None and not self.addresses:
            return f"<Bootstrap {self._provider!r}>"
        return f"<Bootstrap {self}>"

    def __str__(self) -> str:
        if self._provider is not None and not self.addresses:
            return getattr(self._provider, "__name__", "bootstrap provider")
        return ",".join(map(str, self.addresses))

    @property
    def is_live(self) -> bool:
        """Whether the addresses may change."""
        return self._provider is not None

    def find(self, node_id: int) -> Address | None:
        """Return the bootstrap address with this id, or None."""
        return next((address for address in self.addresses if address.node_id == node_id), None)

    def in_turn_with(self, known: list[str]) -> BootstrapServers:
        """Return `known`; with a provider, a function that returns `known` and calls the provider in turn."""
        if self._provider is None:
            return known
        turns = itertools.cycle([lambda: known, self._provider])

        def next_servers() -> Any:
            return next(turns)()

        return next_servers

    async def refresh(self) -> None:
        """Ask the provider again; concurrent calls share one. Raises NoBrokersError if it fails or returns no addresses."""
        await self._single_flight()

    async def _ask(self) -> None:
        assert self._provider is not None
        limit = self._config.connect_timeout
        try:
            async with asyncio.timeout(limit) as scope:
                servers = self._provider()
                if inspect.isawaitable(servers):
                    servers = await servers
            places = parse_servers(servers)
        except Exception as error:
            what = describe_error(error)
            if isinstance(error, TimeoutError) and scope.expired():
                what = f"no result within connect_timeout={limit:g} s"
            raise NoBrokersError(f"the bootstrap provider failed: {what}") from error
        self._set(places)
        await self.resolve()

    def _set(self, places: Iterable[tuple[str, int]]) -> None:
        unique = list(dict.fromkeys(places))
        if unique != [(address.host, address.port) for address in self.addresses]:
            self.addresses = [Address(self._next_id - n, *place) for n, place in enumerate(unique)]
            self._next_id -= len(unique)

    async def resolve(self) -> None:
        """Replace the hosts by canonical names if `client_dns_lookup` asks for it (KIP-235)."""
        if self._config.client_dns_lookup != "resolve_canonical_bootstrap_servers_only":
            return
        deadline = asyncio.get_running_loop().time() + self._config.connect_timeout
        self._set(
            [
                (name, address.port)
                for address in self.addresses
                for name in await canonical_names(address.host, address.port, deadline)
            ]
        )

    async def aclose(self) -> None:
        """Stop a call of the provider that is under way."""
        await self._single_flight.aclose()
