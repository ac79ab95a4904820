"""Random test in virtual time: members join, leave and are lost, batches fail, take long or never end."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from asyncgroup.errors import MemberLost
from asyncgroup.model import TopicPartition
from asyncgroup.spark import BatchId, BatchInterrupted, Retry
from asyncgroup.spark.bridge import foreach_batch
from asyncgroup.spark.bridge.commits import from_metadata
from asyncgroup.spark.bridge.jobs import CallResult
from asyncgroup.testing import VirtualKafka
from tests.group.parts import end_session
from tests.profiles import soak, thinned
from tests.scenario.reading.test_read_committed import Transactions
from tests.spark.bridge.fakes import LoopJobs
from tests.spark.bridge.virtual import Sink, committed, member, metadata

RECORDS, PARTITIONS = 1_200, 4

pytestmark = pytest.mark.kafka(topics={"numbers": 4})


class WatchedJobs(LoopJobs):
    """Checks that no partition is processed by two calls at once, and that each batch starts where the last one ended."""

    kafka: VirtualKafka
    busy: set[TopicPartition] = set()

    @contextmanager
    def _watched(self, batch_id: BatchId) -> Iterator[None]:
        mine = {TopicPartition(part.topic, part.partition) for part in batch_id.ranges}
        assert not mine & self.busy
        last = {partition: from_metadata(text) for partition, text in metadata(self.kafka).items()}
        ends = {partition: batch.end for partition, batch in last.items() if batch is not None}
        assert [(part, ends.get(part.partition, 0)) for part in batch_id.ranges] == [
            (part, part.start) for part in batch_id.ranges
        ], "a batch starts where the one before it ended, according to the commit"
        self.busy.update(mine)
        try:
            yield
        finally:
            self.busy.difference_update(mine)

    async def run(
        self, records: Sequence[object], batch_id: BatchId, interrupt: asyncio.Future[None]
    ) -> CallResult:
        with self._watched(batch_id):
            return await super().run(records, batch_id, interrupt)


class RandomFailures:
    """Random durations of calls and events of members, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def seconds(self, _call: int) -> float:
        luck = self.random.random()
        if luck < 0.15:
            raise OSError("the warehouse is closed")
        return 1_000.0 if luck > 0.97 else self.random.uniform(0.01, 5.0)

    async def life(self, kafka: VirtualKafka, sink: Sink, end: asyncio.Event) -> str:
        """Run one member; return how it ended."""
        policy = Retry(times=self.random.randint(1, 5), backoff=self.random.choice([0.1, 2.0, 20.0]))
        group, handler = member(kafka, sink, max_rows=self.random.randint(5, 200), on_error=policy)
        handler._random.seed(self.random.random())
        async with group:
            run = asyncio.create_task(group.run("numbers", handler))
            waiting = asyncio.create_task(end.wait())
            await asyncio.wait(
                {run, waiting},
                timeout=self.random.uniform(1, 120),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self.random.random() < 0.3 and group.session is not None:
                end_session(group.session, MemberLost("as if the coordinator had expelled it"))
                await asyncio.wait({run, waiting}, timeout=20.0, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self.random.random() < 0.3 and not run.done():
                run.cancel()
                await asyncio.wait({run})
            await group.aclose()
            try:
                await run
            except (OSError, BatchInterrupted, asyncio.CancelledError) as error:
                return type(error).__name__
        return "closed"

    async def write(self, kafka: VirtualKafka) -> None:
        """Write all records, in transactions: after each there is a marker, which members skip."""
        writer = Transactions(SimpleNamespace(cluster=kafka, topic="numbers"))  # type: ignore[arg-type]
        numbers = iter(range(RECORDS))
        while part := [b"%d" % number for number in itertools.islice(numbers, self.random.randint(1, 60))]:
            writer.write(self.random.randrange(PARTITIONS), *part)
            writer.end(commit=True)
            await asyncio.sleep(self.random.choice([0.0, 0.1, 5.0]))


@pytest.mark.virtual(max_virtual_time=10 * 86_400)
@pytest.mark.parametrize("seed", [*thinned(range(4)), *soak(range(4, 200))])
async def test_every_record_is_stored_once(
    virtual_kafka: VirtualKafka, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(foreach_batch, "SparkJobs", WatchedJobs)
    monkeypatch.setattr(WatchedJobs, "kafka", virtual_kafka, raising=False)
    monkeypatch.setattr(WatchedJobs, "busy", set())
    failures = RandomFailures(seed)
    sink, end = Sink(failures.seconds), asyncio.Event()
    ends: list[str] = []

    async def run_members() -> None:
        while not end.is_set():
            ends.append(await failures.life(virtual_kafka, sink, end))

    members = [asyncio.create_task(run_members()) for _ in range(3)]
    await failures.write(virtual_kafka)
    ends_of_logs = {n: virtual_kafka.partition("numbers", n).log_end_offset for n in range(PARTITIONS)}
    while committed(virtual_kafka) != ends_of_logs:
        await asyncio.sleep(0.5)
    end.set()
    await asyncio.gather(*members)
    assert sink.values == list(range(RECORDS))
    assert set(ends) <= {"closed", "OSError", "BatchInterrupted", "CancelledError"}
