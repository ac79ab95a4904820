"""Fakes of Spark, sessions and claims with only what the bridge uses of them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace

from asyncgroup.errors import CommitFailedError, MemberLost, SessionEnd
from asyncgroup.model import Batch, Record, TopicPartition
from asyncgroup.spark.bridge.jobs import CallResult
from asyncgroup.spark.ranges import BatchId

TOPIC = "flights"


def records(partition: int, start: int, count: int) -> list[Record]:
    return [
        Record(TOPIC, partition, offset, 1_000 + offset, 0, b"k%d" % partition, b"v%d" % offset)
        for offset in range(start, start + count)
    ]


class FakeContext:
    """A SparkContext with job tags; `cancelled` is set when a tag's jobs are cancelled."""

    defaultParallelism = 2

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self._jsc: object = self
        self.cancelled = threading.Event()
        self.descriptions: list[str] = []

    def addJobTag(self, tag: str) -> None:
        self.tags.add(tag)

    def removeJobTag(self, tag: str) -> None:
        self.tags.remove(tag)

    def setJobDescription(self, text: str) -> None:
        self.descriptions.append(text)

    def cancelJobsWithTag(self, tag: str) -> None:
        assert self.tags == {tag}
        self.cancelled.set()


class FakeSpark:
    """A session whose DataFrames are the Arrow tables from which they are created."""

    def __init__(self) -> None:
        self.sparkContext = FakeContext()
        self.settings = {
            "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
            "spark.sql.execution.arrow.localRelationThreshold": "48m",
        }
        self.conf = SimpleNamespace(get=self.settings.__getitem__, set=self.settings.__setitem__)

    def createDataFrame(self, table: object, schema: object) -> object:
        return table


class LoopJobs:
    """A replacement of `SparkJobs` for virtual time: `fn` runs on the event loop; it returns the seconds of the call, or raises.

    An interrupted call ends after `CANCEL_SECONDS`.
    """

    CANCEL_SECONDS = 0.5

    def __init__(self, spark: object, fn: Callable[[object, BatchId], float]) -> None:
        self._fn = fn
        self.is_busy = False

    async def run(
        self, records: Sequence[object], batch_id: BatchId, interrupt: asyncio.Future[None]
    ) -> CallResult:
        assert not self.is_busy
        self.is_busy = True
        try:
            seconds = self._fn(records, batch_id)
            await asyncio.wait({interrupt}, timeout=seconds)
            if not interrupt.done():
                return CallResult(None, 0.0, seconds)
            await asyncio.sleep(self.CANCEL_SECONDS)
            return CallResult(RuntimeError("job cancelled"), 0.0, self.CANCEL_SECONDS)
        except Exception as error:
            return CallResult(error, 0.0, 0.0)
        finally:
            self.is_busy = False

    def close(self) -> None:
        assert not self.is_busy


class FakeClaim:
    """A claim that yields the records passed to `feed`."""

    def __init__(self, partition: int, initial_offset: int = 0, initial_metadata: str = "") -> None:
        self.topic, self.partition = TOPIC, partition
        self.position = self.next_mark = self.initial_offset = initial_offset
        self.initial_metadata, self.metadata = initial_metadata, initial_metadata
        self.leader_epoch = -1
        self.cause: SessionEnd | None = None
        self.error: Exception | None = None
        self.handed_out = 0
        self.is_marked = False
        self._waiting: deque[Record] = deque()
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def feed(self, start: int, count: int) -> None:
        self._waiting.extend(records(self.partition, start, count))
        self._changed.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._changed.set()

    def renew(self, seconds: float = 0.0) -> None:
        """As `Claim.renew`."""

    def mark(self, record: Record, metadata: str = "") -> None:
        assert (record.topic, record.partition) == self.tp
        self.set_mark(record.offset + 1, metadata)
        self.leader_epoch = record.leader_epoch

    def set_mark(self, offset: int, metadata: str) -> None:
        self.next_mark, self.metadata, self.is_marked = offset, metadata, True

    def seek(self, offset: int) -> None:
        self.position = offset

    def end(self, cause: SessionEnd) -> None:
        if not self.ended:
            self.cause = cause
            self._ended.set()
            self._changed.set()

    async def batches(self, *, max_records: int, max_bytes: int) -> AsyncIterator[Batch]:
        while True:
            await asyncio.sleep(0)
            if self.ended:
                return
            if self.error is not None:
                raise self.error
            if not self._waiting:
                self._changed.clear()
                await self._changed.wait()
                continue
            taken = [self._waiting.popleft() for _ in range(min(max_records, len(self._waiting)))]
            self.handed_out += len(taken)
            yield Batch(self.topic, self.partition, taken)


class FakeSession:
    """A session that records marks and commits; the next commits raise `refusals`, one each."""

    def __init__(self, *claims: FakeClaim) -> None:
        self.claims = list(claims)
        self.cause: SessionEnd | None = None
        self.commits: list[dict[TopicPartition, int]] = []
        self.refusals: deque[CommitFailedError] = deque()
        self.on_commit: Callable[[], None] = lambda: None
        self._lost = asyncio.Event()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    @property
    def ended(self) -> bool:
        return self.cause is not None

    @property
    def is_lost(self) -> bool:
        return isinstance(self.cause, MemberLost)

    @property
    def marks(self) -> dict[TopicPartition, int]:
        return {claim.tp: claim.next_mark for claim in self.claims if claim.is_marked}

    def _claim(self, topic: str, partition: int) -> FakeClaim:
        return next(claim for claim in self.claims if claim.tp == (topic, partition))

    def mark_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        claim = self._claim(topic, partition)
        assert offset > claim.next_mark
        claim.set_mark(offset, metadata)

    def reset_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        claim = self._claim(topic, partition)
        assert offset <= claim.next_mark
        claim.set_mark(offset, metadata)

    async def commit(self) -> None:
        await asyncio.sleep(0)
        self.on_commit()
        if self.refusals:
            raise self.refusals.popleft()
        self.commits.append(self.marks)

    def end(self, cause: SessionEnd) -> None:
        self.cause = cause
        if self.is_lost:
            self._lost.set()
        for claim in self.claims:
            claim.end(cause)
