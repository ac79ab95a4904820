"""The embedded broker measured in its own process: start time, and CPU time to handle a heartbeat."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterable
from typing import Any, Final, TypeVar

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.net.connection import ServerConnection
from asyncgroup.errors import BrokerError
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import APIS
from asyncgroup.wire.codec import decode_response, encode_request
from asyncgroup.wire.message import Message, Request
from benchmarks.broker.member import HEARTBEAT, JOIN, SUBSCRIPTION, SYNC

__all__ = ["costs"]

ROUNDS: Final = 10
"""Measurements of heartbeat handling, of which the median counts: some may be interrupted by other processes."""

R = TypeVar("R", bound=Message)


async def costs(given: dict[str, Any]) -> dict[str, float]:
    """Return the seconds to start a cluster and to handle a heartbeat, medians, by names of `figures.COSTS`."""
    first = await _start(1)
    return {
        "start": statistics.median([await _start(1) for _ in range(given["starts"])]),
        "start-first": first,
        "start-three": statistics.median([await _start(3) for _ in range(given["starts"])]),
        "handling": await _handling(given["beats"]),
    }


async def _start(nodes: int) -> float:
    """Return the seconds until a new cluster listens."""
    begun = time.perf_counter()
    async with EmbeddedCluster(nodes=nodes):
        return time.perf_counter() - begun


class _Network(asyncio.Transport):
    """A transport without a network: it queues the frames that are written, or drops them while `is_counting`."""

    def __init__(self) -> None:
        super().__init__()
        self.written: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_counting = False

    def writelines(self, pieces: Iterable[Any]) -> None:
        frame = b"".join(pieces)
        if not self.is_counting:
            self.written.put_nowait(frame)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        pass


class _Client:
    """A client of a broker's connection object, without a network."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.network = _Network()
        connection.connection_made(self.network)

    async def request(self, request: Request[R], version: int) -> R:
        self.connection.data_received(b"".join(encode_request(request, version, 1, "member")))
        frame = (await self.network.written.get())[4:]
        response: R = decode_response(APIS[request.API_KEY].response, version, frame)  # type: ignore[assignment]
        return response

    async def joined(self) -> m.HeartbeatRequest:
        """Join a group and return the heartbeat request of its only member."""
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol("range", SUBSCRIPTION)
        request = m.JoinGroupRequest(
            "beating", 60_000, 60_000, "", protocol_type="consumer", protocols=[protocol]
        )
        request.member_id = (await self.request(request, JOIN)).member_id
        generation = (await self.request(request, JOIN)).generation_id
        await self.request(m.SyncGroupRequest("beating", generation, request.member_id), SYNC)
        return m.HeartbeatRequest("beating", generation, request.member_id)


async def _handling(beats: int) -> float:
    """Return the CPU seconds from a heartbeat's frame to the frame of its response."""
    async with EmbeddedCluster() as cluster:
        connection = ServerConnection(cluster._inner.nodes[1].listener)
        client = _Client(connection)
        beat = await client.joined()
        answer = await client.request(beat, HEARTBEAT)
        if answer.error_code:
            raise BrokerError(answer.error_code, "Heartbeat")
        frame = b"".join(encode_request(beat, HEARTBEAT, 1, "member"))
        client.network.is_counting = True
        share = max(1, beats // ROUNDS)
        found = []
        for _ in range(ROUNDS):
            begun = time.process_time()
            for _ in range(share):
                connection.data_received(frame)
            found.append((time.process_time() - begun) / share)
        connection.connection_lost(None)
    return statistics.median(found)
