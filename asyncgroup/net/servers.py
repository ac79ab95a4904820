"""The end of a listening server, without the loss of a connection that it accepts at this moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

__all__ = ["close_server"]


def close_server(server: asyncio.Server, closed: Callable[[], object] | None = None) -> None:
    """Accept no more, and close the server in the loop's next turn; then `closed` is called.

    asyncio accepts in two turns of the loop: it takes the socket, then creates the transport. A server that is closed
    between them loses the socket, which stays open until it is collected, and its client waits (CPython gh-109564). So
    the first turn is prevented at once, and the server is closed after the second. What was accepted is connected to a
    protocol after the call of this function, which should close it.
    """
    loop = server.get_loop()
    for listening in server.sockets:
        if listening.fileno() >= 0:  # not in virtual time
            with contextlib.suppress(NotImplementedError):  # on Windows
                loop.remove_reader(listening.fileno())
    loop.call_soon(_close, server, closed)


def _close(server: asyncio.Server, closed: Callable[[], object] | None) -> None:
    server.close()
    if closed is not None:
        closed()
