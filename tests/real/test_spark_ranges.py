"""Ranges of offsets read from a real Kafka as by an executor: codecs, transactions, deleted records, a failover."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from asyncgroup.spark.source.errors import DataLossError
from asyncgroup.spark.source.executor import workers
from asyncgroup.spark.source.executor.workers import read_ranges
from asyncgroup.spark.source.options.settings import ReadSettings
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.support import RunningKafka
from tests.spark.source.reading import part, settings

pytest.importorskip("pyarrow")

WAIT = 30.0


@pytest.fixture(autouse=True)
def _own_process() -> Iterator[None]:
    workers.close()
    yield
    workers.close()


def new_topic(servers: str, partitions: int = 1, replicas: int = 1, **config: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"ranges-{uuid.uuid4().hex[:8]}"
    # a variable, as pending results fail when the client is garbage collected
    admin = AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics([NewTopic(name, partitions, replicas, config=config)])
    made[name].result(WAIT)
    return name


def producer(servers: str, **config: object) -> Any:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": servers, **{key.replace("_", "."): v for key, v in config.items()}})


def write(one: Any, topic: str, numbers: range, partition: int = 0) -> None:
    for number in numbers:
        one.produce(
            topic,
            b"%d " % number + b"." * 200,
            key=b"%d" % number,
            partition=partition,
            headers=[("n", b"%d" % number)],
        )
    assert one.flush(WAIT) == 0


def rows(
    asked: ReadSettings, topic: str, start: int, end: int, partition: int = 0
) -> list[tuple[int, bytes]]:
    found = [
        row for made in read_ranges(asked, [part(start, end, partition, topic)]) for row in made.to_pylist()
    ]
    return [(row["offset"], row["key"]) for row in found]


def expected_rows(numbers: range) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in numbers]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(apache_kafka: RunningKafka, codec: str) -> None:
    servers = apache_kafka.bootstrap_servers
    topic = new_topic(servers)
    write(producer(servers, compression_type=codec, linger_ms=50), topic, range(3000))
    asked = settings(servers, fetch_bytes=100_000, include_headers=True)
    assert rows(asked, topic, 17, 2801) == expected_rows(range(17, 2801))
    assert rows(asked, topic, 2801, 3000) == expected_rows(range(2801, 3000))
    first = next(iter(read_ranges(asked, [part(5, 6, 0, topic)])))
    assert first.column("headers").to_pylist() == [[{"key": "n", "value": b"5"}]]


def test_transactions(apache_kafka: RunningKafka) -> None:
    servers = apache_kafka.bootstrap_servers
    topic = new_topic(servers)
    one = producer(servers, transactional_id=topic)
    one.init_transactions(WAIT)
    for first, end in (
        (0, one.commit_transaction),
        (10, one.abort_transaction),
        (20, one.commit_transaction),
    ):
        one.begin_transaction()
        write(one, topic, range(first, first + 10))
        end(WAIT)
    # each transaction is followed by its marker
    committed = [(n, b"%d" % n) for n in range(10)] + [(n + 2, b"%d" % n) for n in range(20, 30)]
    read_committed = settings(servers, config={"isolation_level": "read_committed"})
    assert rows(read_committed, topic, 0, 33) == committed
    assert rows(read_committed, topic, 10, 22) == []
    assert len(rows(settings(servers), topic, 0, 33)) == 30


@pytest.mark.full
def test_records_that_are_gone(apache_kafka: RunningKafka) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    servers = apache_kafka.bootstrap_servers
    topic = new_topic(servers)
    write(producer(servers), topic, range(100))
    admin = AdminClient({"bootstrap.servers": servers})
    deleted = admin.delete_records([TopicPartition(topic, 0, 40)])
    next(iter(deleted.values())).result(WAIT)
    with pytest.raises(DataLossError, match=r"\[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE\].*\[20, 40\)"):
        rows(settings(servers), topic, 20, 60)
    lenient = settings(servers, fail_on_data_loss=False, poll_timeout=5.0)
    assert rows(lenient, topic, 20, 60) == expected_rows(range(40, 60))
    assert rows(lenient, topic, 150, 160) == []
    admin.delete_topics([topic])[topic].result(WAIT)
    # the broker applies the deletion after the controller has acknowledged it
    assert any(rows(lenient, topic, 60, 70) == [] for _ in range(100))


@pytest.mark.soak
def test_a_failover(apache_kafka_3: ApacheKafka) -> None:
    """A broker is killed and restarted while its partitions are read."""
    servers = apache_kafka_3.bootstrap_servers
    topic = new_topic(servers, 3, 3)
    for number in range(3):
        write(producer(servers, compression_type="lz4"), topic, range(20_000), number)
    asked = settings(servers, fetch_bytes=20_000, config={"request_timeout": 5.0})
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    restart: threading.Thread | None = None
    for number, made in enumerate(read_ranges(asked, [part(100, 19_900, p, topic) for p in range(3)])):
        for row in made.select(["partition", "offset"]).to_pylist():
            found[row["partition"]].append(row["offset"])
        if number == 1:
            apache_kafka_3.kill(1)
            restart = threading.Thread(target=apache_kafka_3.restart, args=(1,))
            restart.start()
    assert found == {number: list(range(100, 19_900)) for number in range(3)}
    assert restart is not None
    restart.join()
