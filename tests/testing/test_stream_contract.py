"""The same tests on asyncio's TCP transport and on the in-memory one, which must behave alike."""

from __future__ import annotations

import asyncio
import errno

import pytest
import pytest_asyncio

from tests.testing.streams import HOST, BufferedReader, Reader, connected, port_of

pytestmark = pytest.mark.asyncio(loop_factories=["real", "virtual"])

MIB = 1024 * 1024


def pattern(size: int) -> bytes:
    """Return bytes that reveal lost, duplicated or swapped parts (251 is prime: no repetition at a power of two)."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


async def serve_once(client_connected):
    """Start a stream server; return it, its port, and a future that is done when `client_connected` has ended."""
    ended = asyncio.get_running_loop().create_future()

    async def handle(reader, writer):
        try:
            await client_connected(reader, writer)
            writer.close()
            await writer.wait_closed()
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    server = await asyncio.start_server(handle, HOST, 0)
    return server, port_of(server), ended


async def echo(reader, writer):
    while data := await reader.read(64 * 1024):
        writer.write(data)
        await writer.drain()


# -- streams ------------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def pair():
    async with connected(Reader, Reader) as pair:
        yield pair


async def test_streams_echo_lines():
    server, port, ended = await serve_once(echo)
    reader, writer = await asyncio.open_connection(HOST, port)
    for line in (b"one\n", b"two\n", b"three\n"):
        writer.write(line)
        assert await reader.readline() == line
    writer.close()
    await writer.wait_closed()
    await ended
    server.close()
    await server.wait_closed()
    assert not server.is_serving()


async def test_five_mebibytes_are_echoed():
    payload = pattern(5 * MIB)
    server, port, ended = await serve_once(echo)
    reader, writer = await asyncio.open_connection(HOST, port)

    async def send():
        for start in range(0, len(payload), 100_000):
            writer.write(payload[start : start + 100_000])
            await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    assert await reader.read(-1) == payload
    await sending
    await ended
    writer.close()
    await writer.wait_closed()
    server.close()


async def test_five_mebibytes_in_one_write(pair):
    payload = pattern(5 * MIB)
    pair.client.transport.write(payload)
    assert await pair.server.received(len(payload)) == payload


async def test_an_early_end_raises_incomplete_read():
    async def answer_short(_, writer):
        writer.write(b"abc")

    server, port, ended = await serve_once(answer_short)
    reader, writer = await asyncio.open_connection(HOST, port)
    with pytest.raises(asyncio.IncompleteReadError) as caught:
        await reader.readexactly(10)
    assert caught.value.partial == b"abc"
    writer.close()
    await writer.wait_closed()
    await ended
    server.close()


# -- ends ---------------------------------------------------------------------------------------------------------------


async def test_the_order_of_callbacks(pair):
    pair.client.transport.write(b"x")
    await pair.server.received(1)
    pair.client.transport.close()
    assert pair.client.calls == ["made"], "connection_lost must not run inside close()"
    assert await pair.client.lost is None
    assert await pair.server.lost is None
    assert pair.server.calls == ["made", "data", "eof", "lost"]
    assert pair.client.calls == ["made", "lost"]


async def test_after_a_half_close_the_answer_arrives():
    async with connected(lambda: Reader(keep_open=True), lambda: Reader(keep_open=True)) as pair:
        assert pair.client.transport.can_write_eof()
        pair.client.transport.write(b"question")
        pair.client.transport.write_eof()
        await pair.server.eof
        assert bytes(pair.server.data) == b"question"
        assert not pair.server.transport.is_closing()
        pair.server.transport.write(b"answer")
        assert await pair.client.received(6) == b"answer"
        pair.server.transport.close()
        await pair.client.eof
        assert not pair.client.transport.is_closing()


async def test_write_eof_comes_after_everything_buffered():
    payload = pattern(3 * MIB)
    async with connected(Reader, lambda: Reader(keep_open=True)) as pair:
        pair.server.transport.pause_reading()
        pair.client.transport.write(payload)
        pair.client.transport.write_eof()
        pair.server.transport.resume_reading()
        await pair.server.eof
        assert bytes(pair.server.data) == payload


async def test_close_sends_what_was_written(pair):
    payload = pattern(8 * MIB)
    pair.client.transport.write(payload)
    assert pair.client.transport.get_write_buffer_size() > 0
    pair.client.transport.close()
    assert pair.client.transport.is_closing()
    await pair.server.eof
    assert bytes(pair.server.data) == payload
    assert await pair.client.lost is None


async def test_abort_drops_the_buffer_and_ends_both_sides(pair):
    payload = pattern(16 * MIB)
    pair.server.transport.pause_reading()
    pair.client.transport.write(payload)
    assert pair.client.transport.get_write_buffer_size() > 0
    pair.client.transport.abort()
    assert pair.client.transport.is_closing()
    assert pair.client.transport.get_write_buffer_size() == 0
    assert not pair.client.lost.done(), "connection_lost must not run inside abort()"
    assert await pair.client.lost is None
    pair.server.transport.resume_reading()
    await pair.server.lost
    assert payload.startswith(bytes(pair.server.data))
    assert len(pair.server.data) < len(payload)


async def test_bytes_sent_before_an_abort_arrive(pair):
    pair.client.transport.write(b"sent")
    pair.client.transport.abort()
    assert await pair.server.lost is None
    assert bytes(pair.server.data) == b"sent"
    assert pair.server.calls == ["made", "data", "eof", "lost"]


async def test_closing_with_unread_bytes_resets_the_other_side(pair):
    pair.client.transport.pause_reading()
    pair.server.transport.write(b"nobody reads this")
    pair.server.transport.write(b"; something to wait for: ")
    # once a byte sent in the other direction is answered, the bytes sent before have arrived
    pair.client.transport.write(b"?")
    await pair.server.received(1)
    await asyncio.sleep(0)
    pair.client.transport.abort()
    assert isinstance(await pair.server.lost, ConnectionResetError)
    assert "eof" not in pair.server.calls


async def test_writing_to_a_closed_peer_fails():
    async with connected(Reader, lambda: Reader(keep_open=True)) as pair:
        pair.client.transport.close()
        await pair.client.lost
        await pair.server.eof
        while not pair.server.lost.done():
            pair.server.transport.write(b"anybody there?")
            await asyncio.sleep(0)
        assert isinstance(await pair.server.lost, (BrokenPipeError, ConnectionResetError))
        pair.server.transport.write(b"after the end, without effect")


async def test_a_waiting_writer_notices_a_reset_without_reading(pair):
    pair.client.transport.pause_reading()
    pair.server.transport.pause_reading()
    pair.client.transport.write(bytes(16 * MIB))
    assert pair.client.transport.get_write_buffer_size() > 0
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pair.server.transport.abort()
    assert isinstance(await pair.client.lost, (BrokenPipeError, ConnectionResetError))
    assert pair.client.calls[-1] == "lost"


async def test_close_can_be_called_twice(pair):
    for _ in range(2):
        pair.client.transport.close()
    pair.client.transport.abort()
    await pair.client.lost
    pair.client.transport.close()
    assert pair.client.calls == ["made", "lost"]


# -- flow control -------------------------------------------------------------------------------------------------------


async def test_pausing_the_reader_pauses_the_writer(pair):
    block, written = pattern(256 * 1024), 0
    pair.server.transport.pause_reading()
    assert not pair.server.transport.is_reading()
    while "pause" not in pair.client.calls:
        pair.client.transport.write(block)
        written += len(block)
        await asyncio.sleep(0)
        assert written < 64 * MIB, "a paused reader must eventually pause the writer"
    low, high = pair.client.transport.get_write_buffer_limits()
    assert pair.client.transport.get_write_buffer_size() > high > low
    assert "resume" not in pair.client.calls
    pair.server.transport.resume_reading()
    await pair.client.until(lambda: "resume" in pair.client.calls)
    await pair.server.received(written)
    assert bytes(pair.server.data) == block * (written // len(block))
    assert pair.client.calls == ["made", "pause", "resume"]


async def test_drain_waits_for_a_slow_reader():
    read_now = asyncio.Event()

    async def wait_then_read(reader, _):
        await read_now.wait()
        while await reader.read(MIB):
            pass

    server, port, ended = await serve_once(wait_then_read)
    _, writer = await asyncio.open_connection(HOST, port)
    writer.write(bytes(32 * MIB))
    draining = asyncio.create_task(writer.drain())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not draining.done()
    read_now.set()
    await draining
    writer.close()
    await writer.wait_closed()
    await ended
    server.close()


@pytest.mark.parametrize(
    ("high", "low", "limits"),
    [(None, None, (16384, 65536)), (1000, None, (250, 1000)), (None, 100, (100, 400)), (10, 10, (10, 10))],
)
async def test_write_buffer_limits(pair, high, low, limits):
    pair.client.transport.set_write_buffer_limits(high=high, low=low)
    assert pair.client.transport.get_write_buffer_limits() == limits
    with pytest.raises(ValueError, match="must be >="):
        pair.client.transport.set_write_buffer_limits(high=1, low=2)


async def test_nothing_is_delivered_while_reading_is_paused(pair):
    pair.server.transport.pause_reading()
    pair.client.transport.write(b"later")
    pair.client.transport.close()
    await pair.client.lost
    for _ in range(10):
        await asyncio.sleep(0)
    assert pair.server.calls == ["made"]
    pair.server.transport.resume_reading()
    await pair.server.lost
    assert pair.server.calls == ["made", "data", "eof", "lost"]
    assert bytes(pair.server.data) == b"later"


# -- protocols ----------------------------------------------------------------------------------------------------------


async def test_a_buffered_protocol_gets_chunks_of_its_buffer():
    payload = pattern(100_000)
    async with connected(Reader, lambda: BufferedReader(4096)) as pair:
        pair.client.transport.write(payload)
        assert await pair.server.received(len(payload)) == payload
        assert max(pair.server.chunks) == 4096
        assert min(pair.server.chunks) > 0
        pair.client.transport.close()
        assert await pair.server.lost is None
        assert pair.server.calls[-2:] == ["eof", "lost"]


async def test_an_empty_buffer_is_an_error():
    async with connected(Reader, lambda: BufferedReader(0)) as pair:
        pair.client.transport.write(b"x")
        error = await pair.server.lost
        assert isinstance(error, RuntimeError)
        assert "empty buffer" in str(error)
        assert [context["exception"] for context in pair.errors] == [error]


async def test_a_protocol_that_raises_loses_its_connection():
    class Broken(Reader):
        def data_received(self, data):
            raise ValueError("cannot read this")

    async with connected(Reader, Broken) as pair:
        pair.client.transport.write(b"x")
        error = await pair.server.lost
        assert isinstance(error, ValueError)
        assert [context["exception"] for context in pair.errors] == [error]
        assert pair.errors[0]["protocol"] is pair.server
        await pair.client.lost


async def test_set_protocol_changes_who_receives(pair):
    pair.client.transport.write(b"first")
    await pair.server.received(5)
    other = BufferedReader(100)
    pair.server.transport.set_protocol(other)
    assert pair.server.transport.get_protocol() is other
    pair.client.transport.write(b"second")
    assert await other.received(6) == b"second"
    assert bytes(pair.server.data) == b"first"
    pair.server.transport.set_protocol(pair.server)


async def test_write_takes_every_kind_of_bytes_and_keeps_a_copy(pair):
    changing = bytearray(b"b")
    transport = pair.client.transport
    transport.write(b"a")
    transport.write(changing)
    changing[0] = 0
    transport.write(memoryview(b"xcx")[1:2])
    transport.write(b"")
    transport.writelines([b"d", bytearray(b"e"), memoryview(b"f")])
    assert await pair.server.received(6) == b"abcdef"
    with pytest.raises(TypeError, match="bytes-like"):
        transport.write("text")
    transport.write_eof()
    with pytest.raises(RuntimeError, match="write_eof"):
        transport.write(b"more")


# -- addresses ----------------------------------------------------------------------------------------------------------


async def test_each_end_names_the_other(pair):
    client, server = pair.client.transport, pair.server.transport
    assert client.get_extra_info("peername") == (HOST, pair.port) == server.get_extra_info("sockname")
    assert client.get_extra_info("sockname") == server.get_extra_info("peername")
    assert client.get_extra_info("no such thing", "default") == "default"


async def test_a_connection_without_listener_is_refused():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Reader, HOST, 0)
    port = port_of(server)
    server.close()
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError) as caught:
        await loop.create_connection(Reader, HOST, port)
    assert caught.value.errno == errno.ECONNREFUSED
    assert f"Connect call failed ('{HOST}', {port})" in str(caught.value)


async def test_a_server_that_does_not_serve_yet_refuses():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Reader, HOST, 0, start_serving=False)
    assert not server.is_serving()
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(Reader, HOST, port_of(server))
    await server.start_serving()
    assert server.is_serving()
    _, client = await loop.create_connection(Reader, HOST, port_of(server))
    client.transport.abort()
    await client.lost
    server.close()
    await server.wait_closed()


async def test_a_port_is_in_use_until_its_server_closes():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Reader, HOST, 0)
    port = port_of(server)
    with pytest.raises(OSError, match="address already in use") as caught:
        await loop.create_server(Reader, HOST, port)
    assert caught.value.errno == errno.EADDRINUSE
    server.close()
    assert server.sockets == ()
    again = await loop.create_server(Reader, HOST, port)
    assert port_of(again) == port
    again.close()


async def test_closing_the_server_does_not_close_connections(pair):
    pair.listener.close()
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.get_running_loop().create_connection(Reader, HOST, pair.port)
    pair.client.transport.write(b"still here")
    assert await pair.server.received(10) == b"still here"


async def test_serve_forever_ends_by_cancelling():
    server = await asyncio.get_running_loop().create_server(Reader, HOST, 0)
    serving = asyncio.create_task(server.serve_forever())
    await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert not server.is_serving()


async def test_without_host_a_server_listens_on_all_addresses():
    server = await asyncio.start_server(lambda _, writer: writer.close(), None, 0, family=2)
    reader, writer = await asyncio.open_connection("localhost", port_of(server), family=2)
    assert await reader.read() == b""
    assert writer.get_extra_info("peername")[0] == HOST
    writer.close()
    await writer.wait_closed()
    server.close()
