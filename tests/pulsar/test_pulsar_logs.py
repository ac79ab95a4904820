"""The log of Pulsar's clients: one line for a loss of the broker and one for its end, with the fields of structured logs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asyncgroup import WorkQueue
from asyncgroup.log_events import FIELDS
from asyncgroup.pulsar import EARLIEST, PulsarClient
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.workqueue import PulsarSource
from tests.pulsar.scripted import ScriptedPulsar, in_turn, late, refuse

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

TOPIC = "persistent://public/default/orders"


@pytest.fixture(autouse=True)
def _of_all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncgroup")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of the lines with an event, and their texts."""
    return [
        {name: vars(each)[name] for name in FIELDS if name in vars(each)} | {"text": each.getMessage()}
        for each in caplog.records
        if "event" in vars(each)
    ]


async def test_an_outage_is_two_lines_for_each(
    pulsar: ScriptedPulsar, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        PulsarClient(pulsar.url) as client,
        client.producer("orders"),
        client.subscribe("orders", "audit", type="shared"),
        WorkQueue(PulsarSource(client, "billing", "orders")),
    ):
        assert lines(caplog) == []
        await pulsar["10.0.0.1"].stop()
        await asyncio.sleep(20.0)
        await pulsar["10.0.0.1"].start()
        await asyncio.sleep(40.0)
    found = lines(caplog)
    assert sorted(
        (each["event"], each.get("group", ""), each["topic"], each["partition"]) for each in found
    ) == [
        (event, group, TOPIC, -1) for event in ("attached", "detached") for group in ("", "audit", "billing")
    ]
    lost, again = (
        next(each for each in found if each["event"] == event) for event in ("detached", "attached")
    )
    assert lost["error"] == "asyncgroup.errors.ConnectionLost"
    assert lost["text"].startswith(f"producer of {TOPIC}: 10.0.0.1:6650: ")
    assert lost["text"].endswith("; it connects again")
    assert ": registered at its broker after 2" in again["text"]
    assert len(caplog.records) == len(found), "no other lines"


async def test_a_first_attempt_that_fails(pulsar: ScriptedPulsar, caplog: pytest.LogCaptureFixture) -> None:
    pulsar.script[c.CommandSubscribe] = in_turn(refuse(6), refuse(6), late(0.0))
    async with PulsarClient(pulsar.url) as client, client.subscribe("orders", "audit"):
        pass
    assert [(each["event"], each.get("error")) for each in lines(caplog)] == [
        ("detached", "ServiceNotReady"),
        ("attached", None),
    ]


async def test_a_seek_is_no_loss(pulsar: ScriptedPulsar, caplog: pytest.LogCaptureFixture) -> None:
    def close_and_succeed(call: Any) -> None:
        call.connection.close_attached(TOPIC)
        call.succeed()

    pulsar.script[c.CommandSeek] = close_and_succeed
    async with PulsarClient(pulsar.url) as client, client.subscribe("orders", "audit") as consumer:
        await consumer.seek(EARLIEST)
        await asyncio.sleep(5.0)
        (one,) = consumer.partitions
        assert one.is_attached
        assert not one.history.losses
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["consumer", "queue"])
async def test_acknowledgements_that_fail(
    pulsar: ScriptedPulsar, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    pulsar.script[c.CommandAck] = in_turn(refuse(1), refuse(1), late(0.0), refuse(1), late(0.0))
    async with PulsarClient(pulsar.url) as client:
        opened: Any = client.subscribe("orders", "billing", type="shared")
        if kind == "queue":
            opened = WorkQueue(PulsarSource(client, "billing", "orders"))
        async with opened as reader:
            (connection,) = pulsar.connections
            for entry in range(2):
                connection.push_entry(next(iter(connection.consumers)), b"a", entry_id=entry)
                message = await reader.receive()
                if kind == "queue":
                    await message.ack()
                else:
                    reader.ack(message)
                await asyncio.sleep(10.0)
    found = [{key: each[key] for key in ("event", "group", "topic", "error")} for each in lines(caplog)]
    assert found == [
        {"event": "ack_failed", "group": "billing", "topic": TOPIC, "error": "MetadataError"}
        for _ in range(2)
    ]
    assert len(caplog.records) == 2
