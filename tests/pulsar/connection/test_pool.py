"""The connections of a client: shared attempts, several for a broker, idle ones, and the end."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import AuthenticationError, ClosedError, ConnectError
from asyncgroup.pulsar.client import ClientCore
from asyncgroup.pulsar.service_url import BrokerAddress
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.testing import Network
from tests.pulsar.scripted import PORT, ScriptedPulsar, in_turn, late, no_answer, refuse
from tests.pulsar.support import HOST, RecordingListener, core_of, last_id, now

ADDRESS = BrokerAddress(HOST, PORT)


async def test_one_connection_for_a_broker(pulsar: ScriptedPulsar) -> None:
    async with core_of(pulsar) as core:
        connections = [await core.pool.get(ADDRESS, slot=core.pool.new_slot()) for _ in range(5)]
        assert len({id(one) for one in connections}) == 1
        assert core.pool.connections == connections[:1]
        assert repr(core.pool) == "<PulsarConnectionPool 1 connections>"


async def test_one_for_each_broker_behind_a_proxy(pulsar: ScriptedPulsar) -> None:
    async with core_of(pulsar) as core:
        brokers = [BrokerAddress(f"broker-{number}", PORT) for number in range(3)]
        connections = [await core.pool.get(broker, ADDRESS) for broker in brokers]
        assert [one.logical for one in connections] == brokers
        assert await core.pool.get(brokers[1], ADDRESS) is connections[1]
        sent = pulsar.commands(c.CommandConnect)
        assert [one.proxy_to_broker_url for one in sent] == [
            "broker-0:6650",
            "broker-1:6650",
            "broker-2:6650",
        ]


async def test_several_connections_for_a_broker(pulsar: ScriptedPulsar) -> None:
    async with core_of(pulsar, connections_per_broker=3) as core:
        slots = {core.pool.new_slot() for _ in range(100)}
        assert slots == {0, 1, 2}
        connections = {slot: await core.pool.get(ADDRESS, slot=slot) for slot in slots}
        assert len({id(one) for one in connections.values()}) == 3
        for slot, one in connections.items():
            assert await core.pool.get(ADDRESS, slot=slot) is one


# --- shared attempts --------------------------------------------------------------------------------------------------


async def test_callers_share_an_attempt(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandConnect] = late(3.0)
    async with core_of(pulsar) as core:
        connections = await asyncio.gather(*(core.pool.get(ADDRESS) for _ in range(10)))
        assert len({id(one) for one in connections}) == 1
        assert pulsar.first.accepted == 1


async def test_a_cancelled_caller_does_not_end_the_attempt_of_others(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandConnect] = late(3.0)
    async with core_of(pulsar) as core:
        callers = [asyncio.create_task(core.pool.get(ADDRESS)) for _ in range(3)]
        await asyncio.sleep(1)
        callers[0].cancel()
        callers[2].cancel()
        assert not (await callers[1]).is_closed
        assert callers[0].cancelled()
        assert callers[2].cancelled()
        assert pulsar.first.accepted == 1


async def test_an_attempt_whose_callers_are_all_cancelled_is_used_by_the_next(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandConnect] = late(3.0)
    async with core_of(pulsar) as core:
        caller = asyncio.create_task(core.pool.get(ADDRESS))
        await asyncio.sleep(1)
        caller.cancel()
        await asyncio.sleep(1)
        await core.pool.get(ADDRESS)
        assert now() == pytest.approx(3.0)
        assert pulsar.first.accepted == 1


async def test_each_caller_of_a_failed_attempt_gets_an_error(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandConnect] = in_turn(refuse(3, "expired"), lambda call: call.default())
    async with core_of(pulsar) as core:
        errors = await asyncio.gather(*(core.pool.get(ADDRESS) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in errors] == [AuthenticationError] * 3
        assert len({id(error) for error in errors}) == 3
        assert pulsar.first.accepted == 1
        assert not (await core.pool.get(ADDRESS)).is_closed, "the next call tries again"


async def test_a_failed_attempt_without_callers_is_not_reported(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandConnect] = late(1.0, refuse(3, "expired"))
    async with core_of(pulsar) as core:
        caller = asyncio.create_task(core.pool.get(ADDRESS))
        await asyncio.sleep(0.5)
        caller.cancel()
        await asyncio.sleep(5)


# --- connections that end ---------------------------------------------------------------------------------------------


async def test_a_closed_connection_is_replaced(pulsar: ScriptedPulsar) -> None:
    async with core_of(pulsar) as core:
        first = await core.pool.get(ADDRESS)
        pulsar.first.cut()
        await asyncio.sleep(0.1)
        assert core.pool.connections == []
        second = await core.pool.get(ADDRESS)
        assert second is not first
        assert not second.is_closed


async def test_an_idle_connection_is_closed(pulsar: ScriptedPulsar) -> None:
    async with core_of(pulsar, connections_max_idle=60.0) as core:
        await core.pool.get(ADDRESS)
        await asyncio.sleep(59)
        assert len(pulsar.connections) == 1
        await asyncio.sleep(62)
        assert pulsar.connections == []
        assert core.pool.connections == []
        await core.pool.get(ADDRESS)
        assert len(pulsar.connections) == 1


@pytest.mark.parametrize("what", ["producer", "consumer", "watcher", "request"])
async def test_a_connection_in_use_is_not_idle(pulsar: ScriptedPulsar, what: str) -> None:
    pulsar.first.script[c.CommandGetLastMessageId] = no_answer
    async with core_of(pulsar) as core:
        connection = await core.pool.get(ADDRESS)
        asking = None
        if what == "request":
            asking = asyncio.create_task(connection.request("LAST_ID", last_id, timeout=None))
        else:
            getattr(connection.registered, f"add_{what}")(1, RecordingListener())
        await asyncio.sleep(500)
        assert not connection.is_closed
        if asking is not None:
            asking.cancel()
        else:
            getattr(connection.registered, f"remove_{what}")(1)
        await asyncio.sleep(59)
        assert not connection.is_closed, "unused for 59 s"
        await asyncio.sleep(62)
        assert connection.is_closed


async def test_what_the_broker_closes_finds_the_connection_still_open(pulsar: ScriptedPulsar) -> None:
    async with core_of(pulsar) as core:
        connection = await core.pool.get(ADDRESS)
        connection.registered.add_consumer(1, RecordingListener())
        await asyncio.sleep(599)
        pulsar.connections[0].push(c.CommandCloseConsumer(consumer_id=1, request_id=0))
        await asyncio.sleep(2)  # a sweep was in between
        assert await core.pool.get(ADDRESS) is connection


async def test_a_connection_that_is_asked_for_now_and_then_is_not_idle(pulsar: ScriptedPulsar) -> None:
    async with core_of(pulsar) as core:
        connection = await core.pool.get(ADDRESS)
        for _ in range(10):
            await asyncio.sleep(55)
            assert await core.pool.get(ADDRESS) is connection


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_all_connections_end_with_the_client(pulsar: ScriptedPulsar) -> None:
    listener = RecordingListener()
    async with core_of(pulsar, connections_per_broker=2) as core:
        for slot in (0, 1):
            (await core.pool.get(ADDRESS, slot=slot)).registered.add_consumer(slot, listener)
        await core.aclose()
        assert [call[0] for call in listener.calls] == ["on_connection_lost"] * 2
        with pytest.raises(ClosedError, match="the client is closed"):
            await core.pool.get(ADDRESS)
    await asyncio.sleep(0.1)
    assert pulsar.connections == []


@pytest.mark.parametrize("after", [0.0, 0.5, 1.5, 2.5, 3.5, 5.0])
async def test_a_close_during_an_attempt(pulsar: ScriptedPulsar, network: Network, after: float) -> None:
    network.latency = 1.0
    pulsar.first.script[c.CommandConnect] = late(0.5)
    async with core_of(pulsar) as core:
        callers = [asyncio.create_task(core.pool.get(ADDRESS)) for _ in range(2)]
        await asyncio.sleep(after)
        await core.aclose()
        for caller in callers:
            if after < 4:
                with pytest.raises(ClosedError, match="the client is closed"):
                    await caller
            else:
                assert (await caller).is_closed
    await asyncio.sleep(5)
    assert pulsar.connections == []


async def close_failing(core: ClientCore, caller: asyncio.Task[object]) -> None:
    caller.cancel()
    await core.aclose()


async def test_a_caller_that_is_cancelled_at_the_close(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandConnect] = no_answer
    async with core_of(pulsar) as core:
        caller: asyncio.Task[object] = asyncio.create_task(core.pool.get(ADDRESS))
        await asyncio.sleep(1)
        await close_failing(core, caller)
        with pytest.raises(asyncio.CancelledError):
            await caller


async def test_a_close_while_an_idle_connection_is_being_closed(
    pulsar: ScriptedPulsar, network: Network
) -> None:
    network.window = 1000
    async with core_of(pulsar, connections_max_idle=10.0) as core:
        connection = await core.pool.get(ADDRESS)
        network.blackhole(HOST, PORT, connect="accept")
        connection.send(bytes(10_000))
        await asyncio.sleep(10.5)
        assert connection.is_closed
        await core.aclose()
        assert now() > 11
        network.cut()
        network.heal()


async def test_attempts_to_one_broker_do_not_wait_for_another(
    two_brokers: ScriptedPulsar, network: Network
) -> None:
    network.blackhole(HOST)
    async with core_of(two_brokers, connect_timeout=5.0) as core:
        slow = asyncio.create_task(core.pool.get(ADDRESS))
        await core.pool.get(BrokerAddress("10.0.0.2", PORT))
        assert now() < 1
        with pytest.raises(ConnectError, match="no answer in time"):
            await slow
        assert now() == pytest.approx(5.0)
