"""The producing program: writes numbered records, and reports acknowledgments to the oracle."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from asyncgroup import Producer, ProducerConfig, RecordMetadata, TopicPartition
from asyncgroup.errors import AsyncGroupError
from tests.simulation.story import Violation

if TYPE_CHECKING:
    from tests.simulate.world import World

__all__ = ["SimProducer"]


class SimProducer:
    """The producer of a run."""

    def __init__(self, world: World, host: str) -> None:
        self.world = world
        self.host = host
        self.rng = random.Random(f"{world.plan.seed} producer")
        config = ProducerConfig(
            client_id="producer",
            linger=self.rng.choice([0.0, 0.005, 0.2]),
            batch_size=self.rng.choice([1 << 17, 1 << 17, 300]),
            request_timeout=3.0,
            connect_timeout=2.0,
            delivery_timeout=self.rng.choice([3.5, 12.0]),
            retry_backoff_max=1.0,
            metadata_refresh_interval=3.0,
        )
        rng = random.Random(f"{world.plan.seed} producer's choices")
        self.producer = Producer(world.bootstrap_servers, config, clock=lambda: 1_000_000, rng=rng)
        self._keys = 20 if world.plan.queues is None else world.plan.queues.keys
        self._number = 0
        self._last: dict[TopicPartition, tuple[int, int]] = {}
        self._open: dict[asyncio.Future[RecordMetadata], tuple[bytes, str]] = {}
        """Records without a result, each with its topic."""

    async def start(self) -> None:
        """Open the producer."""
        with self.world.network.source(self.host):
            await self.producer.__aenter__()

    def send(self, topic: str, count: int, partition: int | None = None) -> None:
        """Send `count` records; their results are handled later."""
        for _ in range(count):
            self._number += 1
            value = b"%06d" % self._number + b"." * self.rng.choice([0, 0, 10, 300])
            key = b"%d" % self.rng.randrange(self._keys) if self.rng.random() < 0.5 else None
            with self.world.network.source(self.host):
                promise = self.producer.send_nowait(topic, value, key=key, partition=partition)
            self._open[promise] = value, topic
            promise.add_done_callback(self._answered)

    def _answered(self, promise: asyncio.Future[RecordMetadata]) -> None:
        (value, topic), world = self._open.pop(promise), self.world
        if promise.cancelled():
            world.fail(Violation("each record has a result", f"{value[:6]!r} was cancelled"))
            return
        error = promise.exception()
        if error is not None:
            world.story.write("producer", f"{value[:6].decode()} failed: {error}")
            world.story.count("records not acknowledged")
            if world.plan.is_orderly or not isinstance(error, AsyncGroupError):
                world.fail(
                    Violation("orderly actions cost nothing", f"{value[:6]!r} was not written: {error!r}")
                )
            elif topic not in str(error):
                text = f"{value[:6]!r} for {topic} failed with {error!r}"
                world.fail(Violation("an error names the topic", text))
            return
        where = promise.result()
        tp, number = TopicPartition(where.topic, where.partition), int(value[:6])
        world.story.count("records")
        before, offset = self._last.get(tp, (0, -1))
        self._last[tp] = (number, where.offset)
        try:
            world.oracle.acknowledged(tp, where.offset, value)
            # the results may be in another order: that of a batch whose response was lost comes later
            if (number < before) != (where.offset <= offset):
                text = f"{tp}: {number} at {where.offset} after {before} at {offset}"
                raise Violation("records are written in order", text)
        except Violation as violation:
            world.fail(violation)

    async def done(self) -> None:
        """Wait for the results of all records written so far."""
        before = list(self._open)
        await self.producer.flush()
        await asyncio.sleep(0)  # results arrive by callbacks
        left = [self._open[promise][0][:6] for promise in before if promise in self._open]
        if left:
            raise Violation("each record has a result", f"after a flush there is none for {left}")

    async def aclose(self) -> None:
        """Close."""
        await self.producer.aclose()
