"""Readers that start, are canceled and paused, with seeks, in random order (hypothesis)."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings, strategies as st

from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.testing import run_virtual
from tests.consumer.support import batch, feed, make_consumer
from tests.profiles import examples

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 5)),
        st.tuples(st.just("turns"), st.integers(1, 4)),
        st.tuples(st.just("sleep"), st.sampled_from([0.01, 0.05, 0.2])),
        st.tuples(st.just("read"), st.none()),
        st.tuples(st.just("read batch"), st.integers(1, 6)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("pause"), st.none()),
        st.tuples(st.just("resume"), st.none()),
        st.tuples(st.just("fail"), st.none()),
    ),
    max_size=40,
)


class World:
    """A consumer, its readers, and the offsets that they got."""

    def __init__(self) -> None:
        self.handed_out: list[int] = []
        self.received: list[int] = []
        self.raised = 0
        self.fed = 0
        self.consumer: PartitionConsumer = make_consumer(
            interceptors=[lambda record: self.handed_out.append(record.offset)]
        )
        self.readers: list[asyncio.Task[None]] = []

    async def step(self, what: str, value: Any) -> None:
        if what == "feed":
            feed(self.consumer, batch(self.fed, count=value))
            self.fed += value
        elif what == "turns":
            for _ in range(value):
                await asyncio.sleep(0)
        elif what == "sleep":
            await asyncio.sleep(value)
        elif what == "read":
            self.readers.append(asyncio.ensure_future(self.read_one()))
        elif what == "read batch":
            self.readers.append(asyncio.ensure_future(self.read_batch(value)))
        elif what == "cancel" and value < len(self.readers):
            self.readers.pop(value).cancel()
        elif what == "pause":
            self.consumer.pause()
        elif what == "resume":
            self.consumer.resume()
        elif what == "fail":
            self.consumer._inner.fail(OSError("passing"))

    async def read_one(self) -> None:
        try:
            self.received.append((await anext(self.consumer)).offset)
        except OSError:
            self.raised += 1

    async def read_batch(self, size: int) -> None:
        try:
            records = await anext(self.consumer.batches(max_records=size, max_wait=0.1))
            self.received += [record.offset for record in records]
        except OSError:
            self.raised += 1

    async def finish(self) -> None:
        """Let the readers finish, and read the rest."""
        self.consumer.resume()
        for reader in self.readers:
            reader.cancel()
        await asyncio.gather(*self.readers, return_exceptions=True)
        while len(self.received) < self.fed:
            before = len(self.received), self.raised
            await asyncio.wait_for(self.read_one(), 5)
            assert (len(self.received), self.raised) != before


@given(STEPS)
@settings(max_examples=examples(300), deadline=None)
def test_each_record_reaches_one_reader_once(steps: list[tuple[str, Any]]) -> None:
    async def story() -> None:
        world = World()
        for what, value in steps:
            await world.step(what, value)
        await world.finish()
        assert world.handed_out == list(range(world.fed)), "in order, no record lost or repeated"
        assert sorted(world.received) == world.handed_out, "every record handed out reached a reader"
        assert world.consumer.buffered_bytes == 0
        assert world.consumer.position == world.fed

    run_virtual(story())
