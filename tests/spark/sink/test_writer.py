"""The writers, run in this process: checks, written records, commit messages to the driver."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from asyncgroup import Consumer, ConsumerConfig
from asyncgroup.errors import (
    BrokerError,
    ConfigError,
    DeliveryFailedError,
    ErrorCode,
    InvalidRecordError,
    NoBrokersError,
)
from asyncgroup.spark.sink import producer_cache as producers_module
from asyncgroup.spark.sink.producer_cache import OpenProducer, ProducerCache, WrittenRange, producer_cache
from asyncgroup.spark.sink.write_settings import WriteSettings, write_settings
from asyncgroup.spark.sink.writer import (
    BatchWriter,
    StreamWriter,
    TaskCommitMessage,
    make_writer,
    outgoing_rows,
)
from asyncgroup.testing import KafkaServer

SERVERS = {"kafka.bootstrap.servers": "localhost:1"}
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "map<string,binary>": MapType(StringType(), BinaryType()),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProducerCache]:
    """A producer cache for this test only, as of a new executor."""
    own = ProducerCache()
    monkeypatch.setattr("asyncgroup.spark.sink.writer.producer_cache", own)
    yield own
    own.close()


def schema_of(columns: str) -> StructType:
    """Parse a schema such as `value string, key binary`; Spark's own parser needs a session."""
    pairs = (column.split(" ", 1) for column in columns.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def writer_for(server: KafkaServer, schema: str, **options: str) -> BatchWriter:
    options = {"kafka.bootstrap.servers": server.bootstrap_servers, **options}
    return make_writer(options, schema_of(schema), stream=False)


# --- options and columns ----------------------------------------------------------------------------------------------


def test_options() -> None:
    settings = write_settings(
        {
            "Kafka.Bootstrap.Servers": "a:1,b:2",
            "topic": " orders ",
            "kafka.acks": "1",
            "kafka.linger.ms": "20",
            "checkpointLocation": "/c",
        }
    )
    assert (settings.bootstrap_servers, settings.topic) == ("a:1,b:2", "orders")
    assert (settings.config.acks, settings.config.linger) == (1, 0.02)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert write_settings(SERVERS).config.acks == "all"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "kafka.bootstrap.servers is missing"),
        (SERVERS | {"kafka.key.serializer": "x"}, "kafka.key.serializer='x'.*cast the column"),
        (SERVERS | {"kafka.value.serializer": "x"}, "kafka.value.serializer"),
        (SERVERS | {"kafka.acks": "2"}, "kafka.acks='2'"),
        (SERVERS | {"kafka.acsk": "1"}, "kafka.acsk.*did you mean kafka.acks"),
        (SERVERS | {"kafka.transactional.id": "x"}, "kafka.transactional.id"),
        (SERVERS | {"transactional.id.prefx": "x"}, "no such option; did you mean transactional.id.prefix?"),
        (SERVERS | {"transactionalIdPrefix": "x"}, "no such option; did you mean transactional.id.prefix?"),
        (
            SERVERS | {"topics": "x"},
            "^topics='x' is not allowed: there is no such option; did you mean topic?",
        ),
        (SERVERS | {"linger.ms": "5"}, "did you mean kafka.linger.ms, a property of Kafka's client?"),
        (SERVERS | {"mode": "x"}, "there is no such option; there are topic, transactional.id.prefix"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        write_settings(options)


def test_options_of_sources_and_of_spark_are_ignored() -> None:
    """One dictionary is often used for reading and writing."""
    others = {"subscribe": "a", "startingOffsets": "earliest", "path": "/p", "queryName": "q", "spark.x": "1"}
    assert write_settings(SERVERS | others) == write_settings(SERVERS)


def test_options_without_effect_are_logged_once_for_each_query(caplog: pytest.LogCaptureFixture) -> None:
    options = SERVERS | {"topic": "t", "kafka.group.id": "g", "kafka.metric.reporters": "x"}
    write_settings(options)
    assert not caplog.records
    make_writer(options, schema_of("value string"), stream=True)
    assert [record.message for record in caplog.records] == [
        "kafka.group.id is a consumer property, ignored by the sink",
        "kafka.metric.reporters has no effect on the sink",
    ]


SASL = SERVERS | {"kafka.security.protocol": "SASL_SSL"}
TLS = SERVERS | {"kafka.security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            SASL | {"kafka.sasl.mechanism": "OAUTHBEARER"},
            "kafka.sasl.mechanism='OAUTHBEARER'.*a function, which cannot be an option",
        ),
        (
            SASL | {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "u"},
            "^kafka.sasl.password='' is not allowed",
        ),
        (
            SASL | {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": "hunter2"},
            r"^kafka.sasl.jaas.config='\[hidden\]'",
        ),
        (SASL | {"kafka.sasl.passwrd": "hunter2"}, r"^kafka.sasl.passwrd='\[hidden\]'"),
        (SERVERS | {"kafka.acks": "2"}, "^kafka.acks='2'"),
        ({"kafka.bootstrap.servers": "u:hunter2@a:1"}, r"^kafka.bootstrap.servers='\[hidden\]'"),
        ({"kafka.bootstrap.servers": "a"}, "^kafka.bootstrap.servers='a' is not allowed: host:port"),
        (
            TLS | {"kafka.ssl.keystore.key": "hunter2", "kafka.ssl.keystore.certificate.chain": "chain"},
            "^kafka.ssl.keystore.certificate.chain='given'.*a readable PEM certificate with its key",
        ),
        (
            TLS | {"kafka.ssl.certificate.location": __file__, "kafka.ssl.key.location": __file__},
            "^kafka.ssl.certificate.location=.*a readable PEM certificate with its key",
        ),
        (TLS | {"kafka.ssl.ca.location": __file__}, "^kafka.ssl.ca.location=.*readable PEM"),
    ],
)
def test_refused_security_options_are_named_without_their_values(options: dict[str, str], words: str) -> None:
    """On the driver, when the query is created; not in each task."""
    with pytest.raises(ConfigError, match=words) as caught:
        write_settings(options)
    assert "hunter2" not in f"{caught.value!r} {vars(caught.value)}"


def test_a_password_is_not_shown() -> None:
    settings = write_settings(
        SERVERS
        | {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "me",
            "kafka.sasl.password": "hunter2",
        }
    )
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("schema", "topic", "words"),
    [
        ("value string", None, "no topic to write to.*option topic"),
        ("key string, topic string", None, "no column 'value'.*'key', 'topic'"),
        ("value int", "t", "column 'value' has the type int; it must be string or binary"),
        ("value string, key bigint", "t", "column 'key' has the type bigint"),
        ("value string, topic binary", None, "column 'topic' has the type binary; it must be string"),
        ("value string, partition bigint", "t", "column 'partition' has the type bigint; it must be int"),
        ("value string, headers map<string,binary>", "t", "column 'headers' has the type map<string,binary>"),
        ("Value string", "t", "no column 'value'"),
    ],
)
def test_columns_that_are_refused(schema: str, topic: str | None, words: str) -> None:
    options = SERVERS if topic is None else SERVERS | {"topic": topic}
    for stream in (True, False):
        with pytest.raises(ConfigError, match=words):
            make_writer(options, schema_of(schema), stream=stream)


def test_columns_that_are_accepted() -> None:
    schema = schema_of(
        "value binary, key string, topic int, partition int, headers headers, timestamp string"
    )
    options = SERVERS | {"topic": "t"}  # the option wins over the column, whose type is not checked then
    assert isinstance(make_writer(options, schema, stream=True, overwrite=True), StreamWriter)
    with pytest.raises(ConfigError, match="save mode='overwrite' is not allowed: append"):
        make_writer(options, schema, stream=False, overwrite=True)
    writer = make_writer(options, schema, stream=False)
    assert repr(pickle.loads(pickle.dumps(writer))) == "<BatchWriter to t>"


def test_rows_of_a_batch() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(["ä", None], pa.large_string()),
            "key": pa.array([b"k", None], pa.binary()),
            "partition": pa.array([1, None], pa.int32()),
            "headers": pa.array([[{"key": "h", "value": None}], None], HEADERS),
            "topic": pa.array(["t", None]),
        }
    )
    first, second = outgoing_rows(batch, "all")
    assert first == ("all", "ä".encode(), b"k", [("h", None)], 1, None)
    assert second == ("all", None, None, (), None, None)
    with pytest.raises(InvalidRecordError, match="a row's topic is null; the option topic"):
        list(outgoing_rows(batch, None))
    null = pa.RecordBatch.from_pydict({"value": ["v"], "headers": pa.array([[None]], HEADERS)})
    with pytest.raises(InvalidRecordError, match="a row has a null header"):
        list(outgoing_rows(null, "all"))
    assert next(outgoing_rows(batch.select(["value"]), "x")) == ("x", "ä".encode(), None, (), None, None)


# --- writing ----------------------------------------------------------------------------------------------------------


def batch_of(numbers: range, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [str(number) for number in numbers]} | columns)


def test_a_commit_message_has_the_offsets_of_the_records(
    kafka_server: KafkaServer, own_cache: ProducerCache
) -> None:
    kafka_server.create_topic("orders", 2)
    writer = writer_for(kafka_server, "value string, partition int", topic="orders")
    batches = [
        batch_of(range(3), partition=pa.array([0, 1, 0], pa.int32())),
        batch_of(range(3, 5), partition=pa.array([0, 0], pa.int32())),
    ]
    for first in (0, 4):
        message = writer.write(iter(batches))
        assert message == TaskCommitMessage(
            (
                WrittenRange("orders", 0, first, first + 3, 4),
                WrittenRange("orders", 1, first // 4, first // 4, 1),
            ),
            5,
        )
        assert pickle.loads(pickle.dumps(message)) == message
    assert len(kafka_server.records("orders")) == 10
    assert writer.write(iter([])) == TaskCommitMessage((), 0)
    assert repr(own_cache) == "<ProducerCache: 1 open>"


def test_producers_are_cached_by_their_options(
    kafka_server: KafkaServer, own_cache: ProducerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka_server.create_topic("orders", 1)
    one = writer_for(kafka_server, "value string", topic="orders")
    same = writer_for(kafka_server, "value binary", topic="others")
    other = writer_for(kafka_server, "value string", topic="orders", **{"kafka.acks": "0"})
    one.write(iter([batch_of(range(1))]))
    assert repr(own_cache) == "<ProducerCache: 1 open>"
    same.write(iter([]))
    assert repr(own_cache) == "<ProducerCache: 1 open>"
    assert other.write(iter([batch_of(range(1))])).ranges == (WrittenRange("orders", 0, -1, -1, 1),)
    assert repr(own_cache) == "<ProducerCache: 2 open>"
    monkeypatch.setattr(producers_module, "IDLE_TIMEOUT", 0.0)
    other.write(iter([]))
    assert repr(own_cache) == "<ProducerCache: 1 open>"


def test_an_invalid_row_fails_the_task_and_closes_its_producer(
    kafka_server: KafkaServer, own_cache: ProducerCache
) -> None:
    kafka_server.create_topic("orders", 1)
    writer = writer_for(kafka_server, "value string, topic string")
    bad = [batch_of(range(3), topic=["orders", "orders", None]), batch_of(range(3), topic=["orders"] * 3)]
    with pytest.raises(InvalidRecordError, match="topic is null"):
        writer.write(iter(bad))
    assert repr(own_cache) == "<ProducerCache: 0 open>"
    left = len(kafka_server.records("orders"))
    message = writer.write(iter([batch_of(range(2), topic=["orders"] * 2)]))
    assert message.ranges == (WrittenRange("orders", 0, left, left + 1, 2),)


def test_an_error_of_the_input_is_raised(kafka_server: KafkaServer, own_cache: ProducerCache) -> None:
    kafka_server.create_topic("orders", 1)

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch_of(range(3))
        raise RuntimeError("the pipe broke")

    with pytest.raises(RuntimeError, match="the pipe broke"):
        writer_for(kafka_server, "value string", topic="orders").write(broken())
    assert repr(own_cache) == "<ProducerCache: 0 open>"


def test_refused_records_fail_the_task(kafka_server: KafkaServer, own_cache: ProducerCache) -> None:
    kafka_server.create_topic("orders", 1)
    writer = writer_for(kafka_server, "value string", topic="orders")
    fault = kafka_server.faults.on("Produce", topic="orders", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(DeliveryFailedError) as caught:
        writer.write(iter([batch_of(range(3))]))
    (count, reason) = next(iter(caught.value.failed.values()))
    assert count == 3
    assert isinstance(reason, BrokerError)
    assert reason.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    fault.cancel()
    assert writer.write(iter([batch_of(range(3))])).ranges == (WrittenRange("orders", 0, 0, 2, 3),)


def test_large_values(kafka_server: KafkaServer, own_cache: ProducerCache) -> None:
    """They are refused with the options that would allow them, or split by `kafka.chunking`."""
    kafka_server.create_topic("orders", 1)
    small = {"topic": "orders", "kafka.max.request.size": "5000"}
    batches = [pa.RecordBatch.from_pydict({"value": ["x" * 12_000, "y"]})]
    with pytest.raises(
        InvalidRecordError, match=r"kafka.max.request.size=5000 \(kafka.chunking=true splits values\)"
    ):
        writer_for(kafka_server, "value string", **small).write(iter(batches))
    chunks = {"kafka.chunking": "TRUE", "kafka.max.chunk.size": "3000"}
    message = writer_for(kafka_server, "value string", **small, **chunks).write(iter(batches))
    (written,) = message.ranges
    assert message.rows == 2
    assert written.records > 4
    consumed = asyncio.run(assembled(kafka_server.bootstrap_servers, "orders", 2))
    assert consumed == [b"x" * 12_000, b"y"]


async def assembled(servers: str, topic: str, count: int) -> list[bytes | None]:
    """Read values, those in chunks put together."""
    config = ConsumerConfig(chunks="assemble")
    async with Consumer(servers, config) as consumer:
        reading = await consumer.partition(topic, 0, 0)
        values = []
        async for record in reading:
            values.append(record.value)
            if len(values) == count:
                break
    return values


def test_a_broker_restart_is_waited_for(kafka_server: KafkaServer, own_cache: ProducerCache) -> None:
    kafka_server.create_topic("orders", 1)
    writer = writer_for(kafka_server, "value string", topic="orders")
    writer.write(iter([batch_of(range(3))]))
    node = kafka_server.leader("orders", 0)
    kafka_server.stop_node(node)  # the cached connection is closed while no loop runs

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_of(range(3, 5))
        kafka_server.start_node(node)
        yield batch_of(range(5, 7))

    assert writer.write(batches()).ranges == (WrittenRange("orders", 0, 3, 6, 4),)
    assert [int(record.value or b"") for record in kafka_server.records("orders")] == list(range(7))


def test_unreachable_brokers_at_the_start_of_a_task(
    kafka_server: KafkaServer, own_cache: ProducerCache, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    kafka_server.create_topic("orders", 1)
    writer = writer_for(kafka_server, "value string", topic="orders")
    node = kafka_server.leader("orders", 0)
    kafka_server.stop_node(node)
    hasty = writer_for(kafka_server, "value string", topic="orders", **{"kafka.max.block.ms": "50"})
    with pytest.raises(NoBrokersError, match=r"no broker of .* within 0.05 s \(kafka.max.block.ms\)"):
        hasty.write(iter([]))
    own = ProducerCache()
    monkeypatch.setattr("asyncgroup.spark.sink.writer.producer_cache", own)
    opening = own._open

    async def open_later(settings: WriteSettings) -> OpenProducer:
        back = asyncio.get_running_loop().run_in_executor(None, lambda: kafka_server.start_node(node))
        try:
            return await opening(settings)
        finally:
            await back

    monkeypatch.setattr(own, "_open", open_later)
    assert writer.write(iter([batch_of(range(3))])).ranges == (WrittenRange("orders", 0, 0, 2, 3),)
    own.close()


def test_commit_and_abort_do_nothing() -> None:
    writer = make_writer(SERVERS | {"topic": "t"}, schema_of("value string"), stream=True)
    writer.commit([], 0)
    writer.abort([None], 0)
    assert repr(producer_cache) == "<ProducerCache: 0 open>"
