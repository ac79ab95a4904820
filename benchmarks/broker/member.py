"""A group member that is nothing but the protocol, so that a process can have a thousand and a broker is what's measured."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, TypeVar

from asyncgroup.broker.frames import MAX_REQUEST_BYTES, FrameBuffer
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import BrokerError
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message, Request
from asyncgroup.wire.protocol import APIS, decode_response, encode_request

__all__ = ["Member", "Story", "Wire"]

JOIN, SYNC, HEARTBEAT, LEAVE, COORDINATOR, METADATA = 5, 3, 3, 1, 1, 5
"""Versions that every broker here speaks, and clients of today use."""
SESSION_MS: Final = 60_000
SUBSCRIPTION: Final = b"\x00\x00" + b"\x00\x00\x00\x01" + b"\x00\x04wide" + b"\xff\xff\xff\xff"
"""A consumer's subscription, version 0, to the topic `wide`."""
WAIT: Final = 0.05
"""Seconds between heartbeats of a member whose group is not yet complete."""

R = TypeVar("R", bound=Message)


class Wire(asyncio.Protocol):
    """A connection with one request under way at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames = FrameBuffer(MAX_REQUEST_BYTES)
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._number = 0

    @classmethod
    async def open(cls, address: str) -> Wire:
        """Connect to `host:port`."""
        host, _, port = address.rpartition(":")
        _, wire = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Give the answer to whoever waits for it."""
        self._frames.feed(data)
        frame = self._frames.next_frame()
        if frame is not None and self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more will come."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the broker closed the connection"))

    async def ask(self, request: Request[R], version: int) -> R:
        """Send a request and wait for its response."""
        assert self._transport is not None
        self._number += 1
        self._answer = self._loop.create_future()
        self._transport.writelines(encode_request(request, version, self._number, "member"))
        frame = await self._answer
        response: R = decode_response(APIS[request.API_KEY].response, version, frame)  # type: ignore[assignment]
        return response

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


@dataclass
class Story:
    """What the members of one group know of each other: how many shall come, and the generation that has them all."""

    group_id: str
    size: int
    complete: int | None = None


class Member:
    """One member of a group, with a connection to its coordinator."""

    def __init__(self, story: Story, wire: Wire) -> None:
        self._story, self._wire = story, wire
        self.member_id = ""
        self.generation = -1

    async def settle(self) -> None:
        """Join, and again, until the group is complete and this member has its assignment."""
        while True:
            leads = await self._join()
            story = self._story
            assignments = _assignments(leads) if leads else []
            request = m.SyncGroupRequest(
                story.group_id, self.generation, self.member_id, assignments=assignments
            )
            answer = await self._wire.ask(request, SYNC)
            if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                continue
            _check(answer.error_code, "SyncGroup")
            if self.generation == story.complete or await self._is_last():
                return

    async def _join(self) -> list[str]:
        """Join; the ids of all members if this one leads, else none."""
        while True:
            protocol = m.JoinGroupRequest.JoinGroupRequestProtocol("range", SUBSCRIPTION)
            request = m.JoinGroupRequest(
                self._story.group_id,
                SESSION_MS,
                SESSION_MS,
                self.member_id,
                protocol_type="consumer",
                protocols=[protocol],
            )
            answer = await self._wire.ask(request, JOIN)
            self.member_id = answer.member_id
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue
            _check(answer.error_code, "JoinGroup")
            self.generation = answer.generation_id
            members = [each.member_id for each in answer.members]
            if len(members) == self._story.size:
                self._story.complete = self.generation
            return members

    async def _is_last(self) -> bool:
        """Wait in a group that isn't complete; True if it turns out to be, False to join anew."""
        while not await self.heartbeat():
            if self.generation == self._story.complete:
                return True
            await asyncio.sleep(WAIT)
        return False

    async def heartbeat(self) -> bool:
        """Whether the group rebalances."""
        request = m.HeartbeatRequest(self._story.group_id, self.generation, self.member_id)
        answer = await self._wire.ask(request, HEARTBEAT)
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return True
        _check(answer.error_code, "Heartbeat")
        return False

    async def leave(self) -> None:
        """Leave the group."""
        await self._wire.ask(m.LeaveGroupRequest(self._story.group_id, self.member_id), LEAVE)
        self._wire.close()


def _assignments(members: list[str]) -> list[m.SyncGroupRequest.SyncGroupRequestAssignment]:
    """Partition n of the topic `wide` for member n."""
    head, tail = (
        b"\x00\x00" + b"\x00\x00\x00\x01" + b"\x00\x04wide" + b"\x00\x00\x00\x01",
        b"\xff\xff\xff\xff",
    )
    made = m.SyncGroupRequest.SyncGroupRequestAssignment
    return [
        made(member_id, head + number.to_bytes(4, "big") + tail) for number, member_id in enumerate(members)
    ]


def _check(code: int, what: str) -> None:
    if code:
        raise BrokerError(code, what)
