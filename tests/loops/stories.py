"""Stories of the client and the embedded broker in real time, for every kind of event loop.

Each is short, uses the public interface only, and ends with everything closed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from asyncgroup import (
    Batch,
    Claim,
    CommittedOffset,
    ConsumerConfig,
    ConsumerGroup,
    ConsumeTransformProduce,
    GroupOffsets,
    Handler,
    Producer,
    ProducerConfig,
    Record,
    Session,
    ThreadClaim,
    TopicPartition,
    TransactionOutput,
    in_thread,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.program import Program
from asyncgroup.workqueue import DeadLetter, Delivery, WorkQueue

__all__ = ["LIMIT", "STORIES", "Story"]

Story = Callable[[], Awaitable[None]]

LIMIT: Final = 60.0
"""Seconds after which a story has failed."""

CLASSIC: Final[dict[str, Any]] = {"heartbeat_interval": 0.05, "session_timeout": 10.0}


class Reader(Handler):
    """Marks and keeps all records; commits each one if `commits`."""

    def __init__(self, *, commits: bool = False) -> None:
        self.commits = commits
        self.records: list[Record] = []
        self.assigned: set[TopicPartition] = set()
        self.changed = asyncio.Event()

    def _change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked at each record and assignment."""
        while not condition():
            await self.changed.wait()

    async def on_assigned(self, session: Session, partitions: Any) -> None:
        self.assigned |= set(partitions)
        self._change()

    async def on_revoked(self, session: Session, partitions: Any) -> None:
        self.assigned -= set(partitions)
        self._change()

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for record in claim:
            self.records.append(record)
            claim.mark(record)
            if self.commits:
                await session.commit()
            self._change()


@asynccontextmanager
async def reading(cluster: EmbeddedCluster, handler: Handler, **config: Any) -> AsyncIterator[ConsumerGroup]:
    """Run a member of group "g" that reads topic "t" from its beginning."""
    options = (CLASSIC if config.get("group_protocol", "classic") == "classic" else {}) | config
    async with ConsumerGroup(
        cluster.bootstrap_servers, "g", ConsumerConfig(auto_offset_reset="earliest", **options)
    ) as group:
        running = asyncio.create_task(group.run("t", handler))
        try:
            yield group
        finally:
            await group.aclose()
            await running


def written(cluster: EmbeddedCluster, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in cluster.records(topic))


# --- producer ---------------------------------------------------------------------------------------------------------


async def produce() -> None:
    values = [b"%d" % number for number in range(100)]
    async with EmbeddedCluster(2, topics={"t": 4}) as cluster:
        async with Producer(cluster.bootstrap_servers) as producer:
            assert (await producer.send("t", b"first", partition=0)).offset == 0
            await asyncio.gather(*(producer.send("t", value) for value in values))
            assert (await producer.send_nowait("t", b"last", partition=0)).partition == 0
        assert written(cluster, "t") == sorted([b"first", *values, b"last"])


async def produce_in_bulk() -> None:
    async with EmbeddedCluster(topics={"t": 2}) as cluster:
        async with Producer(cluster.bootstrap_servers, ProducerConfig(compression_type="gzip")) as producer:
            for number in range(5000):
                await producer.enqueue("t", b"%d" % number)
            await producer.flush()
        assert len(cluster.records("t")) == 5000


async def transactions() -> None:
    async with EmbeddedCluster(topics={"t": 2}) as cluster:
        async with Producer(cluster.bootstrap_servers, ProducerConfig(transactional_id="w")) as producer:
            for value in (b"one", b"two"):
                async with producer.transaction():
                    await producer.send("t", value)
                    offsets = {TopicPartition("t", 0): CommittedOffset(1)}
                    await producer.send_offsets(GroupOffsets("other", offsets))
            try:
                async with producer.transaction():
                    await producer.enqueue("t", b"aborted")
                    raise KeyError
            except KeyError:
                pass
        reader = Reader()
        async with reading(cluster, reader, isolation_level="read_committed"):
            await reader.until(lambda: len(reader.records) == 2)
        assert sorted(record.value or b"" for record in reader.records) == [b"one", b"two"]


# --- groups -----------------------------------------------------------------------------------------------------------


async def commit_and_resume(**config: Any) -> None:
    """Every commit is awaited by the handler; the next member continues after the last one."""
    async with EmbeddedCluster(topics={"t": 2}) as cluster:
        first, second = Reader(commits=True), Reader()
        for number in range(6):
            cluster.produce("t", b"%d" % number, partition=number % 2)
        async with reading(cluster, first, **config):
            await first.until(lambda: len(first.records) == 6)
        cluster.produce("t", b"next", partition=0)
        async with reading(cluster, second, **config):
            await second.until(lambda: bool(second.records))
        assert [record.value for record in second.records] == [b"next"]


async def commit_and_resume_by_the_consumer_protocol() -> None:
    await commit_and_resume(group_protocol="consumer")


async def rebalance(**config: Any) -> None:
    """A second member gets half of the partitions, and its records go on to the first one after it left."""
    async with EmbeddedCluster(topics={"t": 4}) as cluster:
        ann, bob = Reader(), Reader()
        async with reading(cluster, ann, **config):
            await ann.until(lambda: len(ann.assigned) == 4)
            async with reading(cluster, bob, **config):
                await bob.until(lambda: len(bob.assigned) == 2)
                await ann.until(lambda: len(ann.assigned) == 2)
                for partition in range(4):
                    cluster.produce("t", b"%d" % partition, partition=partition)
                await ann.until(lambda: len(ann.records) == 2)
                await bob.until(lambda: len(bob.records) == 2)
            await ann.until(lambda: len(ann.assigned) == 4)
            for partition in range(4):
                cluster.produce("t", b"more", partition=partition)
            await ann.until(lambda: len(ann.records) == 6)


async def rebalance_cooperatively() -> None:
    await rebalance(assignors=("cooperative-sticky",))


async def rebalance_by_the_consumer_protocol() -> None:
    await rebalance(group_protocol="consumer")


async def a_node_stops() -> None:
    """Leaders and the coordinator move while records are written and read."""
    async with EmbeddedCluster(3, topics={"t": 4}) as cluster:
        reader = Reader()
        async with Producer(cluster.bootstrap_servers) as producer, reading(cluster, reader):
            for partition in range(4):
                await producer.send("t", b"before", partition=partition)
            await cluster.stop_node(cluster.coordinator("g"))
            for partition in range(4):
                await producer.send("t", b"after", partition=partition)
            await reader.until(lambda: len(reader.records) == 8)


async def batches_and_threads() -> None:
    """A function in a thread reads batches, and the heartbeats have a thread of their own."""
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        loop, done, values = asyncio.get_running_loop(), asyncio.Event(), list[bytes | None]()

        def work(_session: Session, claim: ThreadClaim) -> None:
            for record in claim:
                values.append(record.value)
                claim.mark(record)
                if len(values) == 50:
                    loop.call_soon_threadsafe(done.set)

        for number in range(50):
            cluster.produce("t", b"%d" % number, partition=0)
        async with reading(cluster, in_thread(work)):
            await done.wait()
        assert values == [b"%d" % number for number in range(50)]


async def records_of_a_group() -> None:
    async with EmbeddedCluster(topics={"t": 2}) as cluster:
        for number in range(10):
            cluster.produce("t", b"%d" % number, partition=number % 2)
        config = ConsumerConfig(auto_offset_reset="earliest", **CLASSIC)
        seen = list[bytes]()
        async with ConsumerGroup(cluster.bootstrap_servers, "g", config) as group:
            async for record in group.records("t"):
                seen.append(record.value or b"")
                if len(seen) == 10:
                    break
        assert sorted(seen) == [b"%d" % number for number in range(10)]


async def transform() -> None:
    """From topic to topic in transactions."""
    async with EmbeddedCluster(topics={"t": 2, "out": 2}) as cluster:
        for number in range(20):
            cluster.produce("t", b"%d" % number, partition=number % 2)

        async def shout(batch: Batch, output: TransactionOutput) -> None:
            for record in batch:
                await output.send("out", (record.value or b"") + b"!")

        async with reading(cluster, ConsumeTransformProduce(shout), isolation_level="read_committed"):
            while len(cluster.records("out")) < 20:
                await asyncio.sleep(0.01)
        assert written(cluster, "out") == sorted(b"%d!" % number for number in range(20))


async def a_signal_ends_a_program() -> None:
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        config = ConsumerConfig(auto_offset_reset="earliest", **CLASSIC)
        reader = Reader()
        group = ConsumerGroup(cluster.bootstrap_servers, "g", config)
        program = asyncio.create_task(Program([group], [lambda: group.run("t", reader)]).run())
        await reader.until(lambda: bool(reader.assigned))
        os.kill(os.getpid(), signal.SIGTERM)
        assert await program == 128 + signal.SIGTERM


# --- work queues ------------------------------------------------------------------------------------------------------


async def queue() -> None:
    """Records are handled at the same time; one fails once, one always, which becomes a dead letter."""
    async with EmbeddedCluster(topics={"t": 2}) as cluster:
        for number in range(20):
            cluster.produce("t", b"%d" % number, partition=number % 2)
        attempts = Counter[bytes]()

        async def handle(delivery: Delivery) -> None:
            value = delivery.value or b""
            attempts[value] += 1
            await asyncio.sleep(0)
            if value == b"13" or (value == b"7" and attempts[value] == 1):
                raise ValueError("no")
            assert await delivery.ack(durable=True)

        work = WorkQueue(
            cluster.bootstrap_servers,
            "q",
            "t",
            initial_position="earliest",
            nack_backoff=0.01,
            dead_letter=DeadLetter(max_redeliveries=2),
        )
        async with work:
            running = asyncio.create_task(work.run(handle))
            while attempts[b"13"] < 3 or attempts[b"7"] < 2 or not cluster.records("t-q-DLQ"):
                await asyncio.sleep(0.01)
            await work.aclose()
            await running
        assert written(cluster, "t-q-DLQ") == [b"13"]
        assert len(attempts) == 20


async def queue_receive() -> None:
    """Deliveries are received one by one, in a loop, and acknowledged."""
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        for number in range(10):
            cluster.produce("t", b"%d" % number, partition=0)
        seen = list[bytes]()
        async with WorkQueue(cluster.bootstrap_servers, "q", "t", initial_position="earliest") as work:
            async for delivery in work:
                async with delivery:
                    seen.append(delivery.value or b"")
                if len(seen) == 10:
                    break
        assert seen == [b"%d" % number for number in range(10)]
        assert cluster.group("q").offsets[TopicPartition("t", 0)].offset == 10


_ALL: list[Story] = [
    produce,
    produce_in_bulk,
    transactions,
    commit_and_resume,
    commit_and_resume_by_the_consumer_protocol,
    rebalance,
    rebalance_cooperatively,
    rebalance_by_the_consumer_protocol,
    a_node_stops,
    batches_and_threads,
    records_of_a_group,
    transform,
    a_signal_ends_a_program,
    queue_receive,
    queue,
]
STORIES: Final = {story.__name__: story for story in _ALL}
