"""Random programs: callers that send, wait, give up and flush, on a broker that cuts, moves, refuses and loses receipts.

Each accepted message ends exactly once; what was acknowledged is stored, and what is certainly missing is not; messages of a
partition are stored in the order of their acceptance; all room is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from asyncgroup.errors import AsyncGroupError, DeliveryFailedError, QueueFull, RequestTimedOut
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from tests.profiles import thinned
from tests.pulsar.producer.broker import Broker

SEEDS = thinned(range(60))
DURATION = 20.0


class Program:
    """A producer, its callers, and what became of each message."""

    def __init__(self, broker: Broker, producer: PulsarProducer, rng: random.Random) -> None:
        self.broker = broker
        self.producer = producer
        self.rng = rng
        self.stored: set[bytes] = set()
        self.missing: set[bytes] = set()
        self.uncertain: set[bytes] = set()
        self.enqueued: set[bytes] = set()
        self.number = 0
        self.is_over = False

    def next_message(self) -> tuple[bytes, dict[str, Any]]:
        self.number += 1
        return b"%d" % self.number, {"key": self.rng.choice([None, "a", "b", "c"])}

    def ended(self, value: bytes, error: BaseException | None) -> None:
        assert value not in self.stored | self.missing | self.uncertain
        if error is None:
            self.stored.add(value)
        elif getattr(error, "may_be_written", False):
            self.uncertain.add(value)
        else:
            assert isinstance(error, QueueFull | RequestTimedOut | PulsarServerError), error
            self.missing.add(value)

    async def caller(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self.rng.choice([0, 0, 0.001, 0.01, 0.3]))
            value, options = self.next_message()
            way = self.rng.randrange(4)
            try:
                if way == 0:
                    await self.producer.send(value, **options)
                elif way == 1:
                    future = self.producer.send_nowait(value, **options)
                    future.add_done_callback(lambda done, value=value: self.ended(value, done.exception()))
                    continue
                elif way == 2:
                    await self.producer.enqueue(value, **options)
                    self.enqueued.add(value)
                    continue
                else:
                    async with asyncio.timeout(self.rng.random() * 0.1):
                        await self.producer.send(value, **options)
            except TimeoutError:
                self.uncertain.add(value)  # withdrawn, or sent nevertheless
            except AsyncGroupError as error:
                self.ended(value, error)
            else:
                self.ended(value, None)

    async def flusher(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self.rng.random() * 3)
            with contextlib.suppress(DeliveryFailedError):
                await self.producer.flush()

    async def disturb(self) -> None:
        broker, rng = self.broker, self.rng
        loop = asyncio.get_running_loop()
        end = loop.time() + DURATION
        while loop.time() < end:
            await asyncio.sleep(rng.random())
            match rng.randrange(7):
                case 0:
                    broker.cut()
                case 1:
                    broker.close_producers(rng.choice([None, broker.url]))
                case 2:
                    broker.holds_receipts = True
                    await asyncio.sleep(rng.random())
                    broker.release()
                case 3:  # stored, but the receipts are lost with the connection
                    broker.holds_receipts = True
                    await asyncio.sleep(rng.random())
                    broker.drop_receipts()
                    broker.holds_receipts = False
                    broker.cut()
                case 4:
                    code = rng.choice([0, 1, 6, 7, 14, 16])
                    broker.refuse_producer = lambda _, code=code: code
                    broker.cut()
                    await asyncio.sleep(rng.random() * 4)
                    broker.refuse_producer = lambda _: None
                case 5:
                    codes = [rng.choice([0, 2, 7, 22])]
                    broker.refuse_send = lambda _, codes=codes: codes.pop() if codes else None
                case 6:
                    await asyncio.sleep(rng.random() * 2)


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_programs(broker: Broker, seed: int) -> None:
    rng = random.Random(seed)
    broker.partitions["orders"] = rng.choice([0, 1, 3])
    broker.deduplicates = rng.random() < 0.7
    config = PulsarProducerConfig(
        producer_name="p",
        send_timeout=0 if broker.deduplicates else rng.choice([0, 1.5, 4]),
        batching=rng.random() < 0.7,
        key_based_batching=rng.random() < 0.3,
        batching_max_messages=rng.choice([3, 1000]),
        batching_max_delay=rng.choice([0, 0.001, 0.2]),
        max_pending_messages=rng.choice([None, 2, 20]),
        compression=rng.choice(["none", "lz4"]),
        compression_min_size=0,
    )
    async with PulsarClient(broker.url, PulsarConfig(memory_limit=rng.choice([500, 100_000]))) as client:
        producer = PulsarProducer(client, "orders", config)
        async with producer:
            program = Program(broker, producer, rng)
            callers = [asyncio.create_task(program.caller()) for _ in range(4)]
            flusher = asyncio.create_task(program.flusher())
            await program.disturb()
            program.is_over = True
            await asyncio.gather(*callers, flusher)
            with contextlib.suppress(DeliveryFailedError):
                await producer.flush()
            partitions = list(producer._partitions.producers)
            assert producer.pending_messages == 0
        assert client._inner.memory.used == 0
        assert all(each._limits.used == each._limits.waiting == 0 for each in partitions)
    check(broker, program, config)


def check(broker: Broker, program: Program, config: PulsarProducerConfig) -> None:
    topics = [name for name in broker.entries if broker.entries[name]]
    stored = [value for name in topics for value in broker.values(name) if value is not None]
    assert program.stored <= set(stored)
    assert program.missing.isdisjoint(stored)
    assert set(stored) <= program.stored | program.uncertain | program.enqueued
    if broker.deduplicates:
        assert len(stored) == len(set(stored))
        for name in topics:
            entries = broker.entries[name]
            if config.batching and config.key_based_batching:
                lasts = [entry.metadata.sequence_id for entry in entries]
            else:
                lasts = [message.sequence_id for entry in entries for message in entry.messages()]
            assert lasts == sorted(lasts)
    assert program.number > 50
