"""Reservation of a stopped node's port: no other process gets it, and connections to it are refused."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["PortReservation"]


class PortReservation:
    """Reserves one port at a time, by a socket that is bound but does not listen (works on Linux)."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def __repr__(self) -> str:
        held = self._socket
        return f"<PortReservation {'none' if held is None else held.getsockname()[1]}>"

    def reserve(self, host: str, port: int) -> None:
        """Reserve the port; on systems that do not allow this, another process may get it."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        reservation = socket.socket(family, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reservation.bind((host, port))
            self._socket = reservation
            return
        reservation.close()

    def release(self) -> None:
        """Release the reserved port, if any."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
