"""A node's port while the node is stopped: nobody else is given it, and it refuses connections."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["PortReservation"]


class PortReservation:
    """Keeps one port at a time. A socket that is bound and does not listen does that, on Linux."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def __repr__(self) -> str:
        held = self._socket
        return f"<PortReservation {'none' if held is None else held.getsockname()[1]}>"

    def take(self, host: str, port: int) -> None:
        """Keep this port from now on; where the system does not allow it, others may get it meanwhile."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        reservation = socket.socket(family, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reservation.bind((host, port))
            self._socket = reservation
            return
        reservation.close()

    def release(self) -> None:
        """Give the port back, if one is kept."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
