"""One direction of an in-memory TCP connection: a queue of bytes and signals on their way to the receiver.

An item waits in the pipe for `latency` seconds, and then until the receiving protocol reads it; the queue stands for
TCP's window and the kernel's buffers together. What happens to the head of the queue when it arrives depends on the
receiving end: the connection may not be accepted yet, reading may be paused, or the socket may be closed.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgroup.testing.link import Link
    from asyncgroup.testing.transport import VirtualTransport

__all__ = ["Pipe", "Signal"]


class Signal(enum.Enum):
    """What a pipe carries besides bytes, in order with them (compare TCP's SYN, FIN and RST)."""

    OPEN = "the handshake is done: the listener may accept"
    EOF = "no more bytes will come"
    RESET = "the socket at the other end is closed"


class Pipe:
    """One direction of a link."""

    back: Pipe
    """The other direction."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.sender: VirtualTransport | None = None
        self.receiver: VirtualTransport | None = None
        self.closed = False
        """Whether the receiving socket is closed: bytes that arrive are then answered by a reset."""
        self._loop = link.loop
        self._dead = False  # set by `drop`: everything sent from now on is discarded
        self._items: deque[tuple[float, bytes | Signal]] = deque()
        """(arrival time, item), in order of arrival."""
        self._head_read = 0  # bytes of the head item that the receiver has read already
        self._size = 0  # bytes in the queue that the receiver has not read
        self._wakeup: asyncio.Handle | None = None  # the scheduled `_deliver`, at most one

    @property
    def window_left(self) -> int:
        """The bytes that can be sent now; the sender has to buffer the rest."""
        return max(0, self.link.network.window - self._size)

    def send(self, item: bytes | Signal) -> None:
        """Send bytes or a signal. They arrive after the current latency, and never before what was sent earlier."""
        if self._dead:
            return
        latency = self.link.network.latency_between(self.link.client, self.link.server)
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
        blackholed = self.link.network.is_blackholed(self.link)
        unread = (
            any(at <= now and not isinstance(item, Signal) for at, item in self._items) and not blackholed
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
        if not self._items or self.link.network.is_blackholed(self.link):
            return False
        waits_for_reader = self._items[0][1] not in (Signal.OPEN, Signal.RESET) and not self.closed
        return not waits_for_reader or (self.receiver is not None and self.receiver.is_reading())

    def _deliver(self) -> None:
        """Deliver the head of the queue: one chunk of bytes, or one signal."""
        self._wakeup = None
        if not self._deliverable():
            return
        item = self._items[0][1]
        if item is Signal.OPEN:
            self._items.popleft()
            self.link.accept()
        elif self.closed or self.receiver is None:
            self._discard()
        elif item is Signal.RESET:
            self._items.popleft()
            self.receiver.reset_by_peer()
        elif item is Signal.EOF:
            self._items.popleft()
            self.receiver.eof_arrived()
        else:
            self.receiver.data_arrived(self.link.network.chunk_size)
        self.schedule_delivery()

    def _discard(self) -> None:
        """Discard what arrived at a closed socket; bytes are answered by a reset, an end of file is not."""
        bytes_came = any(not isinstance(item, Signal) for _, item in self._items)
        self._clear()
        if bytes_came:
            self.back.send(Signal.RESET)
        if self.sender is not None:
            self.sender.window_opened()
