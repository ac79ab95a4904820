"""One connection: keep-alive, what the broker pushes to producers and consumers, and its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.errors import ConnectionLost
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.frames import encode_frame
from asyncgroup.testing import Network
from tests.pulsar.scripted import PORT, ScriptedPulsar, late, no_answer
from tests.pulsar.support import HOST, RecordingListener, connected, last_id, now

# --- keep-alive -------------------------------------------------------------------------------------------------------


async def test_a_ping_in_each_interval(pulsar: ScriptedPulsar) -> None:
    async with connected() as connection:
        await asyncio.sleep(100)
        assert pulsar.times(c.CommandPing) == pytest.approx([30, 60, 90])
        assert not connection.is_closed


async def test_a_broker_that_answers_no_ping_is_gone_after_two_intervals(
    pulsar: ScriptedPulsar, network: Network
) -> None:
    async with connected(keep_alive_interval=20.0) as connection:
        waiting = asyncio.create_task(connection.request("LAST_ID", last_id, timeout=None))
        await waiting
        await asyncio.sleep(5)
        network.blackhole(HOST, PORT, connect="accept")
        waiting = asyncio.create_task(connection.request("LAST_ID", last_id, timeout=None))
        with pytest.raises(ConnectionLost, match=r"^10.0.0.1:6650: no answer to a ping within 20 s$"):
            await waiting
        assert now() == pytest.approx(40.0)
        network.heal()


async def test_any_traffic_shows_that_the_broker_lives(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandPing] = no_answer
    async with connected() as connection:
        for _ in range(20):
            await asyncio.sleep(29)
            pulsar.connections[0].push(c.CommandPing())
        assert not connection.is_closed


async def test_a_large_frame_that_arrives_slowly_shows_it_as_well(
    pulsar: ScriptedPulsar, network: Network
) -> None:
    async with connected() as connection:
        (end,) = pulsar.connections
        pulsar.first.script[c.CommandPing] = no_answer
        end.write((1_000_000).to_bytes(4, "big"))
        for _ in range(10):
            await asyncio.sleep(29)
            end.write(bytes(1000))
        assert not connection.is_closed


async def test_a_slow_pong_is_soon_enough(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandPing] = late(29.0)
    async with connected() as connection:
        await asyncio.sleep(300)
        assert not connection.is_closed


async def test_the_brokers_ping_is_answered_at_once(pulsar: ScriptedPulsar) -> None:
    async with connected():
        await asyncio.sleep(3)
        pulsar.connections[0].push(c.CommandPing())
        await asyncio.sleep(1)
        assert pulsar.times(c.CommandPong) == pytest.approx([3.0])


async def test_a_closed_connection_has_no_timer(pulsar: ScriptedPulsar) -> None:
    async with connected() as connection:
        pass
    await asyncio.sleep(100)
    assert pulsar.commands(c.CommandPing) == []
    assert connection.is_closed


# --- pushes -----------------------------------------------------------------------------------------------------------


async def test_pushes_go_to_what_they_are_for(pulsar: ScriptedPulsar) -> None:
    one, other, watcher = RecordingListener(), RecordingListener(), RecordingListener()
    async with connected() as connection:
        connection.registered.add_producer(1, one)
        connection.registered.add_consumer(1, other)
        connection.registered.add_watcher(1, watcher)
        (end,) = pulsar.connections
        receipt = c.CommandSendReceipt(producer_id=1, sequence_id=4)
        send_error = c.CommandSendError(producer_id=1, sequence_id=5, error=9, message="checksum")
        update = c.CommandWatchTopicUpdate(watcher_id=1, new_topics=["t"], topics_hash="h")
        for command in (
            receipt,
            send_error,
            update,
            c.CommandActiveConsumerChange(consumer_id=1, is_active=True),
            c.CommandActiveConsumerChange(consumer_id=1),
            c.CommandReachedEndOfTopic(consumer_id=1),
        ):
            end.push(command)
        end.push_entry(1, b"value")
        await asyncio.sleep(1)
        assert one.calls == [("on_receipt", receipt), ("on_send_error", send_error)]
        assert other.calls[:3] == [
            ("on_active_change", True),
            ("on_active_change", False),
            ("on_end_of_topic",),
        ]
        name, where, command, frame, at = other.calls[3]
        assert (name, where, command.consumer_id) == ("on_message", connection, 1)
        assert bytes(frame[at:]).endswith(b"value")
        assert watcher.calls == [("on_topics_changed", update)]


async def test_pushes_for_others_are_ignored(pulsar: ScriptedPulsar) -> None:
    listener = RecordingListener()
    async with connected() as connection:
        connection.registered.add_producer(1, listener)
        connection.registered.add_consumer(1, listener)
        connection.registered.remove_consumer(1)
        connection.registered.remove_consumer(1)
        (end,) = pulsar.connections
        for command in (
            c.CommandSendReceipt(producer_id=2, sequence_id=4),
            c.CommandSendError(producer_id=2, sequence_id=5, error=9, message=""),
            c.CommandWatchTopicUpdate(watcher_id=2, topics_hash="h"),
            c.CommandActiveConsumerChange(consumer_id=1, is_active=True),
            c.CommandReachedEndOfTopic(consumer_id=1),
            c.CommandCloseConsumer(consumer_id=1, request_id=0),
            c.CommandCloseProducer(producer_id=2, request_id=0),
            c.CommandAckResponse(consumer_id=1),
            c.CommandSuccess(request_id=99),
            c.CommandLookupTopic(topic="a command for brokers", request_id=99),
        ):
            end.push(command)
        end.push_entry(1, b"value")
        await connection.request("LAST_ID", last_id, timeout=5)
        assert listener.calls == []
        assert not connection.is_closed


@pytest.mark.parametrize("url", [None, "pulsar://10.0.0.2:6650"])
async def test_a_close_of_the_broker_ends_one_of_them(pulsar: ScriptedPulsar, url: str | None) -> None:
    listeners = [RecordingListener() for _ in range(4)]
    async with connected() as connection:
        connection.registered.add_producer(1, listeners[0])
        connection.registered.add_producer(2, listeners[1])
        connection.registered.add_consumer(1, listeners[2])
        connection.registered.add_consumer(2, listeners[3])
        (end,) = pulsar.connections
        where: dict[str, Any] = {
            "assigned_broker_service_url": url,
            "assigned_broker_service_url_tls": "pulsar+ssl://other:6651",
        }
        end.push(c.CommandCloseProducer(producer_id=1, request_id=0, **where))
        end.push(c.CommandCloseConsumer(consumer_id=2, request_id=0, **where))
        end.push(c.CommandCloseConsumer(consumer_id=2, request_id=0, **where))
        await asyncio.sleep(1)
        called = [("on_broker_close", connection, url)]
        assert [one.calls for one in listeners] == [called, [], [], called]
        pulsar.first.cut()
        await asyncio.sleep(1)
        assert [len(one.calls) for one in listeners] == [1, 1, 1, 1], "of the end only the others hear"


async def test_a_topic_that_migrates_is_logged(
    pulsar: ScriptedPulsar, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as connection:
        pulsar.connections[0].push(
            c.CommandTopicMigrated(resource_id=1, resource_type=0, broker_service_url="pulsar://blue\n")
        )
        await connection.request("LAST_ID", last_id, timeout=5)
    assert r"10.0.0.1:6650: a topic has moved to another cluster: pulsar://blue\n" in caplog.text


# --- its end ----------------------------------------------------------------------------------------------------------


class FailingListener(RecordingListener):
    """Raises in each call."""

    def __getattr__(self, name: str) -> Any:
        inner = super().__getattr__(name)

        def fail(*values: Any) -> None:
            inner(*values)
            raise ZeroDivisionError(name)

        return fail


async def test_a_listener_that_raises_does_not_end_the_connection_of_others(
    pulsar: ScriptedPulsar, caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = FailingListener(), RecordingListener()
    async with connected() as connection:
        connection.registered.add_consumer(1, failing)
        connection.registered.add_consumer(2, other)
        connection.registered.add_producer(1, failing)
        connection.registered.add_producer(2, other)
        (end,) = pulsar.connections
        end.push_entry(1, b"value")
        end.push(c.CommandSendReceipt(producer_id=1, sequence_id=0))
        end.push_entry(2, b"value")
        await connection.request("LAST_ID", last_id, timeout=5)
        assert len(other.named("on_message")) == 1
        pulsar.first.cut()
        await asyncio.sleep(1)
        assert len(other.named("on_connection_lost")) == len(failing.named("on_connection_lost")) == 2
    assert [record.getMessage() for record in caplog.records] == ["10.0.0.1:6650: a listener failed"] * 4


async def test_each_listener_is_called_once_at_the_end(pulsar: ScriptedPulsar) -> None:
    listener = RecordingListener()
    async with connected() as connection:
        connection.registered.add_producer(1, listener)
        connection.registered.add_watcher(1, listener)
        pulsar.first.cut()
        await asyncio.sleep(1)
        connection.close()
        await connection.aclose()
        await connection.aclose()
        assert [call[0] for call in listener.calls] == ["on_connection_lost"] * 2
        with pytest.raises(ConnectionLost):
            connection.registered.add_consumer(1, listener)
        connection.registered.remove_producer(1)


async def test_what_was_written_before_an_orderly_close_arrives(
    pulsar: ScriptedPulsar, network: Network
) -> None:
    network.window = 1000
    async with connected() as connection:
        for number in range(1000):
            connection.send_command(c.CommandFlow(consumer_id=1, message_permits=number + 1))
        await connection.aclose()
    await asyncio.sleep(1)
    assert len(pulsar.commands(c.CommandFlow)) == 1000


async def test_an_orderly_close_waits_a_few_seconds_for_a_broker_that_reads_nothing(
    pulsar: ScriptedPulsar, network: Network
) -> None:
    network.window = 1000
    async with connected() as connection:
        network.blackhole(HOST, PORT, connect="accept")
        connection.send(bytes(10_000))
        started = now()
        await connection.aclose()
        assert 1 <= now() - started <= 10
        network.cut()
        network.heal()


async def test_writers_wait_while_the_buffer_is_full_and_not_after_the_end(
    pulsar: ScriptedPulsar, network: Network
) -> None:
    network.window = 1000
    async with connected() as connection:
        network.blackhole(HOST, PORT, connect="accept")
        assert connection.is_writable
        connection.send(bytes(200_000))
        assert not connection.is_writable
        draining = asyncio.create_task(connection.drain())
        await asyncio.sleep(5)
        assert not draining.done()
        connection.close(ConnectionLost("ended by the test"))
        await asyncio.wait_for(draining, 1)
        network.cut()
        network.heal()


async def ends(connection: PulsarConnection) -> None:
    """Wait until a connection is closed."""
    while not connection.is_closed:
        await asyncio.sleep(0.1)


async def test_close_inside_a_push_stops_what_follows_in_the_same_piece(pulsar: ScriptedPulsar) -> None:
    class Closing(RecordingListener):
        def on_message(self, connection: PulsarConnection, *_: Any) -> None:
            self.calls.append(("on_message",))
            connection.close()

    listener = Closing()
    async with connected() as connection:
        connection.registered.add_consumer(1, listener)
        for _ in range(3):
            pulsar.connections[0].push_entry(1, b"value")
        await ends(connection)
        await asyncio.sleep(1)
        assert [call[0] for call in listener.calls] == ["on_message", "on_connection_lost"]


# --- writes -----------------------------------------------------------------------------------------------------------


def flow_frames(count: int) -> list[bytes]:
    return [encode_frame(c.CommandFlow(consumer_id=number, message_permits=1)) for number in range(count)]


async def test_what_one_turn_sends_is_written_together(
    pulsar: ScriptedPulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected() as connection:
        written: list[int] = []
        monkeypatch.setattr(
            connection.protocol.transport,
            "writelines",
            lambda pieces: written.append(sum(map(len, pieces))),
        )
        for frame in flow_frames(1000):
            connection.send(frame)
        assert written == []
        await asyncio.sleep(0)
        assert written == [sum(map(len, flow_frames(1000)))]
        connection.send(b"x" * 70_000, b"y")
        assert written[1:] == [70_001], "as much as that does not wait"
        await asyncio.sleep(0)
        assert len(written) == 2
        monkeypatch.undo()


async def test_commands_arrive_in_the_order_in_which_they_were_sent(pulsar: ScriptedPulsar) -> None:
    async with connected() as connection:
        connection.send_command(c.CommandFlow(consumer_id=0, message_permits=1))
        connection.send(*flow_frames(5000))  # more than is held back
        connection.send_command(c.CommandFlow(consumer_id=9999, message_permits=1))
        await asyncio.sleep(1)
        ids = [flow.consumer_id for flow in pulsar.commands(c.CommandFlow)]
        assert ids == [0, *range(5000), 9999]


async def test_nothing_is_written_after_a_close_with_an_error(pulsar: ScriptedPulsar) -> None:
    async with connected() as connection:
        connection.send(*flow_frames(1))
        connection.close(ConnectionLost("over"))
        await asyncio.sleep(1)
        assert pulsar.commands(c.CommandFlow) == []
