"""The health of a queue on scripted Pulsar brokers, in virtual time: problems as values, and what probes say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup import WorkQueue
from asyncgroup.group import MemberProblem, ProblemKind
from asyncgroup.pulsar import PulsarConfig
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.telemetry import live, ready
from asyncgroup.workqueue import PulsarSource
from asyncgroup.workqueue.pulsar_engine import subscription_health
from tests.pulsar.scripted import BrokerConnection, ScriptedPulsar, in_turn, late, no_answer, refuse

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

TOPIC = "persistent://public/default/orders"


def queue_on(pulsar: ScriptedPulsar, *, source: dict[str, Any] | None = None, **settings: Any) -> WorkQueue:
    return WorkQueue(PulsarSource(pulsar.url, "billing", "orders", **(source or {})), **settings)


def attached(pulsar: ScriptedPulsar) -> tuple[BrokerConnection, int]:
    connection = next(each for each in pulsar.connections if each.consumers)
    return connection, next(iter(connection.consumers))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.05)


def problem(queue: WorkQueue) -> MemberProblem:
    """Return the only problem."""
    (found,) = queue.health().problems
    assert isinstance(found, MemberProblem)
    return found


async def test_an_outage_is_a_reason_to_be_not_ready_and_none_to_restart() -> None:
    async with ScriptedPulsar("10.0.0.1") as pulsar, queue_on(pulsar) as queue:
        assert queue.health().is_healthy
        await pulsar["10.0.0.1"].stop()
        await asyncio.sleep(10.0)
        found = problem(queue)
        assert found.kind is ProblemKind.NO_BROKER
        assert found.names == (TOPIC,)
        assert found.seconds == pytest.approx(10.0, abs=0.1)
        assert "Connection refused" in found
        assert found.startswith(f"{TOPIC} is not connected to its broker for 10.0 s: 10.0.0.1:6650: ")
        assert queue.health().state == "connecting"
        await asyncio.sleep(25.0)
        health = queue.health()
        assert live([queue]).passed
        assert health.not_ready is not None
        assert health.not_ready.startswith(
            "no partition is connected to its broker for 35.0 s: 10.0.0.1:6650: "
        )
        assert isinstance(health.not_ready, MemberProblem)
        assert health.not_ready.kind is ProblemKind.NOT_CONNECTED
        assert ready([queue]).reasons == (f"billing: {health.not_ready}",)
        lost, refused = sorted(health.errors, key=lambda error: error.count)
        assert (lost.count, lost.text.startswith("10.0.0.1:6650: ")) == (1, True)
        assert refused.count > 3
        assert health.errors[0] == refused, "the newest first"
        assert queue.health().as_dict()["problems"][0].startswith(TOPIC)
        await pulsar["10.0.0.1"].start()
        await until(lambda: queue.health().is_healthy)
        assert ready([queue]).passed
        assert queue.health().state == "stable"


async def test_a_partition_without_broker_is_named_and_the_queue_stays_ready() -> None:
    async with ScriptedPulsar("10.0.0.1", "10.0.0.2") as pulsar:
        pulsar.set_partitions("orders", 3)
        pulsar.owners[f"{TOPIC}-partition-1"] = "10.0.0.2"
        async with queue_on(pulsar) as queue:
            await pulsar["10.0.0.2"].stop()
            await asyncio.sleep(100.0)
            found = problem(queue)
            assert (found.kind, found.names) == (ProblemKind.NO_BROKER, (f"{TOPIC}-1",))
            assert ready([queue]).passed


async def test_a_queue_that_is_not_attached_yet_is_not_ready() -> None:
    async with ScriptedPulsar("10.0.0.1") as pulsar:
        pulsar.script[c.CommandSubscribe] = late(5.0)
        queue = queue_on(pulsar)
        opening = asyncio.create_task(queue.__aenter__())
        await asyncio.sleep(2.0)
        assert queue.health().not_ready == (
            "no partition is connected to its broker for 2.0 s: the first attempt has no result yet"
        )
        assert problem(queue).text == "the first attempt has no result yet"
        assert live([queue]).passed
        await opening
        assert ready([queue]).passed
        await queue.aclose()
        assert (queue.health().state, queue.health().not_ready) == ("closed", "the queue is closed")
        assert queue.health().problems == ("the queue is closed",)


async def test_a_broker_that_is_lost_again_and_again() -> None:
    async with ScriptedPulsar("10.0.0.1") as pulsar, queue_on(pulsar) as queue:
        for number in range(5):
            await until(lambda: queue.health().state == "stable")
            assert queue.health().is_healthy, number
            await asyncio.sleep(5.0)
            pulsar.unload("orders")
            await asyncio.sleep(0.01)
        await until(lambda: queue.health().state == "stable")
        found = problem(queue)
        assert found.kind is ProblemKind.LOSES_BROKER
        assert 15 < found.seconds < 40
        assert found.startswith(f"{TOPIC} has lost its broker again and again, within ")
        assert found.endswith(": the broker has closed it")
        assert found.text.startswith("5 times: ")
        await asyncio.sleep(60.0)
        assert queue.health().is_healthy


async def test_acknowledgements_that_fail() -> None:
    async with ScriptedPulsar("10.0.0.1") as pulsar, queue_on(pulsar) as queue:
        pulsar.script[c.CommandAck] = in_turn(*[refuse(1, "no ledger")] * 10, late(0.0))
        connection, number = attached(pulsar)
        connection.push_entry(number, b"a", entry_id=1)
        await (await queue.receive()).ack()
        await asyncio.sleep(5.0)
        found = problem(queue)
        assert (found.kind, found.names) == (ProblemKind.ACKS, (TOPIC,))
        assert found.seconds == pytest.approx(5.0, abs=0.2)
        assert "MetadataError (1): no ledger" in found
        assert ready([queue]).passed
        await asyncio.sleep(10.0)
        assert queue.health().is_healthy
        assert [(error.count, "no ledger" in error.text) for error in queue.health().errors] == [(10, True)]


async def test_acknowledgements_without_an_answer() -> None:
    config = PulsarConfig(operation_timeout=5.0)
    async with ScriptedPulsar("10.0.0.1") as pulsar, queue_on(pulsar, source={"config": config}) as queue:
        pulsar.script[c.CommandAck] = in_turn(no_answer, late(0.0))
        connection, number = attached(pulsar)
        connection.push_entry(number, b"a", entry_id=1)
        await (await queue.receive()).ack()
        await until(lambda: queue.health().problems)
        assert problem(queue).kind is ProblemKind.ACKS
        assert "no answer within 5 s" in problem(queue)
        await asyncio.sleep(3.0)
        assert queue.health().is_healthy


@pytest.mark.parametrize("mode", ["shared", "key_shared", "exclusive"])
async def test_the_limit_of_unacknowledged_messages(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker pushes nothing although there are permits: seen if nothing arrives, and until half is acknowledged."""
    monkeypatch.setattr(subscription_health, "MOST_UNACKED", 100)
    async with ScriptedPulsar("10.0.0.1") as pulsar, queue_on(pulsar, mode=mode, receiver_queue=500) as queue:
        connection, number = attached(pulsar)
        if mode == "exclusive":
            connection.push(c.CommandActiveConsumerChange(consumer_id=number, is_active=True))
        for entry in range(95):
            connection.push_entry(number, b"a", entry_id=entry)
        await asyncio.sleep(1.0)
        assert queue.health().is_healthy
        await asyncio.sleep(15.0)
        if mode == "exclusive":  # only a consumer that acknowledges messages one by one has the limit
            assert queue.health().is_healthy
            return
        found = problem(queue)
        assert (found.kind, found.names) == (ProblemKind.UNACKED, (TOPIC,))
        assert found.startswith(
            f"the broker has pushed no message of {TOPIC} for 15.0 s: 95 messages here are not acknowledged"
        )
        assert ready([queue]).passed
        for _ in range(40):
            await (await queue.receive()).ack()
        assert problem(queue).kind is ProblemKind.UNACKED, "it goes on when half of them are"
        for _ in range(5):
            await (await queue.receive()).ack()
        assert queue.health().is_healthy
        connection.push_entry(number, *[b"a"] * 50, entry_id=200)
        await asyncio.sleep(8.0)
        assert queue.health().is_healthy
        await asyncio.sleep(12.0)
        assert problem(queue).kind is ProblemKind.UNACKED
        connection.push_entry(number, b"a", entry_id=201)
        await asyncio.sleep(0.1)
        assert queue.health().is_healthy, "it was not the limit"


async def test_messages_that_wait_for_their_delivery_are_no_problem_below_the_limit() -> None:
    async with ScriptedPulsar("10.0.0.1") as pulsar, queue_on(pulsar) as queue:
        connection, number = attached(pulsar)
        for entry in range(95):
            connection.push_entry(number, b"a", entry_id=entry)
        for _ in range(3):
            await asyncio.sleep(30.0)
            assert queue.health().is_healthy
