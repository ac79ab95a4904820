"""The end of a listening server, in real time: what it accepts at this moment is connected, and nothing afterwards."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from asyncgroup.net.servers import close_server


@pytest.mark.asyncio(loop_factories=["real", "uvloop"])
async def test_a_connection_accepted_just_before_is_connected(recwarn: pytest.WarningsRecorder) -> None:
    made, closed = asyncio.Event(), asyncio.Event()

    class Accepted(asyncio.Protocol):
        def __init__(self) -> None:  # between the two turns in which asyncio accepts
            close_server(server, closed.set)

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set()
            transport.close()

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Accepted, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    with socket.create_connection(address, timeout=5) as client:
        client.setblocking(False)
        async with asyncio.timeout(5):
            await made.wait()
            assert await loop.sock_recv(client, 1) == b""
            await server.wait_closed()
    assert closed.is_set()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    gc.collect()
    assert [warning.message for warning in recwarn] == []


@pytest.mark.asyncio(loop_factories=["real"])  # uvloop accepts in one step, when it looks for what is ready
async def test_nothing_is_accepted_afterwards() -> None:
    loop = asyncio.get_running_loop()
    accepted = list[asyncio.Protocol]()

    def accept() -> asyncio.Protocol:
        accepted.append(asyncio.Protocol())
        return accepted[-1]

    server = await loop.create_server(accept, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname(), timeout=5) as client:
        client.setblocking(False)
        close_server(server)
        async with asyncio.timeout(5):
            await server.wait_closed()
            with pytest.raises(ConnectionResetError):
                await loop.sock_recv(client, 1)
    assert accepted == []
