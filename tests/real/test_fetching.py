"""Fetching from a real Kafka: fetch sessions, leader epochs, recreated topics, rack-aware reads, a killed leader."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncgroup import Claim, Cluster, Consumer, ConsumerConfig, ConsumerGroup, Session, TopicPartition
from asyncgroup.cluster import ClusterClient
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import BrokerError, ErrorCode, TopicRecreatedError, TransportError
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import BatchBuilder
from tests.profiles import thinned
from tests.real.support import RunningKafka
from tests.stories.admin import TOPIC_NAME_VERSION, Admin

LIMIT = 60.0


class FetchRecorder:
    """Records the fetches of a Cluster, with their responses: (node, request, response)."""

    def __init__(self, cluster: Cluster) -> None:
        self.exchanges: list[tuple[int, m.FetchRequest, m.FetchResponse | None]] = []
        network = cluster._inner.network
        self._submit, self._try_submit = network.submit, network.try_submit
        network.submit = self._record_submit  # type: ignore[method-assign]
        network.try_submit = self._record_try_submit  # type: ignore[method-assign]

    async def _record_submit(
        self, node_id: int, cls: Any, build: Any, on_response: Any, **options: Any
    ) -> None:
        await self._submit(node_id, cls, *self._recorded(node_id, build, on_response), **options)

    def _record_try_submit(
        self, node_id: int, cls: Any, build: Any, on_response: Any, **options: Any
    ) -> bool:
        return self._try_submit(node_id, cls, *self._recorded(node_id, build, on_response), **options)

    def _recorded(self, node_id: int, build: Any, on_response: Any) -> tuple[Any, Any]:
        sent: list[Any] = []

        def build_and_record(version: int) -> Any:
            sent.append(build(version))
            return sent[-1]

        def record(response: Any, error: Exception | None) -> None:
            if response is not None:
                self.exchanges.append((node_id, sent[-1], response))
            on_response(response, error)

        return build_and_record, record

    @property
    def epochs(self) -> list[int]:
        return [request.session_epoch for _, request, _ in self.exchanges]

    @property
    def nodes(self) -> list[int]:
        return [node for node, _, _ in self.exchanges]


@contextlib.asynccontextmanager
async def temporary_topic(kafka: RunningKafka, partitions: int) -> AsyncIterator[tuple[Admin, str]]:
    admin = Admin(kafka.bootstrap_servers)
    async with asyncio.timeout(LIMIT), admin.cluster:
        name = f"fetching-{uuid.uuid4().hex[:8]}"
        try:
            await admin.create_topic(name, partitions)
        except BrokerError as error:  # a slow broker handled the first request, so the retry failed
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            await admin.leader(TopicPartition(name, partitions - 1))
        yield admin, name
        await admin.delete_topic(name)


async def read(consumer: PartitionConsumer, count: int) -> list[int]:
    return [(await anext(consumer)).offset for _ in range(count)]


async def test_a_fetch_session_survives_seeks_and_pauses(apache_kafka: RunningKafka) -> None:
    async with temporary_topic(apache_kafka, 40) as (admin, topic):
        config = ConsumerConfig(fetch_max_wait=0.1)
        async with Consumer(apache_kafka.bootstrap_servers, config) as reader:
            recorder = FetchRecorder(reader.cluster)
            consumers = [await reader.partition(topic, number, "earliest") for number in range(40)]
            for number in (0, 7, 39):
                await admin.produce(TopicPartition(topic, number), [b"v"] * 5)
                assert await read(consumers[number], 5) == [0, 1, 2, 3, 4]
            consumers[7].seek(2)
            assert await read(consumers[7], 3) == [2, 3, 4]
            consumers[0].pause()
            await asyncio.sleep(0.5)
            await admin.produce(TopicPartition(topic, 0), [b"v"])
            await asyncio.sleep(0.5)
            assert consumers[0].buffered_bytes == 0
            consumers[0].resume()
            assert await read(consumers[0], 1) == [5]
            await asyncio.sleep(0.5)
            await admin.produce(TopicPartition(topic, 20), [b"v"])
            assert await read(consumers[20], 1) == [0]
            await asyncio.sleep(0.5)
            sessions = {
                request.session_id for _, request, _ in recorder.exchanges if request.session_epoch > 0
            }
            assert len(sessions) == 1, "the session must not be replaced"
            assert max(recorder.epochs) > 10
            last = recorder.exchanges[-1][1]
            assert (last.topics, last.forgotten_topics_data) == ([], []), (
                "an unchanged request lists no partitions"
            )
            assert [
                part.error_code
                for _, _, r in recorder.exchanges
                if r
                for t in r.responses
                for part in t.partitions
                if part.error_code
            ] == []


async def test_a_position_with_a_leader_epoch_is_accepted(apache_kafka: RunningKafka) -> None:
    """Each fetch has the last fetched epoch; if it were wrong, the response would have a diverging epoch (KIP-595)."""
    async with temporary_topic(apache_kafka, 1) as (admin, topic):
        async with Consumer(
            apache_kafka.bootstrap_servers, ConsumerConfig(auto_offset_reset="error")
        ) as reader:
            recorder = FetchRecorder(reader.cluster)
            consumer = await reader.partition(topic, 0, "earliest")
            for turn in range(3):
                await admin.produce(TopicPartition(topic, 0), [b"v"] * 3)
                assert await read(consumer, 3) == [3 * turn, 3 * turn + 1, 3 * turn + 2]
            epochs = {
                part.last_fetched_epoch
                for _, r, _ in recorder.exchanges
                for t in r.topics
                for part in t.partitions
            }
            assert epochs == {-1, 0}


@pytest.mark.parametrize("policy", ["earliest", "error"])
async def test_a_recreated_topic_is_detected(apache_kafka: RunningKafka, policy: Any) -> None:
    async with temporary_topic(apache_kafka, 1) as (admin, topic):
        config = ConsumerConfig(auto_offset_reset=policy, fetch_max_wait=0.1)
        async with Consumer(apache_kafka.bootstrap_servers, config) as reader:
            consumer = await reader.partition(topic, 0, 0)
            await admin.produce(TopicPartition(topic, 0), [b"old"] * 3)
            assert await read(consumer, 3) == [0, 1, 2]
            await admin.delete_topic(topic)
            await admin.recreate_topic(topic, 1)
            await admin.produce(TopicPartition(topic, 0), [b"new"] * 9)
            if policy == "error":
                with pytest.raises(TopicRecreatedError):
                    await anext(consumer)
                consumer.seek(0)
            records = [await anext(consumer) for _ in range(9)]
            assert [record.offset for record in records] == list(range(9))
            assert {record.value for record in records} == {b"new"}


async def test_a_group_reads_all_of_a_recreated_topic(apache_kafka: RunningKafka) -> None:
    async with temporary_topic(apache_kafka, 1) as (admin, topic):
        values: list[bytes | None] = []
        handled = asyncio.Condition()

        async def handle(_session: Session, claim: Claim) -> None:
            async for record in claim:
                values.append(record.value)
                claim.mark(record)
                async with handled:
                    handled.notify_all()

        async def until(value: bytes, count: int) -> None:
            async with handled:
                await handled.wait_for(lambda: values.count(value) >= count)

        config = ConsumerConfig(auto_offset_reset="earliest", auto_commit_interval=0.2, fetch_max_wait=0.1)
        async with ConsumerGroup(apache_kafka.bootstrap_servers, f"{topic}-group", config) as group:
            running = asyncio.create_task(group.run(topic, handle))
            try:
                await admin.produce(TopicPartition(topic, 0), [b"old"] * 3)
                await until(b"old", 3)
                await admin.delete_topic(topic)
                await admin.recreate_topic(topic, 1)
                await admin.produce(TopicPartition(topic, 0), [b"new"] * 9)
                await until(b"new", 9)
            finally:
                running.cancel()
                await asyncio.wait([running])


async def test_records_are_fetched_from_the_replica_in_the_same_rack(apache_kafka_3: ApacheKafka) -> None:
    async with temporary_topic(apache_kafka_3, 1) as (admin, topic):
        leader = await admin.leader(TopicPartition(topic, 0))
        near = next(node for node in (1, 2, 3) if node != leader)
        config = ConsumerConfig(rack_id=f"rack-{near}", fetch_max_wait=0.1)
        async with Consumer(apache_kafka_3.bootstrap_servers, config) as reader:
            recorder = FetchRecorder(reader.cluster)
            assert reader.cluster.view.brokers[near].rack == f"rack-{near}"
            consumer = await reader.partition(topic, 0, "earliest")
            for turn in range(3):
                await admin.produce(TopicPartition(topic, 0), [b"v"] * 3)
                assert await read(consumer, 3) == [3 * turn, 3 * turn + 1, 3 * turn + 2]
            served = {
                node
                for node, _, r in recorder.exchanges
                if r
                for t in r.responses
                for p in t.partitions
                if p.records
            }
            assert served == {near}
            # if the preferred read replica lags behind, fetches go to the leader for a time
            while recorder.nodes[-5:] != [near] * 5:
                await asyncio.sleep(0.1)


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_a_killed_leader_delays_records_only_briefly(apache_kafka_3: ApacheKafka) -> None:
    """From a record's acknowledgement by the new leader to its delivery. The bounds leave room for a busy machine."""
    delays = []
    async with temporary_topic(apache_kafka_3, 1) as (admin, topic):
        tp = TopicPartition(topic, 0)
        async with Consumer(apache_kafka_3.bootstrap_servers, ConsumerConfig()) as reader:
            consumer = await reader.partition(topic, 0, "earliest")
            for turn in thinned(range(3)):
                await admin.produce(tp, [b"before"])
                assert (await anext(consumer)).offset == 2 * turn
                await admin.cluster.refresh()
                leader = await admin.leader(tp)
                apache_kafka_3.kill(leader)
                try:
                    delivery = asyncio.create_task(next_record_time(consumer))
                    acknowledged = await produce_to_any(admin.cluster, tp, {1, 2, 3} - {leader})
                    delays.append(await delivery - acknowledged)
                finally:
                    await asyncio.to_thread(apache_kafka_3.start_node, leader)
    assert min(delays) < 0.25, delays
    assert max(delays) < 2.0, delays


async def next_record_time(consumer: PartitionConsumer) -> float:
    """Return the loop time at which the next record is delivered."""
    await anext(consumer)
    return asyncio.get_running_loop().time()


async def produce_to_any(cluster: ClusterClient, tp: TopicPartition, nodes: set[int]) -> float:
    """Try `nodes` until the new leader accepts a record; return the loop time of its acknowledgement."""
    builder = BatchBuilder()
    builder.append(0, None, b"after")
    data = m.ProduceRequest.PartitionProduceData(index=tp.partition, records=builder.build())
    topic = m.ProduceRequest.TopicProduceData(name=tp.topic, partition_data=[data])
    request = m.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
    while True:
        for node in sorted(nodes):
            with contextlib.suppress(TransportError):
                response = await cluster.network.request(node, request, highest=TOPIC_NAME_VERSION)
                if not response.responses[0].partition_responses[0].error_code:
                    return asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
