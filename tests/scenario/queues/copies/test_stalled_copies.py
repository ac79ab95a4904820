"""Transactional copies to a topic of which one partition does not answer: those to the others are written all the time.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from asyncgroup import Consumer, ConsumerConfig, ProducerConfig
from asyncgroup.hashing.murmur2 import partition_for_key
from asyncgroup.workqueue import DeadLetter
from tests.scenario.queues.copies.transactional_queues import DLQ, RETRY, Process
from tests.scenario.support import now
from tests.stories.queue_members import acked, send
from tests.stories.virtual import VirtualEnvironment
from tests.work_queues import core_of

pytestmark = [pytest.mark.virtual(max_virtual_time=864_000), pytest.mark.usefixtures("no_asyncio_errors")]

PARTITIONS = 3
OPTIONS: dict[str, Any] = {"retry": None, "dead_letter": DeadLetter(3, partitions=PARTITIONS)}
OWN_ID = ProducerConfig(transactional_id="copies", transaction_timeout=10.0)
"""With an id of the user the queue ends if the producer is fenced."""


def key_of(partition: int, number: int = 0) -> bytes:
    """A key whose records go to a partition of the dead letter topic."""
    keys = (b"key %d" % each for each in range(1000))
    return [key for key in keys if partition_for_key(key, PARTITIONS) == partition][number]


class BadPartition:
    """A partition of the dead letter topic that is offline, refuses all, or does not answer, until `mend`."""

    def __init__(self, env: VirtualEnvironment, how: str) -> None:
        env.cluster.create_topic(DLQ, PARTITIONS, 1)
        self.number = 0
        self.others = [1, 2]
        self._env = env
        self._how = how
        self._node = env.cluster.leader(DLQ, self.number)
        assert [env.cluster.leader(DLQ, each) for each in self.others].count(self._node) == 0

    async def spoil(self) -> None:
        if self._how == "offline":
            await self._env.cluster.stop_node(self._node)
        else:
            fault = self._env.cluster.faults.on("Produce", topic=DLQ, node=self._node, times=None)
            self._fault = fault.drop() if self._how == "silent" else fault.error("NOT_ENOUGH_REPLICAS")

    async def mend(self) -> None:
        if self._how == "offline":
            await self._env.cluster.start_node(self._node)
        else:
            self._fault.cancel()


async def written(env: VirtualEnvironment) -> list[bytes]:
    """The values that readers with `read_committed` see in the dead letter topic."""
    found: list[bytes] = []
    async with Consumer(env.bootstrap_servers, ConsumerConfig(isolation_level="read_committed")) as consumer:
        for number in range(PARTITIONS):
            reader = await consumer.partition(DLQ, number, 0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    async for record in reader:
                        found.append(record.value or b"")  # noqa: PERF401  those before the timeout count
    return sorted(found)


@pytest.mark.parametrize(
    ("how", "producer_config"),
    [
        ("offline", None),
        pytest.param("offline", OWN_ID, marks=pytest.mark.full),
        pytest.param("refuses", None, marks=pytest.mark.full),
        pytest.param("silent", None, marks=pytest.mark.full),
        pytest.param("silent", OWN_ID, marks=pytest.mark.full),
    ],
)
async def test_the_other_partitions_are_written(
    env: VirtualEnvironment, how: str, producer_config: ProducerConfig | None
):
    """At the second attempt, and what comes later at once; acknowledgements of the same source partition do not wait."""
    bad = BadPartition(env, how)
    await bad.spoil()
    good = [b"reject %d" % number for number in bad.others]
    first = [(key_of(number), value) for number, value in zip(bad.others, good, strict=True)]
    await send(env, (key_of(bad.number), b"reject bad"), *first, b"ack")
    async with Process(env, "ann", **OPTIONS, producer_config=producer_config) as ann:
        began = now()
        await ann.until("end 0@3#1")
        await asyncio.sleep(2.0)
        assert await acked(env) == [3], "while the transaction waits for the partition"
        await ann.until("end 0@1#1", "end 0@2#1")
        assert now() - began < 40.0
        assert await acked(env) == [1, 2, 3]
        requests = len(env.cluster.history.of("EndTxn"))
        for each in range(2):  # also other keys of the bad partition, and records without one
            await send(
                env, (key_of(bad.number, each), b"reject bad"), (key_of(1, each), b"reject 1"), b"reject"
            )
            await ann.until(f"end 0@{5 + 3 * each}#1", f"end 0@{6 + 3 * each}#1")
            (problem,) = ann.queue.health().problems  # also while others are written
            assert problem.startswith(f"copies to topic '{DLQ}' fail: RequestTimedOut: ")
            assert problem.endswith(": no response within the time of a transaction, 10 s")
        assert now() - began < 100.0
        await asyncio.sleep(120.0)
        assert len(env.cluster.history.of("EndTxn")) - requests < 6 + 220 / 30
        assert len(ann.of("end")) == 7
        await bad.mend()
        began = now()
        await ann.until_count("end", 10)
        assert now() - began < 150.0
        assert ann.queue.health().problems == ()
    assert await acked(env) == list(range(10))
    values = [b"reject bad"] * 3 + [b"reject 1"] * 3 + [b"reject 2"] + [b"reject"] * 2
    assert await written(env) == sorted(values)


@pytest.mark.full
async def test_a_new_producer_knows_which_copies_wait(env: VirtualEnvironment):
    """The outcome of a commit is unknown, so the producer is replaced: copies to the partition still delay no others."""
    bad = BadPartition(env, "refuses")
    await bad.spoil()
    await send(env, (key_of(bad.number), b"reject bad"))
    async with Process(env, "ann", **OPTIONS) as ann:
        client = core_of(ann.queue).engine.cluster._inner
        await env.bell.until(lambda: bool(ann.queue.health().problems), "it does not answer", env.limit)
        await asyncio.sleep(12.0)  # until the transaction is aborted
        env.cluster.faults.on("EndTxn", client_id="ann").error("UNKNOWN_SERVER_ERROR")
        env.cluster.faults.on("InitProducerId", client_id="ann", times=2).error("COORDINATOR_NOT_AVAILABLE")
        await send(env, (key_of(1), b"reject 1"))
        while len(env.cluster.history.of("InitProducerId")) < 5:
            await client.refresh()  # also while there is no producer
            await asyncio.sleep(0.01)
        for number in range(4):
            began = now()
            await send(env, (key_of(bad.number, number), b"reject bad"), (key_of(2, number), b"reject 2"))
            await ann.until(f"end 0@{3 + 2 * number}#1")
            assert now() - began < 8.0
        await bad.mend()
        await ann.until_count("end", 10)
    assert await acked(env) == list(range(10))


async def test_copies_that_a_trial_leaves_are_tried_next(env: VirtualEnvironment):
    """Two topics stop answering: the trial takes copies to one of them, and those to the other follow by themselves."""
    faults = [
        env.cluster.faults.on("Produce", topic=topic, times=None).error("NOT_ENOUGH_REPLICAS")
        for topic in (DLQ, RETRY)
    ]
    await send(env, b"reject 0", b"retry 1")
    config = ProducerConfig(transaction_timeout=10.0)
    async with Process(env, "ann", producer_config=config) as ann:
        await asyncio.sleep(120.0)
        assert not await acked(env)
        for fault in faults:
            fault.cancel()
        mended_at = now()
        while await acked(env) != [0, 1]:
            await asyncio.sleep(1.0)
            assert now() - mended_at < 300.0
        await env.bell.until(lambda: ann.queue.health().is_healthy, "well again", env.limit)


@pytest.mark.full
async def test_a_transaction_may_last_longer_than_the_delivery_of_a_record(env: VirtualEnvironment):
    """Its copies are waited for less long, so that the partition counts as stalled, and the others are written in that time."""
    env.cluster.faults.on("Produce", topic=DLQ, times=None).error("NOT_ENOUGH_REPLICAS")
    await send(env, b"reject 0")
    config = ProducerConfig(transaction_timeout=600.0, delivery_timeout=20.0, request_timeout=5.0)
    async with Process(env, "ann", producer_config=config):
        waits = []
        for number in range(1, 31):
            await send(env, b"retry 1")
            began = now()
            while number not in await acked(env):
                await asyncio.sleep(0.5)
            waits.append(now() - began)
            await asyncio.sleep(10.0)
        assert sum(wait > 5.0 for wait in waits) <= len(waits) / 4, waits
        assert max(waits) < 60.0
