"""Every record that a producer accepts has one result, after any failures: random programs in virtual time.

Each record has a number. In the end it is acknowledged, and in the log exactly once at its offset; or it has failed, with an
error that names its topic and partition (its topic, if none was chosen); or it was not accepted. A record that has failed is
not in the log, unless the error leaves that open. Hooks and the producer's own counters have to agree.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from asyncgroup import Interceptor
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    DeliveryFailedError,
    ErrorCode,
    QueueFull,
)
from asyncgroup.model import BatchResult, RecordMetadata
from asyncgroup.producer import MemoryBudget, Producer, ProducerRecord
from tests.profiles import long_family

pytestmark = pytest.mark.virtual(max_virtual_time=86_400)

TOPICS = ("one", "two", "missing")
"""The last one does not exist at first."""

# without OUT_OF_ORDER_SEQUENCE_NUMBER and UNKNOWN_PRODUCER_ID: a broker that has the batch does not answer so, and one that
# did would get it twice
CODES = [
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_RECORD,
    ErrorCode.KAFKA_STORAGE_ERROR,
]


class Ledger(Interceptor):
    """What hooks and interceptors were called with."""

    def __init__(self) -> None:
        self.begun: Counter[bytes] = Counter()
        self.ended: Counter[bytes] = Counter()
        self.acknowledged = 0
        self.failed = 0

    def on_send(self, record: ProducerRecord) -> None:
        self.begun[record.value or b""] += 1

    def on_acknowledgement(
        self,
        record: ProducerRecord,
        metadata: RecordMetadata | None,
        error: Exception | None,
    ) -> None:
        self.ended[record.value or b""] += 1
        assert (metadata is None) != (error is None)

    def on_batch_done(self, batch: BatchResult) -> None:
        if batch.error is None:
            self.acknowledged += batch.records
        else:
            self.failed += batch.records


class Program:
    """A random program, and what became of its records."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.intercepts = self.rng.random() < 0.4
        self.tasks: dict[asyncio.Task[RecordMetadata | None], tuple[bytes, str]] = {}
        self.futures: dict[asyncio.Future[RecordMetadata], tuple[bytes, str]] = {}
        self.enqueued: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.uncertain: set[bytes] = set()
        """Of cancelled calls of `enqueue`."""
        self.lost = 0
        self.count = 0
        self.recreated: set[str] = set()

    def config(self) -> ProducerConfig:
        rng = self.rng
        return ProducerConfig(
            linger=rng.choice([0.0, 0.005, 0.5]),
            batch_size=rng.choice([150, 400, 100_000]),
            batch_records=rng.choice([None, 3]),
            buffer_bytes=rng.choice([300, 2000, 1 << 20]),
            max_pending_records=rng.choice([None, None, 7]),
            max_pending_records_per_partition=rng.choice([None, None, 3]),
            compression_type=rng.choice(["none", "gzip", "zstd"]),
            partitioner=rng.choice(["default", "timed_round_robin", "random", "single_partition"]),
            max_in_flight_requests=rng.choice([1, 5]),
            delivery_timeout=rng.choice([2.0, 10.0]),
            request_timeout=1.0,
            connect_timeout=1.0,
            close_timeout=rng.choice([0.5, 20.0]),
            retry_backoff_max=0.5,
            metadata_retry_max=2,
            allow_auto_topic_creation=False,
        )

    async def run(self) -> None:
        async with EmbeddedCluster(nodes=2, seed=self.rng.random(), auto_create_topics=False) as cluster:
            self.cluster = cluster
            for topic in TOPICS[:2]:
                cluster.create_topic(topic, 3)
            budget = self.rng.choice([None, MemoryBudget(1000)])
            arguments: dict[str, Any] = {"hooks": [self.ledger], "memory": budget, "rng": self.rng}
            if self.intercepts:
                arguments |= {"interceptors": [self.ledger], "initial_sequence_id": 0}
            self.producer = Producer(cluster.bootstrap_servers, self.config(), **arguments)
            await self.producer.__aenter__()
            for _ in range(self.rng.randrange(20, 70)):
                await self.step()
            cluster.faults.clear()
            await self.collect(self.producer.flush() if self.rng.random() < 0.5 else None)
            await self.collect(self.producer.aclose(drain=self.rng.random() < 0.7))
            await asyncio.gather(*self.tasks, *self.futures, return_exceptions=True)
            self.check(budget)

    async def step(self) -> None:
        kinds = [self.send, self.send, self.send_nowait, self.send_nowait, self.enqueue, self.enqueue]
        others = [
            self.cancel,
            self.fault,
            self.fault,
            self.move,
            self.restart,
            self.recreate,
            self.flush,
            self.pause,
        ]
        await self.rng.choice(kinds + others)()

    def record(self) -> tuple[bytes, dict[str, Any]]:
        self.count += 1
        value = b"%05d" % self.count + b"." * self.rng.choice([0, 0, 50, 200])
        key = self.rng.choice([None, b"k%d" % self.rng.randrange(9)])
        partition = self.rng.choice([None, None, self.rng.randrange(3)])
        topic = self.rng.choices(TOPICS, [5, 5, 1])[0]
        return value, {"topic": topic, "value": value, "key": key, "partition": partition}

    async def send(self) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            value, arguments = self.record()
            self.tasks[asyncio.create_task(self.producer.send(**arguments))] = value, arguments["topic"]

    async def send_nowait(self) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            value, arguments = self.record()
            try:
                self.futures[self.producer.send_nowait(**arguments)] = value, arguments["topic"]
            except QueueFull:
                self.refused.add(value)

    async def enqueue(self) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            value, arguments = self.record()
            try:
                async with asyncio.timeout(self.rng.choice([0.01, 30.0])):
                    await self.producer.enqueue(**arguments)
                self.enqueued.add(value)
            except TimeoutError:
                # it was not accepted, unless the time was over while other tasks had their turn after that
                self.uncertain.add(value)

    async def cancel(self) -> None:
        running = [each for each in (*self.tasks, *self.futures) if not each.done()]
        if running:
            self.rng.choice(running).cancel()

    async def fault(self) -> None:
        fault = self.cluster.faults.on("Produce", times=self.rng.choice([1, 3])).optional()
        kind = self.rng.randrange(4)
        if kind == 0:
            fault.error(self.rng.choice(CODES))
        elif kind == 1:
            fault.disconnect(self.rng.choice(["before", "after"]))
        elif kind == 2:
            fault.delay(self.rng.choice([0.2, 3.0]))
        else:
            fault.drop()

    async def move(self) -> None:
        topic = self.rng.choice(TOPICS[:2])
        self.cluster.move_leader(topic, self.rng.randrange(3), self.rng.choice(sorted(self.cluster.nodes)))

    async def restart(self) -> None:
        node = self.rng.choice(sorted(self.cluster.nodes))
        await self.cluster.stop_node(node)
        await asyncio.sleep(self.rng.choice([0.1, 1.0, 4.0]))
        await self.cluster.start_node(node)

    async def recreate(self) -> None:
        topic = self.rng.choice(TOPICS)
        if topic in self.cluster.topics:
            self.cluster.delete_topic(topic)
            self.recreated.add(topic)
            await asyncio.sleep(self.rng.choice([0.0, 0.3]))
        self.cluster.create_topic(topic, 3)

    async def flush(self) -> None:
        await self.collect(self.producer.flush())

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.choice([0.0, 0.01, 0.3, 3.0]))

    async def collect(self, work: Any) -> None:
        """Await a flush or a close, and count the records that it reports as lost."""
        if work is not None:
            try:
                await work
            except DeliveryFailedError as error:
                self.lost += error.count

    # --- checks -----------------------------------------------------------------------------------------------------

    def check(self, budget: MemoryBudget | None) -> None:
        found = [
            record
            for topic in TOPICS
            if topic in self.cluster.topics
            for record in self.cluster.records(topic)
        ]
        log = Counter(record.value or b"" for record in found)
        twice = [
            (record.topic, record.partition, record.offset)
            for record in found
            if log[record.value or b""] > 1
        ]
        assert not twice, "a record is in the log twice"
        acknowledged = failed = 0
        for waiting, (value, topic) in [*self.tasks.items(), *self.futures.items()]:
            assert waiting.done()
            if waiting.cancelled():
                continue
            error = waiting.exception()
            if error is None:
                acknowledged += 1
                self.check_place(waiting.result(), value)
            else:
                failed += 1
                self.check_error(error, value, topic, log)
        assert not any(value in log for value in self.refused)
        assert "0 records in 0 batches, 0 of" in repr(self.producer)
        assert budget is None or (budget.used, budget.waiting) == (0, 0)
        self.check_counts(acknowledged, failed, log)

    def check_place(self, where: RecordMetadata | None, value: bytes) -> None:
        assert where is not None
        if where.topic not in self.recreated:
            found = [
                each for each in self.cluster.records(where.topic, where.partition) if each.value == value
            ]
            assert [each.offset for each in found] == [where.offset]

    def check_error(self, error: BaseException, value: bytes, topic: str, log: Counter[bytes]) -> None:
        text = str(error)
        assert isinstance(error, AsyncGroupError), repr(error)
        never_accepted = isinstance(error, ClosedError) and "was never entered" in text
        assert topic in text or never_accepted, text
        if not error.may_be_written or never_accepted:
            assert value not in log, text
        assert not (error.may_be_written and never_accepted)
        if isinstance(error, BrokerError) and "records for" in text:
            assert f"{topic}-" in text

    def check_counts(self, acknowledged: int, failed: int, log: Counter[bytes]) -> None:
        """Each accepted record is in one batch that ended, or was lost while its topic was looked up."""
        ledger = self.ledger
        cancelled = sum(each.cancelled() for each in (*self.tasks, *self.futures))
        ended = ledger.acknowledged + ledger.failed
        accepted = len(self.futures) + len(self.enqueued)
        assert accepted - failed - self.lost <= ended
        assert ended <= self.count - len(self.refused)
        assert (
            acknowledged
            <= ledger.acknowledged
            <= acknowledged + len(self.enqueued | self.uncertain) + cancelled
        )
        if not self.recreated:
            assert set(log) >= {value for value in self.enqueued if not self.lost}
        if self.intercepts:
            assert ledger.begun == ledger.ended
            assert all(count == 1 for count in ledger.ended.values())
            assert len(ledger.ended) <= self.count


@pytest.mark.parametrize("seed", long_family(range(300)))
async def test_every_record_has_one_result(seed: int) -> None:
    await Program(seed).run()
