"""An asyncio loop whose TCP connections go through an in-memory `Network`; the base of the virtual-time loop."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import NoReturn, TypeVar

from asyncgroup.errors import UsageError
from asyncgroup.testing.virtual.addresses import AddressInfo
from asyncgroup.testing.virtual.network import Network, stack_of
from asyncgroup.testing.virtual.server import VirtualServer

__all__ = ["InMemoryNetworkLoop"]

_ProtocolT = TypeVar("_ProtocolT", bound=asyncio.BaseProtocol)


class InMemoryNetworkLoop(asyncio.SelectorEventLoop):
    """A selector loop whose `create_server`, `create_connection` and `getaddrinfo` use `network` and open no sockets.

    TLS, datagrams, unix sockets and existing sockets raise NotImplementedError.
    """

    network: Network
    """The network of this loop."""

    def __init__(
        self, selector: selectors.BaseSelector | None = None, network: Network | None = None
    ) -> None:
        super().__init__(selector)
        self.network = network if network is not None else Network()
        self._stack = stack_of(self.network)
        try:
            self._stack.attach(self)
        except UsageError:
            super().close()
            raise

    def close(self) -> None:
        """Close the loop; connections and listeners that are still open in its network are dropped without a callback."""
        if not self.is_closed() and not self.is_running():
            self._stack.detach()
        super().close()

    async def getaddrinfo(  # type: ignore[override]  # typeshed ties each family to its own form
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002  # asyncio's name
        proto: int = 0,  # noqa: ARG002  # there is only one
        flags: int = 0,
    ) -> list[AddressInfo]:
        """Look `host` up in `network.hosts`; yields to the loop once. Raises `socket.gaierror` for an unknown name."""
        await asyncio.sleep(0)
        return self._stack.lookup(host, port, family=family, kind=type, flags=flags)

    async def create_connection(
        self,
        protocol_factory: Callable[[], _ProtocolT],
        host: str | None = None,
        port: int | None = None,
        *,
        family: int = 0,
        flags: int = 0,
        local_addr: tuple[str, int] | None = None,
        happy_eyeballs_delay: float | None = None,
        all_errors: bool = False,
        **options: object,
    ) -> tuple[asyncio.Transport, _ProtocolT]:
        """Connect through the in-memory network, trying each address of `host` in turn, as asyncio does."""
        _refuse_options("create_connection", options, "proto", "interleave")
        infos = await self.getaddrinfo(host, port, family=family, flags=flags)
        targets = [(info[4][0], info[4][1]) for info in infos]
        client, target = await self._stack.connect_any(
            targets, local_addr, delay=happy_eyeballs_delay, all_errors=all_errors
        )
        waiter: asyncio.Future[None] = self.create_future()
        transport, protocol = self._stack.open(protocol_factory, client, target, waiter)
        try:
            await waiter
        except BaseException:
            transport.close()
            raise
        return transport, protocol

    async def create_server(  # type: ignore[override]  # the overloads for sock= and ssl= have no meaning here
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | list[str] | tuple[str, ...] | None = None,
        port: int | None = None,
        *,
        family: int = 0,
        start_serving: bool = True,
        **options: object,
    ) -> VirtualServer:
        """Listen in the in-memory network; port 0 chooses a free virtual port.

        Without `host` it listens on every address. Raises OSError (EADDRINUSE) if an address is in use.
        """
        _refuse_options(
            "create_server", options, "flags", "backlog", "reuse_address", "reuse_port", "keep_alive"
        )
        await asyncio.sleep(0)
        hosts = [host] if isinstance(host, str) or host is None else list(host)
        server = self._stack.bind(protocol_factory, hosts, port or 0, family=family)
        if start_serving:
            await server.start_serving()
        return server

    async def create_datagram_endpoint(self, *_: object, **__: object) -> NoReturn:
        """Not in virtual time: there is TCP only."""
        raise _unsupported("create_datagram_endpoint")

    async def create_unix_connection(self, *_: object, **__: object) -> NoReturn:
        """Not in virtual time: there is TCP only."""
        raise _unsupported("create_unix_connection")

    async def create_unix_server(self, *_: object, **__: object) -> NoReturn:
        """Not in virtual time: there is TCP only."""
        raise _unsupported("create_unix_server")

    async def connect_accepted_socket(self, *_: object, **__: object) -> NoReturn:
        """Not in virtual time: real sockets are never touched."""
        raise _unsupported("connect_accepted_socket")


def _refuse_options(method: str, options: dict[str, object], *harmless: str) -> None:
    """Raise for options that the network does not support (ssl, sock, ...); `harmless` ones have no effect in memory."""
    for name, value in options.items():
        if value and name not in harmless:
            raise _unsupported(f"{method}({name}=...)")


def _unsupported(what: str) -> NotImplementedError:
    return NotImplementedError(
        f"{what} is not available on a VirtualTimeLoop: its network is in-memory plain TCP"
    )
