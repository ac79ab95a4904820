"""Two partitions of one broker, one with a slow handler: how much the other one is slowed down, over a slow link.

sarama's H1: a partition handled at 20 ms per record reduces a fast one to 0.0006 of its rate, with gaps of 3 s.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from asyncgroup import Claim, Handler, Session
from tests.consumer.brokers import fill
from tests.group.parts import consumer_of
from tests.profiles import current_profile, thinned
from tests.scenario.support import member, now, running
from tests.stories.virtual import VirtualEnvironment

DELAY = 0.01
"""Network latency in seconds, in each direction."""

RECORDS = 30_000
BATCH = 50
SIZES: dict[str, Any] = {"buffer_bytes": 400_000, "max_partition_fetch_bytes": 20_000}
"""A share of 200,000 bytes for each of two claims, fetched in portions of three batches."""

SLOW, FAST = 0, 1


@dataclass
class Pace:
    """The speed of a handler: `seconds` per record, or per batch of up to `batch`; None reads nothing."""

    seconds: float | None
    batch: int | None = None

    def __str__(self) -> str:
        return (
            "never"
            if self.seconds is None
            else f"{self.seconds * 1000:g} ms a {'batch' if self.batch else 'record'}"
        )

    @property
    def rate(self) -> float:
        """Records per second of this handler."""
        return (self.batch or 1) / self.seconds if self.seconds else 0.0


PACES = [Pace(0.002), Pace(0.02), Pace(0.15), Pace(None), Pace(0.3, batch=5000), Pace(3600.0)]


@dataclass
class MeasuringHandler(Handler):
    """Reads both partitions, each at its pace, and records the delivery time of each record."""

    paces: dict[int, Pace]
    times: dict[int, list[float]] = field(default_factory=lambda: {SLOW: [], FAST: []})
    offsets: dict[int, list[int]] = field(default_factory=lambda: {SLOW: [], FAST: []})
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    began: float = 0.0

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        pace = self.paces[claim.partition]
        self.began = self.began or now()
        if pace.batch is not None:
            async for batch in claim.batches(max_records=pace.batch, max_bytes=1 << 30):
                self._note(claim, [record.offset for record in batch])
                await asyncio.sleep(pace.seconds or 0)
        elif pace.seconds is not None:
            async for record in claim:
                self._note(claim, [record.offset])
                if pace.seconds:
                    await asyncio.sleep(pace.seconds)
        await claim.wait_ended()

    def _note(self, claim: Claim, offsets: list[int]) -> None:
        self.times[claim.partition] += [now()] * len(offsets)
        self.offsets[claim.partition] += offsets
        if claim.partition == FAST and len(self.offsets[FAST]) == RECORDS:
            self.finished.set()

    def rate(self, partition: int) -> float:
        """Records per second while the fast partition had records."""
        end = self.times[FAST][-1]
        return sum(time <= end for time in self.times[partition]) / (end - self.began)

    def longest_gap(self, partition: int) -> float:
        """Return the longest time between two records."""
        return max(later - earlier for earlier, later in pairwise([self.began, *self.times[partition]]))


_beside: dict[str, MeasuringHandler] = {}
"""The runs so far, by pace: in virtual time every run with a pace is the same, and two tests look at it."""


async def run_beside(pace: Pace | None) -> MeasuringHandler:
    """Read the fast partition next to one with a backlog that is handled at `pace`, or without a pace next to an empty one."""
    if str(pace) not in _beside:
        _beside[str(pace)] = await run(pace or Pace(None), backlog=0 if pace is None else 1000)
    return _beside[str(pace)]


async def run(pace: Pace, backlog: int) -> MeasuringHandler:
    """Read the fast partition's backlog next to a partition with `backlog` batches that is handled at `pace`."""
    async with VirtualEnvironment.made(nodes=1, partitions=2) as env:
        fill(env.cluster, "orders", FAST, RECORDS // BATCH, BATCH, 100)
        fill(env.cluster, "orders", SLOW, backlog, BATCH, 100)
        env.network.latency = DELAY
        handler = MeasuringHandler({SLOW: pace, FAST: Pace(0.0)})
        async with (
            member(env, close_timeout=0.1, **SIZES) as group,
            running(group.run("orders", handler)),
        ):
            await handler.finished.wait()
        assert handler.offsets[FAST] == list(range(RECORDS))
        assert handler.offsets[SLOW] == list(range(len(handler.offsets[SLOW])))
        return handler


@pytest.mark.parametrize("pace", thinned(PACES, every=3), ids=str)
async def test_a_fast_partition_keeps_its_rate_next_to_a_slow_one(pace: Pace):
    alone = await run_beside(None)
    beside = await run_beside(pace)
    assert beside.rate(FAST) >= 0.8 * alone.rate(FAST)
    assert beside.longest_gap(FAST) < 0.3
    assert alone.times[FAST][-1] - alone.began > 2, "the slow partition must have had time to interfere"


@pytest.mark.parametrize("pace", [pace for pace in PACES if pace.rate > 1 and not pace.batch], ids=str)
async def test_the_slow_one_keeps_its_own_rate(pace: Pace):
    beside = await run_beside(pace)
    assert beside.rate(SLOW) >= 0.95 * pace.rate - 1
    gaps = [later - earlier for earlier, later in pairwise(beside.times[SLOW])]
    assert max(gaps) <= (pace.seconds or 0) + 1e-6, "it never waits for records"


async def test_a_slow_batch_handler_next_to_idle_partitions_keeps_its_rate():
    """300 ms per 5,000 records: during each batch the claim looks stalled, but its buffer must not run empty."""
    pace = Pace(0.3, batch=5000)
    sizes = {"buffer_bytes": 64 << 20, "max_partition_fetch_bytes": 1 << 20}
    async with VirtualEnvironment.made(nodes=1, partitions=4) as env:
        fill(env.cluster, "orders", SLOW, 40, 5000, 10)
        env.network.latency = DELAY
        handler = MeasuringHandler(dict.fromkeys(range(4), Pace(0.0)) | {SLOW: pace})
        async with member(env, close_timeout=0.1, **sizes) as group, running(group.run("orders", handler)):
            while len(handler.offsets[SLOW]) < 200_000:
                await asyncio.sleep(0.01)
        seconds = handler.times[SLOW][-1] - handler.times[SLOW][0] + 0.3
        assert 200_000 / seconds >= 0.95 * pace.rate


@pytest.mark.parametrize("pace", thinned(PACES, every=3), ids=str)
async def test_new_records_arrive_in_time_next_to_a_slow_partition(pace: Pace):
    """Single new records arrive within their transmission time, at any speed of the other partition's handler."""
    late: list[float] = []
    async with VirtualEnvironment.made(nodes=1, partitions=2) as env:
        fill(env.cluster, "orders", SLOW, 1000, BATCH, 100)
        env.network.latency = DELAY
        handler = MeasuringHandler({SLOW: pace, FAST: Pace(0.0)})
        async with (
            member(env, close_timeout=0.1, **SIZES) as group,
            running(group.run("orders", handler)),
        ):
            while not handler.began:
                await asyncio.sleep(0.01)
            await asyncio.sleep(1)
            for count in range(500 if current_profile() == "full" else 200):
                fill(env.cluster, "orders", FAST, 1, 1, 100)
                sent = now()
                while len(handler.offsets[FAST]) <= count:
                    await asyncio.sleep(0.001)
                late.append(now() - sent)
                await asyncio.sleep(0.007)
    assert max(late) < 0.1
    assert sum(late) / len(late) < 4 * DELAY


@contextlib.asynccontextmanager
async def stuck_claim(env: VirtualEnvironment, **config: Any):
    """Run a member and yield the claim of the slow partition, which the test reads itself."""
    claims: dict[int, Claim] = {}

    class Gives(Handler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            claims[claim.partition] = claim
            await claim.wait_ended()

    async with member(env, **{**SIZES, **config}) as group, running(group.run("orders", Gives())):
        while len(claims) < 2:
            await asyncio.sleep(0.01)
        yield claims[SLOW]


async def test_a_stalled_claim_is_refilled_before_its_buffer_is_empty():
    """A stalled claim resumes at half of its share, not when its buffer is empty: its reader never waits."""
    async with VirtualEnvironment.made(nodes=1, partitions=2) as env:
        fill(env.cluster, "orders", SLOW, 200, BATCH, 100)
        env.network.latency = DELAY
        async with stuck_claim(env) as claim:
            await asyncio.sleep(5)
            assert (claim.stalled, claim.paused) == (True, False)
            held = consumer_of(claim).buffered_bytes
            assert held > 100_000, "more than half of its share"
            waits = []
            for offset in range(200 * BATCH):
                began = now()
                assert (await anext(claim)).offset == offset
                waits.append(now() - began)
                await asyncio.sleep(0.0002)  # half of the link's capacity
            assert max(waits) == 0.0
            assert not claim.stalled
