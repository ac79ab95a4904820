"""One direction of an in-memory TCP connection.

What is sent waits in the pipe for `latency` seconds and then until the receiving protocol takes it; that is TCP's
window and the kernel's buffers in one. What is special about the receiving end - it is not accepted yet, it does not
read now, its socket is closed - decides what happens to the head of the queue when it arrives.
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
    """What travels through a pipe besides bytes, in order with them."""

    OPEN = "the handshake is done: the listener may accept"
    EOF = "no more bytes will come"
    RESET = "the socket at the other end is gone"


class Pipe:
    """One direction of a link."""

    back: Pipe
    """The other direction."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.sender: VirtualTransport | None = None
        self.receiver: VirtualTransport | None = None
        self.closed = False
        """The receiving socket is closed: bytes that arrive are answered by a reset."""
        self._loop = link.loop
        self._dead = False
        self._items: deque[tuple[float, bytes | Signal]] = deque()
        self._head_read = 0  # of the bytes at the head, so many went to the receiver already
        self._size = 0
        self._wakeup: asyncio.Handle | None = None

    @property
    def window_left(self) -> int:
        """How many bytes the pipe takes before the sender has to keep them."""
        return max(0, self.link.network.window - self._size)

    def send(self, item: bytes | Signal) -> None:
        """Put bytes or a signal on their way; they arrive `latency` seconds from now, never before what was sent earlier."""
        if self._dead:
            return
        latency = self.link.network.latency_between(self.link.client, self.link.server)
        self._items.append((self._loop.time() + latency, item))
        if not isinstance(item, Signal):
            self._size += len(item)
        self.schedule_delivery()

    def schedule_delivery(self) -> None:
        """Plan the next delivery, if there is one and nothing stands against it."""
        if self._wakeup is not None or not self._deliverable():
            return
        arrival = self._items[0][0]
        if arrival <= self._loop.time():
            self._wakeup = self._loop.call_soon(self._deliver)
        else:
            self._wakeup = self._loop.call_at(arrival, self._deliver)

    def read(self, limit: int) -> bytes:
        """Up to `limit` of the bytes that have arrived; the sender may fill the room they leave."""
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
        """The receiving socket is closed. Returns whether it left bytes unread, which TCP answers by a reset."""
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
        """Forget everything, now and later."""
        self._dead = True
        self._clear()

    def _clear(self) -> None:
        self._items.clear()
        self._head_read = self._size = 0
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None

    def _deliverable(self) -> bool:
        if not self._items or self.link.network.is_blackholed(self.link):
            return False
        waits_for_reader = self._items[0][1] not in (Signal.OPEN, Signal.RESET) and not self.closed
        return not waits_for_reader or (self.receiver is not None and self.receiver.is_reading())

    def _deliver(self) -> None:
        """Hand the head of the queue over: one chunk, or one signal."""
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
        """Something came to a closed socket: bytes are answered by a reset, an end of file by nothing."""
        bytes_came = any(not isinstance(item, Signal) for _, item in self._items)
        self._clear()
        if bytes_came:
            self.back.send(Signal.RESET)
        if self.sender is not None:
            self.sender.window_opened()
