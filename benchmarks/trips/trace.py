"""Trace: which functions of the package run on a thread, and in which order.

A *trip* is what happens to one record between two points. Its files are those whose functions run in between. Control *comes
back* when a function is called in a file in which it was before during the trip, by another file or by the event loop; that a
function returns, or that a coroutine goes on after an await, does not count.
"""

from __future__ import annotations

import asyncio.selector_events
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

import asyncgroup

__all__ = ["RECEIVED", "WRITTEN", "Event", "Trace", "Trip"]

ROOT: Final = str(Path(asyncgroup.__file__).parent) + "/"

RECEIVED: Final = "received"
"""The point at which the event loop gives bytes of a connection to the package."""

WRITTEN: Final = "written "
"""The point at which the package writes a request to a connection; the number of the request's API follows."""

_RECEIVES: Final = ("data_received", "buffer_updated")
_WRITES: Final = ("write", "writelines")
"""Names by asyncio: of a protocol's methods, and of a transport's."""

_SUSPENDS: Final = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


class Event(NamedTuple):
    """A function begins or goes on, or a program marks a point; of a point `file` is empty and `function` its name."""

    kind: Literal["call", "resume", "point"]
    file: str
    """The path in the package."""
    function: str
    caller: str
    """The file of the nearest caller in the package; empty if the event loop has called."""


class Trip(NamedTuple):
    """The files between two points, in the order in which control came to them, and the calls that came back."""

    files: tuple[str, ...]
    backs: tuple[Event, ...]

    @classmethod
    def of(cls, events: Iterable[Event], rooms: tuple[str, ...] = ("",)) -> Trip:
        """Follow the events in the files whose paths begin with one of `rooms`."""
        files: dict[str, None] = {}
        backs = []
        for event in events:
            if event.kind == "point" or not event.file.startswith(rooms):
                continue
            if event.kind == "call" and event.file in files and event.caller != event.file:
                backs.append(event)
            files[event.file] = None
        return cls(tuple(files), tuple(backs))


class Trace:
    """Records the calls on the thread that enters it, until the end of the block."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._begun: dict[int, FrameType] = {}
        """Frames of coroutines and generators that have begun. They are kept, so that no other frame gets their number."""

    def __enter__(self) -> Self:
        sys.setprofile(self._on_event)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        self._begun.clear()

    def point(self, name: str, *, before: str = "") -> None:
        """Mark a point now, or in front of the last point `before`."""
        at = len(self.events)
        if before:
            at = max((i for i, each in enumerate(self.events) if each[::2] == ("point", before)), default=at)
        self.events.insert(at, Event("point", "", name, ""))

    def trips(self, start: str, end: str, *, last: bool = False) -> list[list[Event]]:
        """Return what happened between two points, once for each `end` that follows a `start`.

        `last`: from the nearest `start` before it, else from the first one after the `end` before it.
        """
        found: list[list[Event]] = []
        current: list[Event] | None = None
        for event in self.events:
            if event.kind != "point":
                if current is not None:
                    current.append(event)
            elif event.function.startswith(end) and current is not None:
                found.append(current)
                current = None
            elif event.function == start and (last or current is None):
                current = []
        return found

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:  # noqa: ARG002  the signature of a profile function
        if event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(ROOT):
            if code.co_name in _WRITES and code.co_filename == asyncio.selector_events.__file__:
                self.point(WRITTEN + _api_key(frame))
            return
        if code.co_name in _RECEIVES and not _caller(frame):
            self.point(RECEIVED)
        kind: Literal["call", "resume"] = "call"
        if code.co_flags & _SUSPENDS:
            if id(frame) in self._begun:
                kind = "resume"
            else:
                self._begun[id(frame)] = frame
        self.events.append(Event(kind, code.co_filename[len(ROOT) :], code.co_qualname, _caller(frame)))


def _api_key(frame: FrameType) -> str:
    """Return the API key in the head of a request, after its size; of a response that is a part of its correlation id."""
    written = frame.f_locals.get("data") or frame.f_locals["list_of_data"]
    head = bytes(written if isinstance(written, (bytes, bytearray, memoryview)) else b"".join(written))
    return str(int.from_bytes(head[4:6]))


def _caller(frame: FrameType) -> str:
    back = frame.f_back
    while back is not None:
        if back.f_code.co_filename.startswith(ROOT):
            return back.f_code.co_filename[len(ROOT) :]
        back = back.f_back
    return ""
