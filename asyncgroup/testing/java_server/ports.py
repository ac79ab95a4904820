"""Free ports of the loopback interface for servers that are started as child processes."""

from __future__ import annotations

import socket
import sys
from typing import Final

__all__ = ["HOST", "ReservedPorts"]

HOST: Final = "127.0.0.1"


class ReservedPorts:
    """`count` different free TCP ports of the loopback interface.

    On Linux a socket that is bound but does not listen reserves the port: the system assigns it to no other socket, but
    a server that sets SO_REUSEADDR (as Java does) can bind to it, and while no server listens, connections are refused.
    Other systems do not let the server bind, so there the sockets are closed at once, and another program may get a
    port before the server binds to it: try again with new ports then.
    """

    def __init__(self, count: int) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                self._sockets.append(_bound())
            self.numbers: tuple[int, ...] = tuple(each.getsockname()[1] for each in self._sockets)
        except BaseException:
            self.close()
            raise
        if sys.platform != "linux":
            self.close()

    def close(self) -> None:
        """Release the ports."""
        for each in self._sockets:
            each.close()
        self._sockets.clear()


def _bound() -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((HOST, 0))
    except BaseException:
        one.close()
        raise
    return one
