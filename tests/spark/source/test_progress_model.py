"""A query with random histories of its topics and random restarts reads every record once.

The brokers are a model, the query's state is real. A batch is read by collecting the ranges of its tasks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncgroup.cluster.requests.list_offsets import EARLIEST
from asyncgroup.config import ConsumerConfig
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.driver import progress as module
from asyncgroup.spark.source.driver.progress import StreamProgress
from asyncgroup.spark.source.options.settings import (
    Earliest,
    Latest,
    OffsetLimit,
    ReadSettings,
    SubscribePattern,
)

Place = tuple[UUID, int, int]
"""A record: topic id, partition, offset."""

TOPICS = ("a", "b")


class Brokers:
    """A model of brokers: topics by name, each with an id, and the first offset and the end of each partition."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[UUID, list[tuple[int, int]]]] = {}
        self.offline: set[TopicPartition] = set()
        self._ids = 0

    def create(self, name: str, partitions: int) -> None:
        self._ids += 1
        self.topics[name] = (UUID(int=self._ids), [(0, 0)] * partitions)

    def delete(self, name: str) -> None:
        self.topics.pop(name, None)

    def grow(self, name: str) -> None:
        if name in self.topics:
            self.topics[name][1].append((0, 0))

    def produce(self, name: str, partition: int, count: int) -> None:
        parts = self.topics[name][1] if name in self.topics else []
        if partition < len(parts):
            first, end = parts[partition]
            parts[partition] = (first, end + count)

    # --- methods of `BrokerLookups` -------------------------------------------------------------------------------

    @property
    def topic_ids(self) -> dict[TopicPartition, UUID]:
        return {
            TopicPartition(name, number): topic_id
            for name, (topic_id, parts) in self.topics.items()
            for number in range(len(parts))
        }

    def mark_topics_known(self, partitions: Iterable[TopicPartition]) -> None:
        pass

    async def assigned(self, _expected: Collection[TopicPartition] = ()) -> dict[TopicPartition, UUID]:
        return self.topic_ids

    async def list_all_offsets(
        self, spec: int, last_known: Mapping[TopicPartition, int] | None = None, **_: Any
    ) -> dict[TopicPartition, int]:
        known = {tp: offset for tp, offset in (last_known or {}).items() if tp in self.topic_ids}
        return known | await self.list_available_offsets(dict.fromkeys(self.topic_ids, spec))

    async def list_available_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        there = self.topic_ids
        return {
            tp: self.topics[tp.topic][1][tp.partition][0 if spec == EARLIEST else 1]
            for tp, spec in wanted.items()
            if tp in there and tp not in self.offline
        }

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.offline -= wanted.keys()  # it waits until they are back
        return await self.list_available_offsets(wanted)


class Client:
    """A replacement of `BrokerClient`."""

    def __init__(self, brokers: Brokers, loop: asyncio.AbstractEventLoop) -> None:
        self._brokers, self._loop = brokers, loop

    def call(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        return self._loop.run_until_complete(work(self._brokers))

    def commits(self) -> None:
        return None

    def close(self) -> None:
        pass


class Query:
    """A query with a checkpoint: `done` is the end of the last finished batch, None before the first."""

    def __init__(
        self, brokers: Brokers, loop: asyncio.AbstractEventLoop, starting: OffsetLimit, limit: int | None
    ) -> None:
        self._brokers, self._loop = brokers, loop
        self._settings = ReadSettings(
            "h:1",
            ConsumerConfig(),
            SubscribePattern("."),
            starting,
            fail_on_data_loss=False,
            max_offsets_per_trigger=limit,
            offset_retry_interval=0.0,
        )
        self.done: dict[TopicPartition, int] | None = None
        self.read: Counter[Place] = Counter()
        self.restart()

    def restart(self) -> None:
        """Restart the query in another process, which only has the checkpoint."""
        self._progress = StreamProgress(self._settings)
        self._progress._client = Client(self._brokers, self._loop)  # type: ignore[assignment]

    def batch(self, *, crash: bool = False) -> bool:
        """Run one batch, or with a `crash` two attempts by two processes; return whether there was one."""
        start = self._progress.initial_offsets() if self.done is None else self.done
        end = self._progress.next_end(start)
        if self.done is not None and end == start:
            return False
        offline = set(self._brokers.offline)
        first = self._ranges(start, end)
        assert not offline & {TopicPartition(topic, partition) for topic, partition, _, _ in first}
        if crash:
            self.restart()
            start = self._progress.initial_offsets() if self.done is None else start
            assert self._ranges(start, end) == first
        ids = self._brokers.topic_ids
        for topic, partition, begin, last in first:
            topic_id = ids[TopicPartition(topic, partition)]
            assert last <= self._brokers.topics[topic][1][partition][1]
            self.read.update((topic_id, partition, offset) for offset in range(begin, last))
        self.done = end
        return True

    def _ranges(self, start: dict[TopicPartition, int], end: dict[TopicPartition, int]) -> list[Any]:
        return sorted(piece for task in self._progress.tasks(start, end) for piece in task)

    def know_topics(self) -> None:
        """Catch up, so that the recreated topics that this process has detected are in the checkpoint."""
        self.catch_up()
        known, ids = self._progress.topic_ids, self._brokers.topic_ids
        if any(known.get(tp, ids.get(tp)) != ids.get(tp) for tp in self._brokers.offline):
            self._brokers.offline.clear()
            self.catch_up()

    def catch_up(self) -> None:
        for _ in range(200):
            if not self.batch():
                return
        raise AssertionError("the query never gets to the end")


NAMES = st.sampled_from(TOPICS)
CHANGES = st.one_of(
    st.tuples(st.just("produce"), NAMES, st.integers(0, 2), st.integers(1, 9)),
    st.tuples(st.just("grow"), NAMES),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("offline"), NAMES, st.integers(0, 2)),
    st.tuples(st.just("online"), NAMES),
    st.tuples(st.just("anew"), NAMES, st.integers(1, 2), st.integers(0, 9)),
)
STEPS = st.lists(st.one_of(CHANGES, st.sampled_from([("batch",), ("crash",), ("restart",)])), max_size=30)


def change(brokers: Brokers, what: str, name: str, *numbers: int) -> None:
    if what == "produce":
        brokers.produce(name, *numbers)
    elif what == "grow":
        brokers.grow(name)
    elif what == "delete":
        brokers.delete(name)
    elif what == "offline":
        brokers.offline.add(TopicPartition(name, *numbers))
    elif what == "online":
        brokers.offline = {tp for tp in brokers.offline if tp.topic != name}
    else:
        brokers.delete(name)
        brokers.create(name, numbers[0])
        brokers.produce(name, 0, numbers[1])


@pytest.mark.parametrize("starting", [Earliest(), Latest()], ids=["earliest", "latest"])
@given(steps=STEPS, limit=st.sampled_from([None, 1, 4]), offline=st.booleans())
def test_every_record_is_read_once(
    starting: OffsetLimit, steps: list[tuple[Any, ...]], limit: int | None, offline: bool
) -> None:
    """This includes topics that are created, grow, and are recreated; a process detects that if it knew the old topic.

    Partitions are offline at times, also when the query starts.
    """
    loop = asyncio.new_event_loop()
    pauses, module.IDLE_PAUSES = module.IDLE_PAUSES, (0.0, 0.0)  # type: ignore[misc]
    share, module.IDLE_PAUSE_FACTOR = module.IDLE_PAUSE_FACTOR, 0  # type: ignore[misc]
    try:
        brokers = Brokers()
        brokers.create("a", 1)
        brokers.produce("a", 0, 3)
        if offline:
            change(brokers, "offline", "a", 0)
        query = Query(brokers, loop, starting, limit)
        query.batch()
        skipped = 3 if starting == Latest() else 0
        first_id = brokers.topics["a"][0]
        for what, *rest in steps:
            if what in ("crash", "restart"):
                query.know_topics()
                if what == "restart":
                    query.restart()
                    query.batch()
                else:
                    brokers.produce("a", 0, 2)
                    query.batch(crash=True)
            elif what == "batch":
                query.batch()
            else:
                change(brokers, what, *rest)
        brokers.offline.clear()
        query.catch_up()
        assert max(query.read.values(), default=1) == 1
        for name, (topic_id, parts) in brokers.topics.items():
            for number, (_, end) in enumerate(parts):
                begin = skipped if (name, topic_id, number) == ("a", first_id, 0) else 0
                missing = [o for o in range(begin, end) if (topic_id, number, o) not in query.read]
                assert not missing, (name, number, missing)
        assert not any((first_id, 0, offset) in query.read for offset in range(skipped))
    finally:
        module.IDLE_PAUSES, module.IDLE_PAUSE_FACTOR = pauses, share  # type: ignore[misc]
        loop.close()
