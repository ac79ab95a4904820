"""librdkafka's partitioners and those of the same name here send each key to the same partition."""

from __future__ import annotations

from typing import Any

from asyncgroup import Producer, ProducerConfig
from asyncgroup.broker import EmbeddedCluster
from tests.interop.test_foreign_clients import in_thread

KEYS = [b"", b"1468509572224", b"\xff\x80\x00", *(b"key-%d" % number for number in range(150))]
NAMES = ["consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"]
RANDOM_WHEN_EMPTY = {"consistent_random"}


def confluent_partitions(servers: str, name: str, keys: list[bytes | None]) -> list[int]:
    from confluent_kafka import Producer as Confluent

    places: dict[int, int] = {}

    def delivered(place: int) -> Any:
        return lambda _error, message: places.setdefault(place, message.partition())

    producer = Confluent({"bootstrap.servers": servers, "partitioner": name, "linger.ms": 0})
    for place, key in enumerate(keys):
        producer.produce("keys", b"x", key=key, on_delivery=delivered(place))
    assert producer.flush(30) == 0
    return [places[place] for place in range(len(keys))]


async def test_the_same_partitions_as_librdkafka() -> None:
    async with EmbeddedCluster(nodes=1) as cluster:
        cluster.create_topic("keys", 13)
        for name in NAMES:
            keys: list[bytes | None] = [key for key in KEYS if key or name not in RANDOM_WHEN_EMPTY]
            keys += [] if name.endswith("_random") else [None]
            theirs = await in_thread(confluent_partitions, cluster.bootstrap_servers, name, keys)
            async with Producer(cluster.bootstrap_servers, ProducerConfig(partitioner=name)) as producer:
                sent = [producer.send_nowait("keys", b"x", key=key) for key in keys]
                assert [(await future).partition for future in sent] == theirs, name
