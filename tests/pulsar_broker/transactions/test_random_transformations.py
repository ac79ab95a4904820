"""Messages are transformed exactly once while brokers of the embedded Pulsar stop, topics and coordinators move, and connections end.

A message whose receipt is lost is sent again in its transaction if topics deduplicate; else the transaction is aborted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consume_transform_produce import PulsarConsumeTransformProduce, PulsarTransactionOutput
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.wire_client import COORDINATORS

pytestmark = pytest.mark.virtual(max_virtual_time=7200)

HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
MESSAGES = 60
TROUBLE = 30.0
"""Seconds of virtual time during which things happen."""


async def disturb(pulsar: EmbeddedPulsar, dice: random.Random) -> None:
    """Let things happen to brokers, topics and connections, each after up to two seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + TROUBLE
    topics = ["in", "out", str(COORDINATORS)]
    while loop.time() < end:
        await asyncio.sleep(dice.uniform(0.05, 2.0))
        broker = dice.randint(1, len(HOSTS))
        match dice.randrange(6):
            case 0:
                pulsar.cut(broker)
            case 1:
                await pulsar.stop_broker(broker)
                await asyncio.sleep(dice.uniform(0.1, 3.0))
                await pulsar.start_broker(broker)
            case 2:
                pulsar.slow_broker(broker, dice.choice([0.0, 0.05, 0.3]))
            case 3:
                api = dice.choice(
                    ["NewTxn", "AddPartitionToTxn", "AddSubscriptionToTxn", "EndTxn", "Ack", "Send"]
                )
                pulsar.faults.on(api).disconnect(dice.choice(["before", "after"])).optional()
            case _:
                pulsar.unload(dice.choice(topics), to=dice.choice([None, broker]))
    for broker in pulsar.brokers:
        pulsar.slow_broker(broker, 0.0)


async def shout(batch: Sequence[PulsarMessage], output: PulsarTransactionOutput) -> None:
    for message in batch:
        await output.enqueue("out", (message.value or b"").upper(), key=message.key)
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", ["failover", "shared", "key_shared"])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 12))])
async def test_each_message_counts_once(seed: int, kind: str) -> None:
    dice = random.Random(f"{seed} {kind}")
    topics = {"in": 3, "out": 2}
    deduplication = (kind == "shared") == bool(seed % 2)
    async with EmbeddedPulsar(
        hosts=HOSTS, port=6650, topics=topics, transaction_coordinators=2, deduplication=deduplication
    ) as pulsar:
        early = PulsarConsumerConfig(initial_position="earliest")
        worker = PulsarConsumeTransformProduce(
            shout, consumer_config=early, timeout=5.0, max_records=5, max_failures=1_000
        )
        clients = [PulsarClient(pulsar.service_url, PulsarConfig(keep_alive_interval=5.0)) for _ in range(3)]
        async with clients[0], clients[1], clients[2]:
            async with (
                asyncio.TaskGroup() as tasks,
                clients[2].subscribe("out", "s", type="shared", config=early) as reader,
            ):
                workers = [
                    tasks.create_task(worker.run(client, "in", "w", type=kind)) for client in clients[:2]
                ]
                trouble = tasks.create_task(disturb(pulsar, dice))
                for number in range(MESSAGES):
                    pulsar.produce("in", (f"k{number % 7}", f"v{number}"))
                    await asyncio.sleep(dice.uniform(0.0, 1.0))
                await trouble
                found = set()
                async with asyncio.timeout(600):
                    while len(found) < MESSAGES:
                        message = await reader.receive()
                        reader.ack(message)
                        found.add(message.value)
                for task in workers:
                    task.cancel()
        values = [
            message.value
            for partition in range(2)
            for message in committed(pulsar, f"out-partition-{partition}")
        ]
        assert sorted(values) == sorted(f"V{number}".encode() for number in range(MESSAGES))
        assert pulsar.subscription("in", "w").backlog == 0


def committed(pulsar: EmbeddedPulsar, topic: str) -> list[PulsarMessage]:
    """Return the messages of a partition without those of aborted transactions."""
    log = runtime_of(pulsar).topic(topic).log
    hidden = {log[index].position for index in log.hidden}
    return [each for each in pulsar.messages(topic) if each.message_id[:2] not in hidden]
