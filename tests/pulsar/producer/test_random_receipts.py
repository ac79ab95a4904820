"""Brokers that answer SEND with anything: each message has one result in time, and the producer is usable afterwards."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.wire import commands as c
from tests.profiles import thinned
from tests.pulsar.scripted import Answerer, Call, ScriptedPulsar

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

TOPIC = "persistent://public/default/orders"
NUMBERS = (0, 1, 5, 1 << 31, 1 << 63, (1 << 64) - 1)
ERRORS = (0, 1, 2, 7, 8, 9, 22, 99)
SEND_TIMEOUT = 5.0


def random_answers(pulsar: ScriptedPulsar, rng: random.Random) -> Answerer:
    """Return what answers each SEND with receipts, errors, the end of the connection or of the producer, or nothing."""

    def receipt(call: Call) -> c.CommandSendReceipt:
        own = call.command.sequence_id
        place = c.MessageIdData(ledger_id=rng.choice(NUMBERS), entry_id=rng.choice(NUMBERS))
        return c.CommandSendReceipt(
            producer_id=rng.choice([call.command.producer_id] * 3 + [99]),
            sequence_id=rng.choice([own, own + 1, max(0, own - 1), *NUMBERS]),
            highest_sequence_id=rng.choice([0, own, *NUMBERS]),
            message_id=rng.choice([None, place]),
        )

    def refusal(call: Call) -> c.CommandSendError:
        own = call.command.sequence_id
        return c.CommandSendError(
            producer_id=call.command.producer_id,
            sequence_id=rng.choice([own, own + 1, *NUMBERS]),
            error=rng.choice(ERRORS),
            message="no\n\x1b[31m",
        )

    def answer(call: Call) -> None:
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            match rng.randrange(7):
                case 0:
                    call.answer(receipt(call))
                case 1:
                    call.answer(refusal(call))
                case 2:
                    call.cut()
                case 3:
                    url = rng.choice([None, pulsar.url, "pulsar://nowhere:1", "no url"])
                    call.connection.close_attached(TOPIC, url)
                case _:
                    call.default()

    return answer


async def send(producer: PulsarProducer, size: int) -> None:
    async with asyncio.timeout(SEND_TIMEOUT + 1):
        with suppress(AsyncGroupError):
            await producer.send(b"v" * size)


@pytest.mark.parametrize("seed", thinned(range(48)))
async def test_any_receipts(pulsar: ScriptedPulsar, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(seed)
    config = PulsarProducerConfig(
        batching=rng.random() < 0.5, send_timeout=SEND_TIMEOUT, max_pending_messages=10
    )
    async with PulsarClient(pulsar.url, PulsarConfig(retry_backoff_max=1.0, memory_limit=5000)) as client:
        async with client.producer("orders", config) as producer:
            pulsar.script[c.CommandSend] = random_answers(pulsar, rng)
            for _ in range(6):
                await asyncio.gather(*(send(producer, rng.randrange(900)) for _ in range(5)))
                await asyncio.sleep(rng.choice([0, rng.uniform(0, 2)]))
            assert producer.pending_messages == 0
            pulsar.script.clear()
            await asyncio.sleep(10)
            stored = await asyncio.gather(*(producer.send(b"v" * 900) for _ in range(5)))
            assert len(set(stored)) == 5, "all room is free"
    assert not [record for record in caplog.records if record.exc_info]
