"""Ends connections after a given number of bytes."""

from __future__ import annotations

from typing import Literal, TypeAlias

import pytest

from asyncgroup.testing.virtual.connection import Pipe, Signal

__all__ = ["ByteCuts", "Direction", "End"]

Direction: TypeAlias = Literal["requests", "responses"]
End: TypeAlias = Literal[Signal.EOF, Signal.RESET]


class ByteCuts:
    """Counts the bytes of all connections from `host` in one direction, and ends the one with a certain byte before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
        self._host = host
        self._direction: Direction = "requests"
        self._left: list[int] = []
        self._end: End = Signal.EOF
        self._ended: set[Pipe] = set()
        self.bytes = 0
        self._send = Pipe.send
        monkeypatch.setattr(Pipe, "send", lambda pipe, item: self.send(pipe, item))

    def start(self, direction: Direction, *after: int, end: End = Signal.EOF) -> None:
        """End a connection after that many bytes in this direction, another one after so many more, and so on."""
        self._direction, self._left, self._end, self.bytes = direction, list(after), end, 0
        self._ended.clear()

    def send(self, pipe: Pipe, item: bytes | Signal) -> None:
        connection = pipe.connection
        is_up = pipe is connection.up
        if pipe in self._ended:
            return
        counts = connection.client[0] == self._host and is_up == (self._direction == "requests")
        if counts and not isinstance(item, Signal):
            self.bytes += len(item)
            if self._left and len(item) >= self._left[0]:
                length = self._left.pop(0)
                if length:
                    self._send(pipe, bytes(item)[:length])
                self._send(pipe, self._end)
                self._ended.add(pipe)
                return
            if self._left:
                self._left[0] -= len(item)
        self._send(pipe, item)
