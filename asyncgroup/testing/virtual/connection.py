"""One in-memory TCP connection: two pipes, one for each direction, and `Link`, the connection as a test sees it.

A pipe is a queue of bytes and signals on their way to the receiver. An item waits in the pipe for the latency, and then
until the receiving protocol reads it; the queue stands for TCP's window and the kernel's buffers together. What happens to
the head of the queue when it arrives depends on the receiving end: the connection may not be accepted yet, reading may be
paused, or the socket may be closed.

The transports at both ends (`transport.py`) read and write the pipes; the pipes call them by `EndCallbacks`.
"""

from __future__ import annotations

import asyncio
import enum
import errno
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from asyncgroup.testing.virtual.addresses import Address
from asyncgroup.testing.virtual.conditions import NetworkConditions

__all__ = ["EndCallbacks", "Link", "Pipe", "Signal", "TcpConnection"]


class Signal(enum.Enum):
    """What a pipe carries besides bytes, in order with them (compare TCP's SYN, FIN and RST)."""

    OPEN = "the handshake is done: the listener may accept"
    EOF = "no more bytes will come"
    RESET = "the socket at the other end is closed"


class EndCallbacks(NamedTuple):
    """The transport at one end of a connection, and what the pipes call there."""

    transport: asyncio.Transport
    data_arrived: Callable[[int], None]
    """Read one chunk of up to this number of bytes from the inbound pipe."""
    eof_arrived: Callable[[], None]
    reset_by_peer: Callable[[], None]
    window_opened: Callable[[], None]
    """The outbound pipe can take bytes again."""
    fail: Callable[[Exception | None], None]


class Link:
    """An open connection of a `Network`; `client` and `server` are the addresses (ip, port) of its ends."""

    def __init__(self, connection: TcpConnection) -> None:
        self._connection = connection
        self.client = connection.client
        self.server = connection.server

    def __repr__(self) -> str:
        client, server = (f"{ip}:{port}" for ip, port in (self.client, self.server))
        ends = {"client": self._connection.down.receiver, "server": self._connection.up.receiver}
        state = ", ".join(name for name, end in ends.items() if end is not None) or "neither end"
        return f"<Link {client} -> {server}, open at: {state}>"

    def open_ends(self) -> tuple[asyncio.Transport, ...]:
        """Return the transports whose protocol has not received `connection_lost` yet, the client's first."""
        return tuple(end.transport for end in self._connection.open_ends())

    def cut(self) -> None:
        """Reset the connection at both ends at once. Bytes in transit are lost."""
        self._connection.cut()


class TcpConnection:
    """The pipes between `client` and `server`, both (ip, port), of a connection; the state behind a `Link`.

    `on_open` is called when the opening signal arrives at the server, `on_end` when both ends are closed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        conditions: NetworkConditions,
        client: Address,
        server: Address,
        on_open: Callable[[TcpConnection], None],
        on_end: Callable[[TcpConnection], None],
    ) -> None:
        self.loop = loop
        self.conditions = conditions
        self.client = client
        self.server = server
        self.on_open = on_open
        self._on_end = on_end
        self.up = Pipe(self)  # client to server
        self.down = Pipe(self)  # server to client
        self.up.back = self.down
        self.down.back = self.up
        self.link = Link(self)

    def open_ends(self) -> tuple[EndCallbacks, ...]:
        """Return the ends whose protocol has not received `connection_lost` yet, the client's first."""
        return tuple(end for end in (self.down.receiver, self.up.receiver) if end is not None)

    def reset(self) -> None:
        """Answer the opening signal by a reset: the server's end does not accept."""
        self.up.close()
        self.down.send(Signal.RESET)
        self.end_closed()

    def end_closed(self) -> None:
        """End the connection if both ends have closed their sockets; called after each of them."""
        if self.up.closed and self.down.closed:
            self.drop()

    def cut(self) -> None:
        """Reset the connection at both ends at once. Bytes in transit are lost."""
        ends = self.open_ends()
        self.drop()
        for end in ends:
            end.fail(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def drop(self) -> None:
        """Discard everything in transit and deliver nothing from now on."""
        self.up.drop()
        self.down.drop()
        self._on_end(self)

    def resume(self) -> None:
        """Continue delivery after a fault was removed."""
        self.up.schedule_delivery()
        self.down.schedule_delivery()

    def is_blackholed(self) -> bool:
        """True while a fault stops delivery on this connection."""
        return self.conditions.is_blackholed(self.client, self.server)


class Pipe:
    """One direction of a connection."""

    back: Pipe
    """The other direction."""

    def __init__(self, connection: TcpConnection) -> None:
        self.connection = connection
        self.sender: EndCallbacks | None = None
        self.receiver: EndCallbacks | None = None
        self.closed = False
        """Whether the receiving socket is closed: bytes that arrive are then answered by a reset."""
        self._loop = connection.loop
        self._conditions = connection.conditions
        self._dead = False  # set by `drop`: everything sent from now on is discarded
        self._items: deque[tuple[float, bytes | Signal]] = deque()
        """(arrival time, item), in order of arrival."""
        self._head_read = 0  # bytes of the head item that the receiver has read already
        self._size = 0  # bytes in the queue that the receiver has not read
        self._wakeup: asyncio.Handle | None = None  # the scheduled `_deliver`, at most one

    @property
    def window_left(self) -> int:
        """The bytes that can be sent now; the sender has to buffer the rest."""
        return max(0, self._conditions.window - self._size)

    def send(self, item: bytes | Signal) -> None:
        """Send bytes or a signal. They arrive after the current latency, and never before what was sent earlier."""
        if self._dead:
            return
        latency = self._conditions.latency_between(self.connection.client, self.connection.server)
        self._items.append((self._loop.time() + latency, item))
        if not isinstance(item, Signal):
            self._size += len(item)
        self.schedule_delivery()

    def schedule_delivery(self) -> None:
        """Schedule the delivery of the head item, if it can be delivered and no delivery is scheduled yet."""
        if self._wakeup is not None or not self._deliverable():
            return
        arrival = self._items[0][0]
        if arrival <= self._loop.time():
            self._wakeup = self._loop.call_soon(self._deliver)
        else:
            self._wakeup = self._loop.call_at(arrival, self._deliver)

    def read(self, limit: int) -> bytes:
        """Return up to `limit` of the bytes that have arrived, and let the sender send as many more."""
        parts: list[bytes | memoryview] = []
        wanted, now = limit, self._loop.time()
        while wanted and self._items:
            arrival, item = self._items[0]
            if arrival > now or isinstance(item, Signal):
                break
            rest = len(item) - self._head_read
            if rest > wanted:
                parts.append(memoryview(item)[self._head_read : self._head_read + wanted])
                self._head_read += wanted
                wanted = 0
            else:
                parts.append(memoryview(item)[self._head_read :] if self._head_read else item)
                self._items.popleft()
                self._head_read = 0
                wanted -= rest
        self._size -= limit - wanted
        if self.sender is not None:
            self.sender.window_opened()
        return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)

    def close(self) -> bool:
        """Close the receiving socket. Returns whether bytes were left unread, which TCP answers by a reset."""
        self.closed = True
        self.receiver = None
        now = self._loop.time()
        unread = (
            any(at <= now and not isinstance(item, Signal) for at, item in self._items)
            and not self.connection.is_blackholed()
        )
        if unread:
            self._clear()
        self.schedule_delivery()
        return unread

    def drop(self) -> None:
        """Discard what is in the pipe and everything that is sent later."""
        self._dead = True
        self._clear()

    def _clear(self) -> None:
        self._items.clear()
        self._head_read = 0
        self._size = 0
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None

    def _deliverable(self) -> bool:
        """Whether the head item can be delivered once it has arrived: OPEN and RESET do not wait for a reader."""
        if not self._items or self.connection.is_blackholed():
            return False
        waits_for_reader = self._items[0][1] not in (Signal.OPEN, Signal.RESET) and not self.closed
        return not waits_for_reader or (self.receiver is not None and self.receiver.transport.is_reading())

    def _deliver(self) -> None:
        """Deliver the head of the queue: one chunk of bytes, or one signal."""
        self._wakeup = None
        if not self._deliverable():
            return
        item = self._items[0][1]
        if item is Signal.OPEN:
            self._items.popleft()
            self.connection.on_open(self.connection)
        elif self.closed or self.receiver is None:
            self._discard()
        elif item is Signal.RESET:
            self._items.popleft()
            self.receiver.reset_by_peer()
        elif item is Signal.EOF:
            self._items.popleft()
            self.receiver.eof_arrived()
        else:
            self.receiver.data_arrived(self._conditions.chunk_size)
        self.schedule_delivery()

    def _discard(self) -> None:
        """Discard what arrived at a closed socket; bytes are answered by a reset, an end of file is not."""
        bytes_came = any(not isinstance(item, Signal) for _, item in self._items)
        self._clear()
        if bytes_came:
            self.back.send(Signal.RESET)
        if self.sender is not None:
            self.sender.window_opened()
