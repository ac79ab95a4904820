"""A group member that only sends protocol requests: a process can run a thousand, so the broker is what is measured."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, TypeVar

from asyncgroup.broker.net.frames import MAX_REQUEST_BYTES, FrameBuffer
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import BrokerError
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import APIS
from asyncgroup.wire.codec import decode_response, encode_request
from asyncgroup.wire.message import Message, Request

__all__ = ["GroupProgress", "Member", "RawConnection"]

JOIN, SYNC, HEARTBEAT, LEAVE, FIND_COORDINATOR, METADATA = 5, 3, 3, 1, 1, 5
"""Request versions that all these brokers support and current clients use."""
SESSION_MS: Final = 60_000
SUBSCRIPTION: Final = b"\x00\x00" + b"\x00\x00\x00\x01" + b"\x00\x04wide" + b"\xff\xff\xff\xff"
"""A consumer's subscription, version 0, to the topic `wide`."""
HEARTBEAT_SECONDS: Final = 0.05
"""Seconds between heartbeats of a member while its group is incomplete."""

R = TypeVar("R", bound=Message)


class RawConnection(asyncio.Protocol):
    """A connection with one request in flight at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames = FrameBuffer(MAX_REQUEST_BYTES)
        self._response: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._number = 0

    @classmethod
    async def open(cls, address: str) -> RawConnection:
        """Connect to `host:port`."""
        host, _, port = address.rpartition(":")
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass the response to the waiting request."""
        self._frames.feed(data)
        frame = self._frames.next_frame()
        if frame is not None and self._response is not None and not self._response.done():
            self._response.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the waiting request."""
        if self._response is not None and not self._response.done():
            self._response.set_exception(exc or ConnectionResetError("the broker closed the connection"))

    async def request(self, request: Request[R], version: int) -> R:
        """Send a request and wait for its response."""
        assert self._transport is not None
        self._number += 1
        self._response = self._loop.create_future()
        self._transport.writelines(encode_request(request, version, self._number, "member"))
        frame = await self._response
        response: R = decode_response(APIS[request.API_KEY].response, version, frame)  # type: ignore[assignment]
        return response

    def close(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()


@dataclass
class GroupProgress:
    """State shared by the members of one group: its final size, and the first generation with all members."""

    group_id: str
    size: int
    complete_generation: int | None = None


class Member:
    """One member of a group, with a connection to its coordinator."""

    def __init__(self, progress: GroupProgress, connection: RawConnection) -> None:
        self._progress = progress
        self._connection = connection
        self.member_id = ""
        self.generation = -1

    async def join_until_stable(self) -> None:
        """Join, repeatedly, until the group is complete and this member has its assignment."""
        while True:
            member_ids = await self._join()
            progress = self._progress
            assignments = _assignments(member_ids) if member_ids else []
            request = m.SyncGroupRequest(
                progress.group_id, self.generation, self.member_id, assignments=assignments
            )
            answer = await self._connection.request(request, SYNC)
            if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                continue
            _check(answer.error_code, "SyncGroup")
            if self.generation == progress.complete_generation or await self._is_last():
                return

    async def _join(self) -> list[str]:
        """Join; return the ids of all members if this one is the leader, else an empty list."""
        while True:
            protocol = m.JoinGroupRequest.JoinGroupRequestProtocol("range", SUBSCRIPTION)
            request = m.JoinGroupRequest(
                self._progress.group_id,
                SESSION_MS,
                SESSION_MS,
                self.member_id,
                protocol_type="consumer",
                protocols=[protocol],
            )
            answer = await self._connection.request(request, JOIN)
            self.member_id = answer.member_id
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue
            _check(answer.error_code, "JoinGroup")
            self.generation = answer.generation_id
            members = [each.member_id for each in answer.members]
            if len(members) == self._progress.size:
                self._progress.complete_generation = self.generation
            return members

    async def _is_last(self) -> bool:
        """Wait while the group is incomplete; return True if it is complete, False to join again."""
        while not await self.heartbeat():
            if self.generation == self._progress.complete_generation:
                return True
            await asyncio.sleep(HEARTBEAT_SECONDS)
        return False

    async def heartbeat(self) -> bool:
        """Send a heartbeat; return whether the group rebalances."""
        request = m.HeartbeatRequest(self._progress.group_id, self.generation, self.member_id)
        answer = await self._connection.request(request, HEARTBEAT)
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return True
        _check(answer.error_code, "Heartbeat")
        return False

    async def leave(self) -> None:
        """Leave the group."""
        await self._connection.request(m.LeaveGroupRequest(self._progress.group_id, self.member_id), LEAVE)
        self._connection.close()


def _assignments(members: list[str]) -> list[m.SyncGroupRequest.SyncGroupRequestAssignment]:
    """Assign partition n of the topic `wide` to member n."""
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
