"""A simulated program with a producer: it sends numbered messages, and keeps what was stored."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from asyncgroup.errors import QueueFull
from asyncgroup.pulsar import MessageId, PulsarClient, PulsarProducer, PulsarProducerConfig
from tests.simulate_pulsar.plan import ProducerSpec
from tests.simulate_pulsar.program import PulsarProgram

if TYPE_CHECKING:
    from tests.simulate_pulsar.world import PulsarWorld

__all__ = ["SimPulsarProducer"]

CHUNK_SIZE = 700
"""Bytes of the largest frame, so that large values need some chunks."""


class SimPulsarProducer(PulsarProgram):
    """The program of a producer. A name stays with it through restarts."""

    def __init__(self, world: PulsarWorld, spec: ProducerSpec, host: str) -> None:
        super().__init__(world, spec.name, host)
        self.spec = spec
        self.stored: dict[bytes, MessageId] = {}
        """The ids of messages with a receipt, by the name of their value."""
        self.sent: list[bytes] = []
        """All messages, in order."""
        self._wanted = 0
        self._more = asyncio.Event()
        self._open: set[bytes] = set()

    @property
    def is_done(self) -> bool:
        """Whether each message has a result."""
        return not self._wanted and not self._open

    def produce(self, count: int) -> None:
        """Send messages as soon as it can."""
        self._wanted += count
        self._more.set()

    async def work(self, client: PulsarClient) -> None:
        """Send until it is to stop."""
        spec = self.spec
        config = PulsarProducerConfig(
            producer_name=self.name,
            batching=spec.batching,
            key_based_batching=spec.by_key,
            batching_max_messages=spec.max_messages,
            batching_max_delay=spec.max_delay,
            compression=spec.compression,
            compression_min_size=0,
            chunking=spec.large > 0,
            chunk_max_size=CHUNK_SIZE if spec.large else None,
            send_timeout=spec.send_timeout,
            close_timeout=6.0,
        )
        producer = PulsarProducer(client, spec.topic, config, clock=self.world.now_ms, rng=self.rng)
        async with producer:
            self.write("is open")
            await self._until_stopping(asyncio.create_task(self._send(producer), name=f"{self.name} sends"))

    async def _send(self, producer: PulsarProducer) -> None:
        while True:
            self._more.clear()
            while self._wanted:
                self._wanted -= 1
                if not self._send_one(producer):
                    self._wanted += 1
                    await asyncio.sleep(0.5)
                elif self.rng.random() < 0.1:
                    await asyncio.sleep(self.rng.choice([0.0, 0.01, 0.1]))
            await self._more.wait()

    def _send_one(self, producer: PulsarProducer) -> bool:
        rng, spec = self.rng, self.spec
        name = b"%s:%05d" % (self.name.encode(), len(self.sent) + 1)
        delay = None
        if rng.random() < self.world.plan.setting.delayed:
            name, delay = name + b"d", rng.choice([0.2, 3.0])
        size = rng.choice([0, 0, 10, 200])
        if spec.large and delay is None and rng.random() < spec.large:
            size = rng.choice([900, 2500])
        padding = rng.randbytes(size)
        key = f"k{rng.randrange(spec.keys)}" if spec.keys else None
        try:
            promise = producer.send_nowait(name + b"." + padding, key=key, deliver_after=delay)
        except QueueFull:
            return False
        self.sent.append(name)
        self._open.add(name)
        promise.add_done_callback(partial(self._answered, name))
        return True

    def _answered(self, name: bytes, promise: asyncio.Future[MessageId]) -> None:
        self._open.discard(name)
        if promise.cancelled():
            return
        error = promise.exception()
        if error is None:
            self.stored[name] = promise.result()
            self.world.story.count("stored")
        else:
            self.world.story.count("sends that failed")
            self.write(f"{name.decode()} failed: {error}")
