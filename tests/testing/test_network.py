"""The in-memory network: addresses, latency, and faults."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.testing import VirtualTransport, current_network
from tests.profiles import examples
from tests.testing.streams import HOST, BufferedReader, Reader, connected, port_of

pytestmark = pytest.mark.virtual

BROKER = "10.0.0.1"


def now() -> float:
    return asyncio.get_running_loop().time()


class Echo(Reader):
    """Sends received bytes back."""

    def data_received(self, data):
        super().data_received(data)
        self.transport.write(data)


async def listen(host=BROKER, port=9092, make=Reader):
    """Start a server, and return it with the list of the protocols of its connections."""
    accepted = []

    def factory():
        accepted.append(make())
        return accepted[-1]

    return await asyncio.get_running_loop().create_server(factory, host, port), accepted


async def dial(host=BROKER, port=9092, **options):
    _, protocol = await asyncio.get_running_loop().create_connection(Reader, host, port, **options)
    return protocol


async def end(server, *protocols):
    """Close all connections and the server, and wait until they are closed."""
    server.close()
    for protocol in protocols:
        if not protocol.lost.done():
            protocol.transport.abort()
    for protocol in protocols:
        await protocol.lost
    current_network().heal()
    await server.wait_closed()


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


# -- latency ------------------------------------------------------------------------------------------------------------


async def test_without_latency_no_time_passes():
    server, accepted = await listen()
    client = await dial()
    client.transport.write(b"hello")
    await turns()
    await accepted[0].received(5)
    assert now() == 0
    await end(server, client, *accepted)


async def test_latency_applies_to_each_direction(network):
    network.latency = 0.1
    server, accepted = await listen(make=Echo)
    client = await dial()
    assert now() == pytest.approx(0.2)  # one round trip, as for a TCP handshake
    client.transport.write(b"hello")
    await client.received(5)
    assert now() == pytest.approx(0.4)
    await end(server, client, *accepted)


async def test_refusal_takes_a_round_trip(network):
    network.latency = 0.5
    with pytest.raises(ConnectionRefusedError):
        await dial()
    assert now() == 1.0


async def test_latency_of_one_address(network):
    network.set_latency(2.0, BROKER, 9092)
    near, _ = await listen(port=9093)
    far, accepted = await listen(port=9092)
    one = await dial(port=9093)
    assert now() == 0
    other = await dial()
    assert now() == 4.0
    other.transport.write(b"x")
    await turns()
    assert accepted == [] or not accepted[0].data
    await asyncio.sleep(2.0)
    await turns()
    assert bytes(accepted[0].data) == b"x"
    network.set_latency(0.0, BROKER)
    await end(near, one)
    await end(far, other, *accepted)


async def test_bytes_do_not_arrive_with_those_sent_before_them(network):
    server, accepted = await listen()
    client = await dial()
    network.latency = 1.0
    client.transport.write(b"one")
    await asyncio.sleep(0.5)
    client.transport.write(b"two")
    await accepted[0].received(1)
    assert (now(), bytes(accepted[0].data)) == (1.0, b"one")
    await accepted[0].received(4)
    assert (now(), bytes(accepted[0].data)) == (1.5, b"onetwo")
    network.latency = 0.0
    await end(server, client, *accepted)


async def test_bytes_keep_their_order_when_the_latency_falls(network):
    network.latency = 1.0
    server, accepted = await listen()
    client = await dial()
    client.transport.write(b"slow ")
    network.latency = 0.0
    client.transport.write(b"fast")
    await asyncio.sleep(1.0)
    assert await accepted[0].received(9) == b"slow fast"
    assert now() == 3.0
    await end(server, client, *accepted)


async def test_a_chunk_size_of_one_splits_at_every_byte(network):
    network.chunk_size = 3
    server, accepted = await listen()
    client = await dial()
    client.transport.write(b"12345")
    client.transport.write(b"67890")
    assert await accepted[0].received(10) == b"1234567890"
    assert accepted[0].calls.count("data") == 4
    await end(server, client, *accepted)


async def test_a_long_response_does_not_delay_another_connection(network):
    """Each iteration of the loop delivers one chunk per connection, as with sockets."""
    network.chunk_size = 1000
    server, accepted = await listen()
    long, short = await dial(), await dial()
    await turns()
    long.transport.write(bytes(200_000))
    short.transport.write(b"short")
    await accepted[1].received(5)
    assert len(accepted[0].data) < 10_000
    await accepted[0].received(200_000)
    await end(server, long, short, *accepted)


# -- names and addresses ------------------------------------------------------------------------------------------------


async def test_a_name_may_have_several_addresses(network):
    network.hosts["kafka"] = ["10.0.0.1", "10.0.0.2"]
    infos = await asyncio.get_running_loop().getaddrinfo("kafka", 9092, type=socket.SOCK_STREAM)
    assert infos == [
        (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("10.0.0.1", 9092)),
        (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("10.0.0.2", 9092)),
    ]


async def test_each_address_of_a_name_is_tried(network):
    network.hosts["kafka"] = ["10.0.0.1", "10.0.0.2"]
    server, accepted = await listen("10.0.0.2")
    client = await dial("kafka")
    assert client.transport.get_extra_info("peername") == ("10.0.0.2", 9092)
    await turns()
    await end(server, client, *accepted)


async def test_when_all_addresses_fail_the_error_names_them(network):
    network.hosts["kafka"] = ["10.0.0.1", "10.0.0.2"]
    with pytest.raises(OSError, match=r"Multiple exceptions: .*10\.0\.0\.1.*10\.0\.0\.2"):
        await dial("kafka")
    with pytest.raises(ExceptionGroup) as caught:
        await dial("kafka", all_errors=True)
    assert [type(error) for error in caught.value.exceptions] == [ConnectionRefusedError] * 2


async def test_happy_eyeballs_do_not_wait_for_a_hanging_address(network):
    network.hosts["kafka"] = ["10.0.0.1", "10.0.0.2"]
    network.blackhole("10.0.0.1")
    server, accepted = await listen("10.0.0.2")
    client = await dial("kafka", happy_eyeballs_delay=0.25)
    assert now() == 0.25
    await turns()
    await end(server, client, *accepted)
    with pytest.raises(ConnectionRefusedError):
        await dial("10.0.0.2", happy_eyeballs_delay=0.25)


@pytest.mark.parametrize(("host", "family"), [("nobody", 0), ("10.0.0.1", socket.AF_INET6), ("empty", 0)])
async def test_an_unknown_name_is_a_gaierror(network, host, family):
    network.hosts["empty"] = []
    with pytest.raises(socket.gaierror) as caught:
        await asyncio.get_running_loop().getaddrinfo(host, 9092, family=family)
    assert caught.value.errno == socket.EAI_NONAME
    assert host in str(caught.value)


async def test_ipv6():
    server, accepted = await listen("::1", 0)
    client = await dial("::1", port_of(server))
    assert server.sockets[0].getsockname() == ("::1", port_of(server), 0, 0)
    assert server.sockets[0].family == socket.AF_INET6
    assert client.transport.get_extra_info("peername") == ("::1", port_of(server), 0, 0)
    await turns()
    await end(server, client, *accepted)


async def test_free_ports_differ_and_do_not_depend_on_the_machine():
    servers = [(await listen(HOST, 0))[0] for _ in range(3)]
    assert [port_of(server) for server in servers] == [49152, 49153, 49154]
    assert current_network().listeners() == ((HOST, 49152), (HOST, 49153), (HOST, 49154))
    for server in servers:
        server.close()
    assert current_network().listeners() == ()


@pytest.mark.parametrize(("first", "second"), [(None, HOST), (HOST, None), (HOST, HOST)])
async def test_the_wildcard_address_conflicts_with_each_address(first, second):
    server, _ = await listen(first, 9092)
    with pytest.raises(OSError, match="address already in use") as caught:
        await listen(second, 9092)
    assert caught.value.errno == errno.EADDRINUSE
    server.close()


async def test_several_hosts_for_one_server():
    server, accepted = await listen(["10.0.0.1", "10.0.0.2"], 9092)
    assert [s.getsockname() for s in server.sockets] == [("10.0.0.1", 9092), ("10.0.0.2", 9092)]
    clients = [await dial("10.0.0.1"), await dial("10.0.0.2")]
    await turns()
    assert len(accepted) == 2
    await end(server, *clients, *accepted)


async def test_a_local_address_is_kept():
    server, accepted = await listen()
    client = await dial(local_addr=("10.0.0.9", 1234))
    await turns()
    assert accepted[0].transport.get_extra_info("peername") == ("10.0.0.9", 1234)
    await end(server, client, *accepted)


# -- refuse -------------------------------------------------------------------------------------------------------------


async def test_refuse_and_heal(network):
    server, accepted = await listen()
    before = await dial()
    network.refuse(BROKER, 9092)
    with pytest.raises(ConnectionRefusedError):
        await dial()
    before.transport.write(b"I was here first")
    assert await accepted[0].received(16)
    network.heal(BROKER, 9092)
    after = await dial()
    await turns()
    await end(server, before, after, *accepted)


async def test_faults_of_a_whole_host_and_of_one_port(network):
    server, accepted = await listen(port=9092)
    network.refuse(BROKER)
    network.heal(BROKER, 9092)  # no such fault: no effect
    assert network.describe_faults() == ["refuse 10.0.0.1:*"]
    with pytest.raises(ConnectionRefusedError):
        await dial()
    network.blackhole("10.0.0.2", 1)
    network.heal(BROKER)
    assert network.describe_faults() == ["blackhole (connects hang) 10.0.0.2:1"]
    client = await dial()
    await turns()
    network.heal()
    assert network.describe_faults() == []
    await end(server, client, *accepted)


# -- blackhole ----------------------------------------------------------------------------------------------------------


async def test_a_black_hole_hangs_connects_until_it_heals(network):
    server, accepted = await listen()
    network.blackhole(BROKER, 9092)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(dial(), 30)
    waiting = asyncio.create_task(dial())
    await asyncio.sleep(100)
    assert not waiting.done()
    network.heal(BROKER, 9092)
    client = await waiting
    await turns()
    assert len(accepted) == 1, "the cancelled connect must not arrive later"
    await end(server, client, *accepted)


async def test_a_black_hole_can_accept_connections_without_answering(network):
    server, accepted = await listen(make=Echo)
    network.blackhole(BROKER, 9092, connect="accept")
    client = await dial()
    client.transport.write(b"anybody?")
    await asyncio.sleep(1000)
    assert accepted == []
    assert client.calls == ["made"]
    network.heal()  # the stopped process continues, and gets the connection and the bytes
    assert await client.received(8) == b"anybody?"
    assert now() == 1000
    await end(server, client, *accepted)


async def test_an_accepting_black_hole_needs_no_listener(network):
    network.blackhole(BROKER, connect="accept")
    client = await dial()
    client.transport.write(b"anybody?")
    await asyncio.sleep(10)
    assert not client.lost.done()
    network.heal()
    assert isinstance(await client.lost, ConnectionResetError)


async def test_a_black_hole_stops_open_connections(network):
    server, accepted = await listen()
    client = await dial()
    client.transport.write(b"before")
    await turns()
    network.blackhole(BROKER, 9092)
    client.transport.write(b", meanwhile")
    accepted[0].transport.write(b"and back")
    await asyncio.sleep(600)
    assert bytes(accepted[0].data) == b"before"
    assert not client.data
    client.transport.close()  # closed at this end; the other end does not get the end of file
    assert await client.lost is None
    await asyncio.sleep(600)
    assert not accepted[0].eof.done()
    network.heal()
    # bytes behind a black hole have not arrived: the client closed with none unread, so it sends EOF instead of a reset
    assert await accepted[0].lost is None
    assert bytes(accepted[0].data) == b"before, meanwhile"
    assert accepted[0].calls[-2:] == ["eof", "lost"]
    await end(server, client, *accepted)


async def test_a_black_hole_fills_the_window(network):
    network.window = 1000
    server, accepted = await listen()
    client = await dial()
    await turns()
    network.blackhole(BROKER)
    client.transport.set_write_buffer_limits(high=500)
    client.transport.write(bytes(1400))
    assert client.transport.get_write_buffer_size() == 400
    assert "pause" not in client.calls
    client.transport.write(bytes(101))
    assert "pause" in client.calls
    network.heal()
    assert len(await accepted[0].received(1501)) == 1501
    assert "resume" in client.calls
    await end(server, client, *accepted)


# -- cut ----------------------------------------------------------------------------------------------------------------


async def test_cut_resets_both_ends_and_loses_bytes_in_transit(network):
    network.latency = 1.0
    server, accepted = await listen()
    clients = [await dial(), await dial()]
    await asyncio.sleep(5)
    clients[0].transport.write(b"lost")
    assert network.cut(BROKER, 9092) == 2
    assert not clients[0].lost.done(), "connection_lost must not run inside cut()"
    for protocol in (*clients, *accepted):
        assert isinstance(await protocol.lost, ConnectionResetError)
        assert protocol.calls == ["made", "lost"]
    assert network.connections() == ()
    assert network.cut(BROKER, 9092) == 0
    again = await dial()
    await asyncio.sleep(1)
    await end(server, again, *accepted[2:])


async def test_cut_without_an_address_cuts_all(network):
    server, accepted = await listen(["10.0.0.1", "10.0.0.2"], 9092)
    clients = [await dial("10.0.0.1"), await dial("10.0.0.2")]
    await turns()
    assert network.cut() == 2
    await end(server, *clients, *accepted)
    assert {type(await protocol.lost) for protocol in (*clients, *accepted)} == {ConnectionResetError}


async def test_cut_leaves_other_addresses_alone(network):
    one, accepted_by_one = await listen(port=9092)
    other, accepted_by_other = await listen(port=9093)
    client, stays = await dial(port=9092), await dial(port=9093)
    await turns()
    assert network.cut(BROKER, 9092) == 1
    await client.lost
    stays.transport.write(b"x")
    await accepted_by_other[0].received(1)
    await end(one, client, *accepted_by_one)
    await end(other, stays, *accepted_by_other)


async def test_cut_applies_to_a_connection_that_is_not_accepted_yet(network):
    server, accepted = await listen()
    network.blackhole(BROKER, connect="accept")
    client = await dial()
    assert network.cut(BROKER) == 1
    assert isinstance(await client.lost, ConnectionResetError)
    network.heal()
    await turns()
    assert accepted == []
    assert repr(network) == "<Network 1 listeners, 0 connections, 0 faults, latency=0>"
    await end(server)


# -- faults of one client -----------------------------------------------------------------------------------------------


async def test_a_black_hole_for_one_client(network):
    network.hosts["member-2"] = ["10.1.0.2"]
    server, accepted = await listen(make=Echo)
    first = await dial()
    with network.source("member-2"):
        second = await asyncio.create_task(dial())  # a task started in the block connects from `host`, too
    await turns()
    assert accepted[1].transport.get_extra_info("peername")[0] == "10.1.0.2"
    network.blackhole("member-2")
    for client in (first, second):
        client.transport.write(b"ping")
    await first.received(4)
    await asyncio.sleep(60)
    assert not second.data
    assert [link.client[0] for link in network.connections("member-2")] == ["10.1.0.2"]
    network.heal("member-2")
    assert await second.received(4) == b"ping"
    await end(server, first, second, *accepted)


async def test_source_ends_with_its_block(network):
    server, accepted = await listen()
    with network.source("10.1.0.7"):
        pass
    client = await dial()
    assert client.transport.get_extra_info("sockname")[0] == BROKER
    await turns()
    await end(server, client, *accepted)


# -- servers and life cycle ---------------------------------------------------------------------------------------------


async def test_wait_closed_waits_for_the_last_connection():
    server, accepted = await listen()
    client = await dial()
    await turns()
    server.close()
    waiting = asyncio.create_task(server.wait_closed())
    await asyncio.sleep(10)
    assert not waiting.done()
    client.transport.close()
    await waiting
    assert accepted[0].lost.done()
    await client.lost


@pytest.mark.parametrize("method", ["close_clients", "abort_clients"])
async def test_a_server_ends_its_connections(method):
    server, accepted = await listen()
    client = await dial()
    await turns()
    getattr(server, method)()
    assert await accepted[0].lost is None
    await client.lost
    server.close()
    await server.wait_closed()
    with pytest.raises(RuntimeError, match="closed"):
        await server.start_serving()


async def test_a_listener_that_closes_before_accepting_resets(network):
    network.latency = 1.0
    server, accepted = await listen()
    client = await dial()
    server.close()  # the opening signal has not arrived yet
    assert isinstance(await client.lost, ConnectionResetError)
    assert accepted == []
    await server.wait_closed()


async def test_a_cancelled_connect_leaves_no_connection(network):
    network.latency = 10.0
    server, accepted = await listen()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(dial(), 5)
    await asyncio.sleep(60)
    assert network.connections() == ()
    assert accepted == []
    await end(server)


async def test_cancelling_at_the_last_moment_closes_the_connection(network):
    server, accepted = await listen()
    before = len(asyncio.all_tasks())
    for moment in range(1, 8):
        dialling = asyncio.create_task(dial())
        await turns(moment)
        dialling.cancel()
        await asyncio.wait([dialling])
        if not dialling.cancelled():
            dialling.result().transport.abort()
    await turns()
    assert network.connections() == ()
    assert len(asyncio.all_tasks()) == before
    assert accepted, "some connects were cancelled after the server had accepted them"
    await end(server, *accepted)


async def test_a_reset_is_noticed_when_reading_resumes(network):
    server, accepted = await listen()
    client = await dial()
    await turns()
    accepted[0].transport.pause_reading()
    client.transport.pause_reading()
    accepted[0].transport.write(b"never read")
    await turns()
    client.transport.abort()
    await turns()
    assert accepted[0].calls == ["made"]
    accepted[0].transport.resume_reading()
    assert isinstance(await accepted[0].lost, ConnectionResetError)
    await end(server, client, *accepted)


# with a window of 1 byte and a latency of 1 s an example takes hours
@pytest.mark.virtual(max_virtual_time=1e9)
@settings(max_examples=examples(60), deadline=None)
@given(
    writes=st.lists(st.integers(0, 3000), max_size=12),
    window=st.integers(1, 2000),
    chunk=st.integers(1, 700),
    latency=st.sampled_from([0.0, 0.01, 1.0]),
    pauses=st.lists(st.integers(1, 20), max_size=4),
    buffered=st.booleans(),
)
async def test_bytes_arrive_complete_and_in_order_for_all_sizes(
    writes, window, chunk, latency, pauses, buffered
):
    network = current_network()
    network.window, network.chunk_size, network.latency = window, chunk, latency
    content = bytes(number % 251 for number in range(sum(writes)))
    server, accepted = await listen(make=(lambda: BufferedReader(97)) if buffered else Reader)
    client = await dial()
    await asyncio.sleep(latency)
    await turns(3)
    sent = 0
    for size in writes:
        client.transport.write(content[sent : sent + size])
        sent += size
    client.transport.write_eof()
    for pause in pauses:
        await turns(pause)
        accepted[0].transport.pause_reading()
        await asyncio.sleep(2 * latency)
        accepted[0].transport.resume_reading()
    await accepted[0].eof
    assert bytes(accepted[0].data) == content
    network.latency = 0.0
    await end(server, client, *accepted)


async def test_no_socket_is_ever_opened(monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("a real socket")

    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    async with connected(Reader, Reader) as pair:
        pair.client.transport.write(b"x")
        assert await pair.server.received(1) == b"x"
        assert isinstance(pair.client.transport, VirtualTransport)
        assert pair.client.transport.get_extra_info("socket") is None


async def test_reprs_show_the_state(network):
    server, accepted = await listen()
    assert repr(server) == "<VirtualServer 10.0.0.1:9092 serving, 0 connections>"
    client = await dial()
    await turns()
    (link,) = network.connections()
    assert repr(link) == "<Link 10.0.0.1:32768 -> 10.0.0.1:9092, open at: client, server>"
    assert repr(client.transport) == (
        "<VirtualTransport 10.0.0.1:32768 <-> 10.0.0.1:9092 open, 0 bytes to write>"
    )
    assert repr(network) == "<Network 1 listeners, 1 connections, 0 faults, latency=0>"
    assert link.open_ends() == (client.transport, accepted[0].transport)
    await end(server, client, *accepted)
    assert repr(network) == "<Network 0 listeners, 0 connections, 0 faults, latency=0>"
    assert repr(server) == "<VirtualServer 10.0.0.1:9092 closed, 0 connections>"
    assert "closed" in repr(client.transport)


async def test_an_error_of_the_factory_does_not_stop_the_listener():
    loop, reports, protocols = asyncio.get_running_loop(), [], [None, Reader()]
    loop.set_exception_handler(lambda _, context: reports.append(context["exception"]))

    def factory():
        protocol = protocols.pop(0)
        if protocol is None:
            raise ValueError("no protocol today")
        return protocol

    good = protocols[1]
    server = await loop.create_server(factory, HOST, 0)
    _, first = await loop.create_connection(Reader, HOST, port_of(server))
    await first.lost
    _, second = await loop.create_connection(Reader, HOST, port_of(server))
    second.transport.write(b"hello")
    assert await good.received(5) == b"hello"
    assert [str(error) for error in reports] == ["no protocol today"]
    second.transport.close()
    await second.lost
    await good.lost
    server.close()
