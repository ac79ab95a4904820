"""FrameProtocol: frames do not depend on how the bytes arrive."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from asyncgroup.errors import ConnectionLost, ProtocolError
from asyncgroup.net.framing import READ_BYTES, READ_SECONDS, SIZE_BYTES, FrameProtocol, ReadTurns
from asyncgroup.net.tls_errors import Hints

HINTS = Hints(
    plaintext_listener="no TLS?",
    tls_listener="use it",
    tls_versions="allow more",
    trusted="ca_file",
    broker="a server",
)
LIMIT = 4 * READ_BYTES
EDGES = [0, 1, READ_BYTES - 5, READ_BYTES - 4, READ_BYTES - 3, READ_BYTES, READ_BYTES + 1, LIMIT]


class Transport:
    """A transport with only what FrameProtocol uses."""

    aborted = False
    is_paused = False

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False


def protocol(
    limit: int = LIMIT, turns: ReadTurns | None = None
) -> tuple[FrameProtocol, list[bytes], list[Any], Transport]:
    frames: list[bytes] = []
    ends: list[Any] = []
    made, transport = (
        FrameProtocol(lambda frame: frames.append(bytes(frame)), ends.append, limit, HINTS, turns),
        Transport(),
    )
    made.connection_made(transport)  # type: ignore[arg-type]
    return made, frames, ends, transport


def feed(made: FrameProtocol, data: bytes, cuts: list[int]) -> None:
    """Pass `data` to the protocol in pieces of these sizes (then of 4096 bytes), as a selector event loop does."""
    position, sizes = 0, iter(cuts)
    while position < len(data):
        buffer = made.get_buffer(-1)
        assert len(buffer) > 0, "asyncio does not accept an empty buffer"
        count = min(len(buffer), next(sizes, 4096), len(data) - position)
        buffer[:count] = data[position : position + count]
        made.buffer_updated(count)
        position += count


def framed(bodies: list[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(SIZE_BYTES, "big") + body for body in bodies)


bodies = st.lists(
    st.one_of(st.binary(max_size=40), st.sampled_from(EDGES).map(lambda size: bytes([size % 251]) * size)),
    max_size=6,
)


@given(bodies, st.lists(st.integers(1, READ_BYTES * 2), max_size=30))
@example([b"x" * READ_BYTES, b"", b"y"], [1, 1, 1, 1, 1])
@example([b"", b"", b"x" * (READ_BYTES - 4)], [4, 2, 2, READ_BYTES * 2])
def test_frames_do_not_depend_on_how_the_bytes_are_split(bodies: list[bytes], cuts: list[int]) -> None:
    made, frames, ends, transport = protocol()
    feed(made, framed(bodies), cuts)
    assert frames == bodies
    assert not ends
    assert not transport.aborted


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_byte_by_byte(bodies: list[bytes]) -> None:
    made, frames, _, _ = protocol()
    data = framed(bodies)
    feed(made, data, [1] * len(data))
    assert frames == bodies


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ((LIMIT + 1).to_bytes(4, "big"), f"a frame size of {LIMIT + 1} bytes"),
        ((-1).to_bytes(4, "big", signed=True), "a frame size of -1 bytes"),
        (b"HTTP", "HTTP server"),
        (b"\x15\x03\x03\x00", "expects TLS"),
        (b"SSH-", "SSH server"),
    ],
)
def test_an_invalid_frame_size_ends_the_connection(head: bytes, expected: str) -> None:
    made, frames, ends, transport = protocol()
    feed(made, framed([b"good"]) + head + b"more", [])
    assert frames == [b"good"]
    assert transport.aborted
    made.connection_lost(None)
    (error,) = ends
    assert isinstance(error, ProtocolError)
    assert expected in str(error)


def test_a_frame_too_large_for_memory_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(_size: int) -> bytearray:
        raise MemoryError

    made, frames, ends, transport = protocol()
    monkeypatch.setattr("asyncgroup.net.framing.bytearray", no_more, raising=False)
    feed(made, (3 * READ_BYTES).to_bytes(SIZE_BYTES, "big"), [])
    assert transport.aborted
    made.connection_lost(None)
    assert not frames
    (error,) = ends
    assert isinstance(error, ProtocolError)
    assert str(error) == f"not enough memory for a frame of {3 * READ_BYTES} bytes"


def test_the_largest_frame_is_allowed() -> None:
    made, frames, _, transport = protocol(limit=10)
    feed(made, framed([b"0123456789"]), [])
    assert frames == [b"0123456789"]
    assert not transport.aborted


def test_connection_lost_is_reported() -> None:
    made, _, ends, _ = protocol()
    made.connection_lost(ConnectionResetError("reset"))
    assert isinstance(ends[0], ConnectionLost)
    assert "reset" in str(ends[0])
    made, _, ends, _ = protocol()
    made.connection_lost(None)
    assert ends == [None]


async def test_drain_returns_when_the_buffer_has_room_or_the_connection_ends() -> None:
    made, _, _, _ = protocol()
    await asyncio.wait_for(made.drain(), 1)
    for wake in (made.resume_writing, lambda: made.connection_lost(None)):
        made.pause_writing()
        waiting = asyncio.create_task(made.drain())
        await asyncio.sleep(0)
        assert not waiting.done()
        wake()
        await asyncio.wait_for(waiting, 1)


# --- long runs of frames ------------------------------------------------------------------------------------------------


class Turns(ReadTurns):
    """Interrupts where the test says so."""

    def __init__(self, over: Iterator[bool]) -> None:
        self._over = over
        self.later: list[Callable[[], None]] = []

    def is_over(self) -> bool:
        return next(self._over, False)

    def continue_later(self, go_on: Callable[[], None]) -> None:
        self.later.append(go_on)

    def run(self) -> None:
        while self.later:
            self.later.pop(0)()


small = st.lists(st.integers(0, 300).map(lambda size: bytes([size % 251]) * size), max_size=60)


@given(
    st.one_of(bodies, small),
    st.lists(st.integers(1, READ_BYTES * 2), max_size=30),
    st.lists(st.booleans(), max_size=40),
    st.booleans(),
)
def test_a_run_of_frames_that_is_interrupted_goes_on_where_it_was(
    bodies: list[bytes], cuts: list[int], over: list[bool], is_lost: bool
) -> None:
    turns = Turns(iter(over))
    made, frames, ends, transport = protocol(turns=turns)
    data, position, sizes = framed(bodies), 0, iter(cuts)
    while position < len(data):
        assert not transport.is_paused
        buffer = made.get_buffer(-1)
        count = min(len(buffer), next(sizes, 4096), len(data) - position)
        buffer[:count] = data[position : position + count]
        made.buffer_updated(count)
        position += count
        assert transport.is_paused == bool(turns.later)
        if position < len(data) or not is_lost:
            turns.run()
    if is_lost:
        made.connection_lost(None)
        assert ends == [None]
        turns.run()
    assert frames == bodies


class Loop:
    """A loop with only what ReadTurns uses. Each frame takes 0.2 ms."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: list[Any] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.ready.append((callback, arguments))

    def on_frame(self, _: bytes | bytearray) -> None:
        self.now += 0.0002

    def run_turn(self) -> None:
        ready, self.ready = self.ready, []
        for callback, arguments in ready:
            callback(*arguments)


def test_other_callbacks_have_a_turn_every_ten_milliseconds() -> None:
    """Two buffers in one turn of the loop, with 300 frames each, would hold it for 120 ms."""
    loop, turns = Loop(), []
    made = FrameProtocol(loop.on_frame, lambda _: None, LIMIT, HINTS, ReadTurns(loop))  # type: ignore[arg-type]
    transport = Transport()
    made.connection_made(transport)  # type: ignore[arg-type]
    data = framed([b"x" * 100] * 300)
    buffers = 0
    while loop.ready or buffers < 2:
        if not transport.is_paused and buffers < 2:
            feed(made, data, [READ_BYTES])
            buffers += 1
            continue
        turns.append(loop.now)
        loop.run_turn()
    assert loop.now == pytest.approx(0.12)
    for before, after in itertools.pairwise([0.0, *turns]):
        assert after - before < READ_SECONDS + 2 * 8 * 0.0002
    assert len(turns) > 9
