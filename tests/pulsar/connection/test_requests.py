"""Requests of a connection: time limits, late answers, refusals, cancelled callers, and everything that ends them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.errors import ConnectionLost, ProtocolError, RequestTimedOut
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire import commands as c
from tests.pulsar.scripted import Call, ScriptedPulsar, in_turn, late, no_answer, refuse
from tests.pulsar.support import connected, core_of, last_id, now, producer, subscribe


def unsubscribe(number: int) -> c.CommandUnsubscribe:
    return c.CommandUnsubscribe(consumer_id=number, request_id=number)


async def test_each_caller_gets_the_answer_to_its_request(pulsar: ScriptedPulsar) -> None:
    held: list[Call] = []
    pulsar.first.script[c.CommandLookupTopic] = held.append
    async with connected() as connection:

        def lookup(name: str) -> Any:
            return connection.request(
                name, lambda number: c.CommandLookupTopic(topic=name, request_id=number), timeout=5
            )

        waiting = [asyncio.create_task(lookup(f"t{number}")) for number in range(20)]
        await asyncio.sleep(1)
        assert len({call.request_id for call in held}) == 20
        for call in reversed(held):
            call.answer(c.CommandLookupTopicResponse(request_id=call.request_id, message=call.command.topic))
        assert [(await one).message for one in waiting] == [f"t{number}" for number in range(20)]
        assert connection.is_idle


async def test_a_request_without_an_answer_times_out_and_the_connection_stays(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandGetLastMessageId] = late(8.0)
    async with connected() as connection:
        with pytest.raises(RequestTimedOut, match=r"^LAST_ID: no answer within 5 s$"):
            await connection.request("LAST_ID", last_id, timeout=5)
        assert now() == pytest.approx(5.0)
        assert connection.is_idle
        await connection.request("UNSUBSCRIBE", unsubscribe, timeout=5)
        await asyncio.sleep(5)
        assert not connection.is_closed
        assert connection._requests.late == 1, "the answer that came after the limit was dropped"


async def test_a_request_without_a_limit(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandGetLastMessageId] = late(500.0)
    async with connected() as connection:
        await connection.request("LAST_ID", last_id, timeout=None)
        assert now() == pytest.approx(500.0)


async def test_a_refusal_names_what_was_asked_for(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandUnsubscribe] = refuse(22, "Consumer\nhas others")
    async with connected() as connection:
        with pytest.raises(PulsarServerError) as raised:
            await connection.request("unsubscribe from s", unsubscribe, timeout=5)
        error = raised.value
        assert str(error) == r"unsubscribe from s: NotAllowedError (22): Consumer\nhas others"
        assert (error.code, error.name, error.about) == (22, "NotAllowedError", "unsubscribe from s")
        assert not error.retriable
        assert not connection.is_closed


def test_the_class_of_a_brokers_exception_is_left_out_of_the_message() -> None:
    text = (
        "org.apache.pulsar.broker.service.BrokerServiceException$TopicTerminatedException: It was terminated"
    )
    error = PulsarServerError(15, "producer of t", text)
    assert str(error) == "producer of t: TopicTerminatedError (15): It was terminated"
    assert error.text == text
    for other in ("Topic: a.b.Exception: kept", "Exception: kept", "a.b.Exception:kept"):
        assert str(PulsarServerError(15, "x", other)).endswith(f": {other}")
    assert str(PulsarServerError(15, "x", "java.io.IOException: ")).endswith("(15)")


async def test_an_error_code_of_a_newer_broker(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandUnsubscribe] = refuse(99, "")
    async with connected() as connection:
        with pytest.raises(PulsarServerError, match=r"does not know \(99\)$") as raised:
            await connection.request("x", unsubscribe, timeout=5)
        assert raised.value.retriable


@pytest.mark.parametrize("code", [0, 13])
async def test_an_ack_that_was_refused(pulsar: ScriptedPulsar, code: int) -> None:
    pulsar.first.script[c.CommandAck] = refuse(code)
    async with connected() as connection:
        with pytest.raises(PulsarServerError) as raised:
            await connection.request(
                "ACK",
                lambda number: c.CommandAck(consumer_id=1, ack_type=0, request_id=number),
                timeout=5,
            )
        assert raised.value.code == code


async def test_a_producer_that_waits_for_its_turn_has_no_limit(pulsar: ScriptedPulsar) -> None:
    def answer(call: Call) -> None:
        waits = c.CommandProducerSuccess(request_id=call.request_id, producer_name="p", producer_ready=False)
        call.answer(waits)
        asyncio.get_running_loop().call_later(500.0, call.answer, waits)
        asyncio.get_running_loop().call_later(
            900.0, call.answer, c.CommandProducerSuccess(request_id=call.request_id, producer_name="p")
        )

    pulsar.first.script[c.CommandProducer] = answer
    async with connected() as connection:
        answered = await connection.request("PRODUCER", producer, timeout=5)
        assert answered.producer_ready
        assert now() == pytest.approx(900.0)


async def test_a_producer_that_waits_for_its_turn_ends_with_the_connection(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandProducer] = lambda call: call.answer(
        c.CommandProducerSuccess(request_id=call.request_id, producer_name="p", producer_ready=False)
    )
    async with connected() as connection:
        waiting = asyncio.create_task(connection.request("PRODUCER", producer, timeout=5))
        await asyncio.sleep(60)
        assert not waiting.done()
        pulsar.first.cut()
        with pytest.raises(ConnectionLost, match=r"^10.0.0.1:6650: connection lost"):
            await waiting


async def test_a_cancelled_caller_leaves_the_connection_open(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandGetLastMessageId] = late(3.0)
    async with connected() as connection:
        impatient = asyncio.create_task(connection.request("one", last_id, timeout=60))
        patient = asyncio.create_task(connection.request("two", last_id, timeout=60))
        await asyncio.sleep(1)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        assert (await patient).request_id == 1
        assert connection._requests.late == 1
        assert connection.is_idle
    assert asyncio.get_running_loop().time() < 10, "no time limit is left"


async def test_a_command_that_cannot_be_encoded_leaves_nothing(pulsar: ScriptedPulsar) -> None:
    async with connected() as connection:
        with pytest.raises(ZeroDivisionError):
            await connection.request("x", lambda number: 1 // 0, timeout=5)  # type: ignore[arg-type, return-value]
        await asyncio.sleep(0)
        assert connection.is_idle
        await connection.request("LAST_ID", last_id, timeout=5)


async def test_an_answer_of_another_type_closes_the_connection(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandGetLastMessageId] = Call.succeed
    async with connected() as connection:
        with pytest.raises(ProtocolError, match="LAST_ID: the answer is a CommandSuccess"):
            await connection.request("LAST_ID", last_id, timeout=5)
        assert connection.is_closed


async def test_requests_with_different_limits_share_a_timer(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandGetLastMessageId] = no_answer
    ended: dict[int, float] = {}

    async def ask(connection: PulsarConnection, limit: int) -> None:
        with pytest.raises(RequestTimedOut, match=f"no answer within {limit} s"):
            await connection.request("LAST_ID", last_id, timeout=limit)
        ended[limit] = now()

    async with connected() as connection:
        async with asyncio.TaskGroup() as tasks:
            for limit in (7, 3, 11, 5):
                tasks.create_task(ask(connection, limit))
            await asyncio.sleep(4)
            tasks.create_task(ask(connection, 2))
        assert ended == pytest.approx({3: 3.0, 5: 5.0, 2: 6.0, 7: 7.0, 11: 11.0})
        assert connection.is_idle


async def test_a_callback_gets_the_answer_the_refusal_or_the_end(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandGetLastMessageId] = no_answer
    pulsar.first.script[c.CommandUnsubscribe] = in_turn(Call.default, refuse(22))
    got: list[object] = []

    def done(answer: object, error: Exception | None) -> None:
        got.append(error or answer)

    async with connected() as connection:
        for _ in range(2):
            connection.call_with_answer("UNSUBSCRIBE", unsubscribe, 5, done)
        await asyncio.sleep(1)
        connection.call_with_answer("LAST_ID", last_id, 5, done)
        await asyncio.sleep(6)
        connection.call_with_answer("LAST_ID", last_id, 5, done)
        connection.close()
    assert [type(each) for each in got] == [
        c.CommandSuccess,
        PulsarServerError,
        RequestTimedOut,
        ConnectionLost,
    ]
    with pytest.raises(ConnectionLost):
        connection.call_with_answer("LAST_ID", last_id, 5, done)
    assert len(got) == 4


# --- the end of the connection ----------------------------------------------------------------------------------------


async def end_by_cut(pulsar: ScriptedPulsar, connection: PulsarConnection) -> None:
    pulsar.first.cut()


async def end_by_close(pulsar: ScriptedPulsar, connection: PulsarConnection) -> None:
    connection.close()


async def end_by_aclose(pulsar: ScriptedPulsar, connection: PulsarConnection) -> None:
    await connection.aclose()


async def end_by_eof(pulsar: ScriptedPulsar, connection: PulsarConnection) -> None:
    pulsar.connections[0].transport.close()


@pytest.mark.parametrize("end", [end_by_cut, end_by_close, end_by_aclose, end_by_eof])
async def test_requests_end_with_the_connection(pulsar: ScriptedPulsar, end: Any) -> None:
    pulsar.first.script[c.CommandGetLastMessageId] = no_answer
    async with connected() as connection:
        waiting = [
            asyncio.create_task(connection.request("LAST_ID", last_id, timeout=limit)) for limit in (60, None)
        ]
        await asyncio.sleep(1)
        await end(pulsar, connection)
        for one in waiting:
            with pytest.raises(ConnectionLost, match=r"^10.0.0.1:6650: "):
                await one
        assert connection.is_closed
        assert connection.is_idle
        with pytest.raises(ConnectionLost, match=r"^10.0.0.1:6650: "):
            await connection.request("LAST_ID", last_id, timeout=60)
        connection.send(b"nothing happens")
        assert now() < 2


async def test_a_malformed_answer_ends_the_connection_and_names_the_command(pulsar: ScriptedPulsar) -> None:
    frame = bytes.fromhex("00000008 00000004 080d 6a00")  # SUCCESS without its request id
    pulsar.first.script[c.CommandUnsubscribe] = lambda call: call.write(frame)
    async with connected() as connection:
        waiting = asyncio.create_task(connection.request("LAST_ID", subscribe, timeout=60))
        with pytest.raises(ProtocolError, match=r"malformed command: CommandSuccess.*request_id"):
            await connection.request("UNSUBSCRIBE", unsubscribe, timeout=60)
        with pytest.raises((ProtocolError, PulsarServerError)):
            await waiting
        assert connection.is_closed


async def test_a_frame_beyond_the_limit_ends_the_connection(pulsar: ScriptedPulsar) -> None:
    pulsar.first.max_message_size = 1000
    pulsar.first.script[c.CommandUnsubscribe] = lambda call: call.write((20_000).to_bytes(4, "big"))
    async with connected() as connection:
        with pytest.raises(ProtocolError, match=r"^10.0.0.1:6650: .*frame size of 20000 bytes; 0 to 11240"):
            await connection.request("UNSUBSCRIBE", unsubscribe, timeout=60)


# --- too many refusals ------------------------------------------------------------------------------------------------


async def refused(connection: PulsarConnection, count: int) -> int:
    """Make requests that are refused; return how many were answered."""
    for number in range(count):
        with pytest.raises(PulsarServerError):
            await connection.request("x", unsubscribe, timeout=5)
        if connection.is_closed:
            return number + 1
    return count


async def test_fifty_refusals_within_a_minute_close_the_connection(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandUnsubscribe] = refuse(14, "too many")
    async with connected() as connection:
        assert await refused(connection, 100) == 50
        with pytest.raises(ConnectionLost, match="it has refused, or not answered, too many requests"):
            await connection.request("x", unsubscribe, timeout=5)


async def test_fewer_refusals_in_each_minute_do_not(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandUnsubscribe] = refuse(14, "too many")
    async with connected() as connection:
        for _ in range(5):
            assert await refused(connection, 49) == 49
            await asyncio.sleep(61)
        assert not connection.is_closed


async def test_other_refusals_do_not(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandUnsubscribe] = refuse(6, "not ready")
    async with connected() as connection:
        assert await refused(connection, 100) == 100


async def test_requests_without_an_answer_count_as_refusals(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandUnsubscribe] = no_answer
    async with connected() as connection:
        requests = [connection.request("x", unsubscribe, timeout=5) for _ in range(50)]
        errors = await asyncio.gather(*requests, return_exceptions=True)
        assert {type(error) for error in errors} == {RequestTimedOut}
        assert connection.is_closed


async def test_request_ids_are_counted_over_all_connections_of_a_client(pulsar: ScriptedPulsar) -> None:
    async with core_of(pulsar, connections_per_broker=3) as core:
        for slot in range(3):
            connection = await core.pool.get(core.lookup._service.addresses[0], slot=slot)
            await connection.request("LAST_ID", last_id, timeout=5)
    assert [one.request_id for one in pulsar.commands(c.CommandGetLastMessageId)] == [0, 1, 2]
