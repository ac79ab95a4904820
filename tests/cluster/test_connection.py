"""One connection: order of responses, limits, throttling, and all reasons to close."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from asyncgroup.cluster.connecting import connect
from asyncgroup.cluster.connection import Address, Connection
from asyncgroup.config import ClientConfig
from asyncgroup.errors import (
    ConnectError,
    ConnectionLost,
    DecodeError,
    MalformedResponse,
    ProtocolError,
    RequestTimedOut,
    TransportError,
)
from asyncgroup.hooks import Hooks
from asyncgroup.testing import Network
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Request
from tests.cluster.scripted import PORT, Call, ScriptedCluster, no_answer
from tests.cluster.support import CONFIG, HEARTBEAT, Events, connected, now

pytestmark = pytest.mark.virtual


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_each_caller_gets_its_own_response(scripted: ScriptedCluster) -> None:
    scripted[1].script["Heartbeat"] = lambda call: call.answer(
        m.HeartbeatResponse(error_code=call.request.generation_id)
    )
    async with connected(scripted) as connection:
        requests = [m.HeartbeatRequest(generation_id=number) for number in range(20)]
        answers = await asyncio.gather(*(connection.request(one, 4, 5.0) for one in requests))
        assert [answer.error_code for answer in answers] == list(range(20))
        assert connection.in_flight == 0


async def test_a_request_timeout_closes_the_connection(scripted: ScriptedCluster) -> None:
    scripted[1].script["Heartbeat"] = no_answer
    events = Events()
    async with connected(scripted, hooks=Hooks([events])) as connection:
        slow = asyncio.create_task(connection.request(HEARTBEAT, 4, 20.0))
        with pytest.raises(RequestTimedOut, match=r"node 1 .*no response to Heartbeat within 7 s"):
            await connection.request(HEARTBEAT, 4, 7.0)
        assert now() == pytest.approx(7.0)
        assert not connection.is_open
        with pytest.raises(ConnectionLost, match="the connection was closed"):
            await slow
        assert len(events.named("on_disconnect")) == 1


async def test_a_cancelled_caller_leaves_the_connection_open(scripted: ScriptedCluster) -> None:
    held: list[Call] = []
    scripted[1].script["Heartbeat"] = held.append
    async with connected(scripted) as connection:
        impatient = asyncio.create_task(connection.request(HEARTBEAT, 4, 60.0))
        patient = asyncio.create_task(connection.request(m.HeartbeatRequest(generation_id=2), 4, 60.0))
        await asyncio.sleep(1)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        assert connection.in_flight == 2, "both requests are still in flight"
        for call in held:
            call.answer(m.HeartbeatResponse(error_code=call.request.generation_id))
        assert (await patient).error_code == 2
        assert connection.is_open


async def cancel_a_request(connection: Connection) -> None:
    """Send a request, and cancel its caller after a second."""
    caller = asyncio.create_task(connection.request(HEARTBEAT, 4, 60.0))
    await asyncio.sleep(1)
    caller.cancel()
    await asyncio.wait([caller])


async def test_a_malformed_response_to_a_cancelled_request_closes_the_connection() -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        held: list[Call] = []
        scripted[1].script["Heartbeat"] = held.append
        async with connected(scripted) as connection:
            await cancel_a_request(connection)
            held[0].write(b"\x00\x00\x00\x05" + held[0].header.correlation_id.to_bytes(4, "big") + b"\x00")
            await asyncio.sleep(1)
            assert not connection.is_open


async def test_a_malformed_response_closes_the_connection(scripted: ScriptedCluster) -> None:
    """The bytes after a malformed response cannot be trusted, so all in-flight requests fail."""

    def answer(call: Call) -> None:
        whole = call.frame(m.HeartbeatResponse(error_code=call.request.generation_id))
        if call.request.generation_id == 1:
            whole = (len(whole) - 4 + 3).to_bytes(4, "big") + whole[4:] + b"???"
        call.write(whole)

    scripted[1].script["Heartbeat"] = answer
    async with connected(scripted) as connection:
        malformed = r"node 1 .*HeartbeatResponse v4.*left over"
        first = connection.request(m.HeartbeatRequest(generation_id=1), 4, 5.0)
        second = connection.request(m.HeartbeatRequest(generation_id=2), 4, 5.0)
        errors = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(error) for error in errors] == [MalformedResponse] * 2
        assert all(re.search(malformed, str(error)) for error in errors)
        assert str(errors[1]).endswith("(the connection was closed)")
        assert errors[0].retriable
        assert isinstance(errors[0], TransportError)
        assert isinstance(errors[0], DecodeError)
        assert not connection.is_open


@pytest.mark.parametrize("size", [0, 3])
async def test_a_response_too_short_for_its_header(scripted: ScriptedCluster, size: int) -> None:
    scripted[1].script["Heartbeat"] = lambda call: call.write(size.to_bytes(4, "big") + b"x" * size)
    async with connected(scripted) as connection:
        with pytest.raises(DecodeError, match="too short"):
            await connection.request(HEARTBEAT, 4, 5.0)
        assert not connection.is_open


@pytest.mark.parametrize("number", [0, -1, 2**31 - 1])
async def test_a_wrong_correlation_id_ends_the_connection(scripted: ScriptedCluster, number: int) -> None:
    scripted[1].script["Heartbeat"] = lambda call: call.answer(m.HeartbeatResponse(), correlation_id=number)
    async with connected(scripted) as connection:
        with pytest.raises(ProtocolError, match=rf"correlation id {number}, expected \d+ \(Heartbeat\)"):
            await connection.request(HEARTBEAT, 4, 5.0)
        assert not connection.is_open


async def test_a_response_without_a_request_closes_the_connection(scripted: ScriptedCluster) -> None:

    def answer(call: Call) -> None:
        call.answer(m.HeartbeatResponse())
        call.answer(m.HeartbeatResponse())

    scripted[1].script["Heartbeat"] = answer
    events = Events()
    async with connected(scripted, hooks=Hooks([events])) as connection:
        assert (await connection.request(HEARTBEAT, 4, 5.0)).error_code == 0
        await asyncio.sleep(1)
        assert not connection.is_open
        assert "no request is in flight" in str(events.named("on_disconnect")[0][-1])


async def test_an_oversized_frame_closes_the_connection_before_its_body_arrives() -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted[1].script["Heartbeat"] = lambda call: call.write((2_000_001).to_bytes(4, "big") + b"x" * 100)
        config = ClientConfig(max_response_size=2_000_000)
        async with connected(scripted, config) as connection:
            with pytest.raises(ProtocolError, match=r"node 1 .*a frame size of 2000001 bytes; 0 to 2000000"):
                await connection.request(HEARTBEAT, 4, 5.0)
            assert not connection.is_open


async def test_a_connection_lost_in_the_middle_of_a_frame(scripted: ScriptedCluster) -> None:

    def answer(call: Call) -> None:
        call.write(call.frame(m.HeartbeatResponse())[:7])
        asyncio.get_running_loop().call_later(1, call.cut)

    scripted[1].script["Heartbeat"] = answer
    async with connected(scripted) as connection:
        with pytest.raises(ConnectionLost, match="node 1"):
            await connection.request(HEARTBEAT, 4, 60.0)
        with pytest.raises(ConnectionLost, match="closed"):
            await connection.request(HEARTBEAT, 4, 60.0)


async def test_closing_fails_in_flight_requests(scripted: ScriptedCluster) -> None:
    scripted[1].script["Heartbeat"] = no_answer
    async with connected(scripted) as connection:
        waiting = [asyncio.create_task(connection.request(HEARTBEAT, 4, 60.0)) for _ in range(3)]
        await asyncio.sleep(1)
        assert connection.in_flight == 3
        await connection.aclose()
        await connection.aclose()
        failed = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in failed] == [ConnectionLost] * 3
        assert len(set(map(id, failed))) == 3, "each caller has its own exception object"
        assert now() == pytest.approx(1.0), "no request waited for its timeout"


async def test_requests_wait_while_the_write_buffer_is_full(network: Network) -> None:
    """A request that waits for the write buffer is not sent, and fails when the connection ends."""
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted[1].script["Produce"] = no_answer
        async with connected(scripted) as connection:
            part = m.ProduceRequest.PartitionProduceData(0, b"x" * 3_000_000)
            big = m.ProduceRequest(
                acks=1,
                topic_data=[m.ProduceRequest.TopicProduceData(name="t", partition_data=[part])],
            )
            network.blackhole("10.0.0.1")
            first = asyncio.create_task(connection.request(big, 9, 20.0))
            await asyncio.sleep(1)
            second = asyncio.create_task(connection.request(HEARTBEAT, 4, 20.0))
            await asyncio.sleep(1)
            assert connection.in_flight == 1
            with pytest.raises(RequestTimedOut):
                await first
            with pytest.raises(ConnectionLost):
                await second
            network.heal()


async def test_requests_in_flight_that_would_delay_another(scripted: ScriptedCluster) -> None:
    """A request delays those of other APIs if brokers hold its API back, or if it has been in flight for a while."""
    scripted[1].script["OffsetFetch"] = no_answer
    scripted[1].script["OffsetCommit"] = no_answer
    async with connected(scripted) as connection:

        def would_delay(cls: type[Request[Any]], *held_apis: str) -> bool:
            return connection.would_delay(cls, held_apis, 0.1)

        assert not would_delay(m.HeartbeatRequest, "OffsetFetch"), "nothing is in flight"
        fetch = asyncio.create_task(connection.request(m.OffsetFetchRequest(group_id="g"), 5, 60.0))
        await asyncio.sleep(0.09)
        assert not would_delay(m.HeartbeatRequest, "OffsetCommit")
        assert would_delay(m.HeartbeatRequest, "OffsetCommit", "OffsetFetch")
        assert not would_delay(m.OffsetFetchRequest, "OffsetFetch")
        await asyncio.sleep(0.02)
        assert would_delay(m.HeartbeatRequest, "OffsetCommit")
        assert not would_delay(m.OffsetFetchRequest, "OffsetFetch")
        commit = asyncio.create_task(connection.request(m.OffsetCommitRequest(group_id="g"), 7, 60.0))
        await asyncio.sleep(0)
        assert would_delay(m.OffsetFetchRequest, "OffsetCommit"), "any of them counts"
        await connection.aclose()
        await asyncio.gather(fetch, commit, return_exceptions=True)


# --- requests without a response --------------------------------------------------------------------------------------


async def test_send_oneway_does_not_wait_for_a_response() -> None:
    async with ScriptedCluster("10.0.0.1") as scripted, connected(scripted) as connection:
        await connection.send_oneway(m.ProduceRequest(acks=0), 9, 5.0)
        assert connection.in_flight == 0
        await asyncio.sleep(1)
        assert len(scripted.requests_of("Produce")) == 1


async def test_send_oneway_times_out_while_the_write_buffer_is_full(network: Network) -> None:
    async with ScriptedCluster("10.0.0.1") as scripted, connected(scripted) as connection:
        network.blackhole("10.0.0.1")
        part = m.ProduceRequest.PartitionProduceData(0, b"x" * 3_000_000)
        data = [m.ProduceRequest.TopicProduceData(name="t", partition_data=[part])]
        with pytest.raises(RequestTimedOut, match="could not be written within 5 s"):
            await connection.send_oneway(m.ProduceRequest(acks=0, topic_data=data), 9, 5.0)
        assert not connection.is_open
        network.heal()


# --- throttling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "pause"), [(1, 0.0), (2, 3.0), (4, 3.0)])
async def test_no_request_is_sent_on_a_throttled_connection(version: int, pause: float) -> None:
    """KIP-219: from Heartbeat version 2 on the client waits; in older versions the broker delays the response."""
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted[1].script["Heartbeat"] = lambda call: call.answer(m.HeartbeatResponse(throttle_time_ms=3000))
        events = Events()
        async with connected(scripted, hooks=Hooks([events])) as connection:
            await connection.request(HEARTBEAT, version, 5.0)
            assert now() == 0.0, "the response itself is not delayed"
            await asyncio.gather(*(connection.request(HEARTBEAT, version, 5.0) for _ in range(3)))
            assert {asked.time for asked in scripted.requests_of("Heartbeat")} == {0.0, pause}
            assert bool(events.named("on_throttle")) == bool(pause)


async def test_no_throttle_time_above_a_minute_is_obeyed(scripted: ScriptedCluster) -> None:
    answer = m.HeartbeatResponse(throttle_time_ms=2**31 - 1)
    scripted[1].script["Heartbeat"] = lambda call: call.answer(answer)
    async with connected(scripted) as connection:
        await connection.request(HEARTBEAT, 4, 5.0)
        await connection.request(HEARTBEAT, 4, 5.0)
        assert now() == 60.0


async def test_a_throttle_time_applies_although_the_caller_was_cancelled(scripted: ScriptedCluster) -> None:
    held: list[Call] = []
    scripted[1].script["Heartbeat"] = held.append
    async with connected(scripted) as connection:
        await cancel_a_request(connection)
        held[0].answer(m.HeartbeatResponse(throttle_time_ms=2000))
        await asyncio.sleep(0.5)
        scripted[1].script["Heartbeat"] = lambda call: call.answer(m.HeartbeatResponse())
        await connection.request(HEARTBEAT, 4, 60.0)
        assert now() == pytest.approx(3.0)


async def test_a_throttle_time_extended_while_waiting_is_obeyed(scripted: ScriptedCluster) -> None:
    held: list[Call] = []
    scripted[1].script["Heartbeat"] = held.append
    async with connected(scripted) as connection:
        first, second = (asyncio.create_task(connection.request(HEARTBEAT, 4, 60.0)) for _ in range(2))
        await asyncio.sleep(1)
        held[0].answer(m.HeartbeatResponse(throttle_time_ms=2000))
        await first
        third = asyncio.create_task(connection.request(HEARTBEAT, 4, 60.0))
        await asyncio.sleep(1)
        held[1].answer(m.HeartbeatResponse(throttle_time_ms=5000))
        await second
        await asyncio.sleep(4.9)
        assert len(held) == 2
        await asyncio.sleep(0.2)
        assert len(held) == 3
        held[2].answer(m.HeartbeatResponse())
        await third


# --- hooks ------------------------------------------------------------------------------------------------------------


async def test_hooks_see_each_connect_and_disconnect_once(scripted: ScriptedCluster) -> None:
    scripted[1].script["Heartbeat"] = lambda call: call.answer(m.HeartbeatResponse())
    events = Events()
    async with connected(scripted, hooks=Hooks([events])) as connection:
        await connection.request(HEARTBEAT, 4, 5.0)
    assert events.named("on_connect") == [("on_connect", 1, "10.0.0.1", PORT, "control")]
    ((_, node, host, port, purpose, error),) = events.named("on_disconnect")
    assert (node, host, port, purpose) == (1, "10.0.0.1", PORT, "control")
    assert isinstance(error, ConnectionLost)
    assert [event[2] for event in events.named("on_request")] == ["ApiVersions", "Heartbeat"]
    assert [event[2] for event in events.named("on_response")] == ["ApiVersions", "Heartbeat"]


async def test_a_failed_handshake_emits_no_connect_event(scripted: ScriptedCluster) -> None:
    scripted[1].script["ApiVersions"] = lambda call: call.cut()
    events = Events()
    with pytest.raises(ConnectError):
        await connect(Address(1, "10.0.0.1", PORT), "control", CONFIG, Hooks([events]))
    assert not events.named("on_connect")
    assert not events.named("on_disconnect")


async def test_the_repr_of_a_connection() -> None:
    async with ScriptedCluster("10.0.0.1") as scripted, connected(scripted) as connection:
        assert repr(connection) == "<Connection node 1 (10.0.0.1:9092) control: open, 0 in flight>"
    assert "closed" in repr(connection)
    assert str(Address(-1, "::1", 9092)) == "[::1]:9092"
    assert str(Address(3, "kafka", 9092)) == "node 3 (kafka:9092)"
