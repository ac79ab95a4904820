"""Random members that read with `group.records()`, slow, stopping early or cut off: only handled records are committed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, Record, TopicPartition
from asyncgroup.errors import CommitFailedError, Rebalanced
from tests.group.parts import end_session
from tests.profiles import thinned
from tests.scenario.support import committed, orders
from tests.stories.virtual import VirtualEnvironment

RECORDS = 60
"""Records in each of the four partitions."""


class HandledRecords:
    """The records handled by all members; as a hook it checks their commits."""

    def __init__(self, env: VirtualEnvironment, seed: int, *, is_slow: bool) -> None:
        self.env = env
        self.rng = random.Random(seed)
        self.is_slow = is_slow
        self.handled: Counter[tuple[int, int]] = Counter()
        self.done = asyncio.Event()
        self.problems: list[str] = []

    def on_commit(
        self,
        _group: str,
        offsets: Mapping[TopicPartition, object],
        errors: Mapping[TopicPartition, object] | None,
    ) -> None:
        """Check that committed records have been handled."""
        for tp, value in offsets.items():
            unseen = [o for o in range(value.offset) if not self.handled[tp.partition, o]]  # type: ignore[attr-defined]
            if unseen and tp not in (errors or {}):
                self.problems.append(f"{tp} is committed at {value} and {unseen} were never handled")

    async def program(self, number: int) -> None:
        """Run one member after another until everything is handled."""
        while not self.done.is_set():
            with suppress(KeyError), self.env.network.source(f"10.3.0.{number}"):
                await self._life(number)
            await asyncio.sleep(self.rng.uniform(0.1, 2.0))

    async def _life(self, number: int) -> None:
        config = ConsumerConfig(
            **self.env.config(
                f"m{number}",
                rebalance_timeout=6.0,
                heartbeat_interval=0.5,
                close_timeout=4.0,
                auto_commit=self.rng.random() < 0.7,
                buffer_bytes=self.rng.choice([4_000, 64 << 20]),
                max_partition_fetch_bytes=1_000,
            )
        )
        group = ConsumerGroup(self.env.bootstrap_servers, "g", config, hooks=[self])
        group.cluster._inner.random.seed(number)
        async with group:
            records = group.records("orders")
            left = self.rng.randint(10, 60)
            while left > 0 and not self.done.is_set():
                try:
                    record = await asyncio.wait_for(anext(records), self.rng.choice([0.1, 1.0, 5.0]))
                except TimeoutError:
                    continue
                left -= 1
                await self._handle(group, record)
                if self.rng.random() < 0.03 and group.session is not None:
                    end_session(group.session, Rebalanced("by the test"))
            if self.rng.random() < 0.3:
                raise KeyError("the body's own")

    async def _handle(self, group: ConsumerGroup, record: Record) -> None:
        roll = self.rng.random()
        if roll < 0.3:
            await asyncio.sleep(self.rng.uniform(0.0, 0.5))
        elif roll < 0.33 and self.is_slow:
            await asyncio.sleep(self.rng.uniform(4.0, 20.0))
        self.handled[record.partition, record.offset] += 1
        group.mark(record)
        if not group.config.auto_commit:
            with suppress(CommitFailedError):
                await group.commit()
        if len(self.handled) == 4 * RECORDS:
            self.done.set()


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("seed", thinned(range(4)))
async def test_only_handled_records_are_committed(env: VirtualEnvironment, seed: int, is_slow: bool):
    for partition in range(4):
        await env.admin.produce(orders(partition), [b"v" * 50] * RECORDS, batch=7)
    handled = HandledRecords(env, seed, is_slow=is_slow)
    programs = [asyncio.create_task(handled.program(number)) for number in range(1, 4)]
    async with asyncio.timeout(3000.0):
        await asyncio.wait(programs)
    for task in programs:
        task.result()
    assert handled.problems == []
    assert len(handled.handled) == 4 * RECORDS
    if not is_slow:
        assert set(handled.handled.values()) == {1}, "nothing is delivered twice after orderly ends"
        assert committed(env) == dict.fromkeys(range(4), RECORDS)
