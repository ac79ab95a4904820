"""The producer on a real Kafka: every codec and acks, partitions of keys as in other clients, errors."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from asyncgroup.cluster import Cluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import BrokerError, InvalidRecordError
from asyncgroup.producer import Producer
from asyncgroup.wire import messages as m
from tests.real.support import RunningKafka


async def new_topic(cluster: Cluster, partitions: int = 6, *, keeps_old_records: bool = False) -> str:
    """Create a topic with a unique name. By default Kafka deletes records older than a week: it checks that from time to time."""
    name = f"producer-{uuid.uuid4().hex[:8]}"
    create = m.CreateTopicsRequest
    topic = create.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    if keeps_old_records:
        topic.configs = [create.CreatableTopicConfig(name="retention.ms", value="-1")]
    request = create(topics=[topic], timeout_ms=30_000)
    response = await cluster.request(cluster.view.controller_id, request)
    assert not response.topics[0].error_code
    await cluster.topics([name])
    return name


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_and_acks(apache_kafka: RunningKafka, codec: Any) -> None:
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 1)
        offset = 0
        for acks in ("all", 1, 0):
            config = ProducerConfig(compression_type=codec, acks=acks, linger=0.01)
            async with Producer(cluster, config) as producer:
                sends = (producer.send(topic, b"%d" % n, headers=[("h", None)]) for n in range(100))
                places = await asyncio.gather(*sends)
            expected = [-1] * 100 if acks == 0 else list(range(offset, offset + 100))
            assert [place.offset for place in places] == expected
            offset += 100


async def test_keys_map_to_the_same_partitions_as_in_aiokafka(apache_kafka: RunningKafka) -> None:
    rng = random.Random(1)
    servers = apache_kafka.bootstrap_servers
    async with Cluster(servers) as cluster:
        topic = await new_topic(cluster)
        other = AIOKafkaProducer(bootstrap_servers=servers)
        await other.start()
        try:
            async with Producer(cluster, ProducerConfig(linger=0.0)) as producer:
                for _ in range(100):
                    key = rng.randbytes(rng.randrange(1, 30))
                    ours = await producer.send(topic, b"x", key=key)
                    theirs = await other.send_and_wait(topic, b"x", key=key)
                    assert (theirs.partition, theirs.offset) == (ours.partition, ours.offset + 1)
        finally:
            await other.stop()


async def test_errors_of_a_real_broker(apache_kafka: RunningKafka) -> None:
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 2)
        config = ProducerConfig(linger=0.0, max_request_size=3_000_000)
        async with Producer(cluster, config) as producer:
            with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
                await producer.send(topic, b"x" * 2_000_000)
            with pytest.raises(InvalidRecordError, match="the topic has 2 partitions"):
                await producer.send(topic, b"x", partition=2)
            assert (await producer.send(topic, b"x", partition=1)).partition == 1
