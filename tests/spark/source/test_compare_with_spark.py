"""Functions of the source compared with those of Spark's own Kafka source in the JVM; without queries and brokers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver.limits import rate_limit
from asyncgroup.spark.source.driver.planner import split
from asyncgroup.spark.source.errors import OptionError, SourceArgumentError
from asyncgroup.spark.source.options import offsets_json, values
from asyncgroup.spark.source.options.parser import read_settings
from asyncgroup.spark.source.options.patterns import java_pattern
from tests.spark.source.java_patterns import DIFFER, NAMES, PATTERNS
from tests.spark.source.reading_options import dumps

SERVERS: Final = {"kafka.bootstrap.servers": "127.0.0.1:1"}
A: Final = {"subscribe": "a"}
JVM_ERROR: Final = (
    "IllegalArgumentException|NumberFormatException|NoSuchElementException|PatternSyntaxException"
)


class Theirs:
    """Calls Spark's classes in the JVM."""

    def __init__(self, spark: Any) -> None:
        self.jvm, self._gateway = spark._jvm, spark.sparkContext._gateway
        self.kafka = self.jvm.org.apache.spark.sql.kafka010
        self._scala = self.jvm.scala.jdk.javaapi.CollectionConverters
        stream = self.kafka.KafkaMicroBatchStream(None, None, self._options({}), "", None, False)
        rate = next(each for each in stream.getClass().getDeclaredMethods() if each.getName() == "rateLimit")
        rate.setAccessible(True)
        self._rate_limit = lambda arguments: rate.invoke(stream, arguments)

    def _options(self, options: Mapping[str, str]) -> Any:
        given = self.jvm.java.util.HashMap()
        for name, value in options.items():
            given[name] = value
        return self.jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(given)

    def plan(self, options: Mapping[str, str], *, stream: bool) -> None:
        """Do with options what Spark does before it contacts a broker."""
        given = self._options(options)
        scan = self.kafka.KafkaSourceProvider().getTable(given).newScanBuilder(given).build()
        if stream:
            scan.toMicroBatchStream("checkpoint")
        else:
            scan.toBatch()

    def split(self, ranges: list[OffsetRange], least: int | None, most: int | None) -> list[OffsetRange]:
        given = self.jvm.java.util.ArrayList()
        for part in ranges:
            tp = self.jvm.org.apache.kafka.common.TopicPartition(part.topic, part.partition)
            given.add(self.kafka.KafkaOffsetRange(tp, part.start, part.end, self.jvm.scala.Option.empty()))
        named = {"minPartitions": least, "maxRecordsPerPartition": most}
        options = self._options({name: str(value) for name, value in named.items() if value is not None})
        nowhere = self._scala.asScala(self.jvm.java.util.ArrayList()).toList()
        calculator = self.kafka.KafkaOffsetRangeCalculator.apply(options)
        found = calculator.getRanges(self._scala.asScala(given).toList(), nowhere)
        return [
            OffsetRange(each.topic(), each.partition(), each.fromOffset(), each.untilOffset())
            for each in self._scala.asJava(found)
        ]

    def offsets(self, json: str) -> Any:
        return self.kafka.JsonUtils.partitionOffsets(json)

    def printed(self, offsets: Any) -> str:
        return str(self.kafka.JsonUtils.partitionOffsets(offsets))

    def rate_limit(
        self, limit: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        arguments = self._gateway.new_array(self.jvm.java.lang.Object, 3)
        arguments[0] = self.jvm.java.lang.Long.valueOf(limit)
        arguments[1], arguments[2] = (self.offsets(dumps(each)) for each in (start, end))
        return offsets_json.parse(self.printed(self._rate_limit(arguments)))

    def found(self, pattern: str) -> list[str]:
        compiled = self.jvm.java.util.regex.Pattern.compile(pattern)
        return [name for name in NAMES if compiled.matcher(name).find()]


def refused_by_the_jvm(call: Callable[[], object]) -> None:
    with pytest.raises(Exception) as caught:
        call()
    assert re.search(JVM_ERROR, f"{type(caught.value)} {caught.value}")


@pytest.fixture(scope="module")
def theirs(spark_with_kafka: Any) -> Theirs:
    return Theirs(spark_with_kafka)


# --- options ----------------------------------------------------------------------------------------------------------

REFUSED: Final = [
    (True, {}),
    (True, A | {"assign": '{"a":[0]}'}),
    (True, {"subscribe": ","}),
    (True, {"subscribePattern": " "}),
    (True, {"subscribePattern": "(a"}),
    (True, {"assign": "a"}),
    (True, {"assign": '{"a":0}'}),
    (True, {"assign": '{"a":["0"]}'}),
    (True, A | {"startingOffsets": "newest"}),
    (True, A | {"startingOffsets": ""}),
    (True, A | {"startingOffsets": '{"a":{"x":1}}'}),
    (True, A | {"startingOffsets": '{"a":{"0":"1"}}'}),
    (True, A | {"startingOffsets": '{"a":[0]}'}),
    (True, A | {"startingTimestamp": "x"}),
    (True, A | {"startingTimestamp": "1.5"}),
    (True, A | {"startingOffsetsByTimestamp": "x"}),
    (True, A | {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "x"}),
    (True, A | {"endingOffsets": "latest"}),
    (True, A | {"endingOffsetsByTimestamp": '{"a":{"0":1}}'}),
    (True, A | {"minPartitions": "0"}),
    (False, A | {"minPartitions": "-1"}),
    (True, A | {"minPartitions": "two"}),
    (True, A | {"minPartitions": "2147483648"}),
    (True, A | {"maxRecordsPerPartition": "0"}),
    (False, A | {"maxRecordsPerPartition": "-5"}),
    (True, A | {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"}),
    (True, A | {"maxOffsetsPerTrigger": "many"}),
    (True, A | {"minOffsetsPerTrigger": " 5"}),
    (True, A | {"maxTriggerDelay": "soon"}),
    (True, A | {"maxTriggerDelay": "1.5m"}),
    (True, A | {"failOnDataLoss": "maybe"}),
    (True, A | {"includeHeaders": "1"}),
    (True, A | {"kafkaConsumer.pollTimeoutMs": "2m"}),
    (True, A | {"kafka.auto.offset.reset": "latest"}),
    (True, A | {"kafka.key.deserializer": "x"}),
    (True, A | {"kafka.value.deserializer": "x"}),
    (True, A | {"kafka.enable.auto.commit": "false"}),
    (True, A | {"kafka.interceptor.classes": ""}),
    (False, A | {"startingOffsets": "latest"}),
    (False, A | {"startingOffsets": '{"a":{"0":-1}}'}),
    (False, A | {"endingOffsets": "earliest"}),
    (False, A | {"endingOffsets": '{"a":{"0":-2}}'}),
    (False, A | {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'}),
    (False, A | {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"1":4}}'}),
    (
        False,
        A | {"startingOffsetsByTimestamp": '{"a":{"0":5}}', "endingOffsetsByTimestamp": '{"a":{"0":4}}'},
    ),
]

TAKEN: Final = [
    (True, A),
    (False, A),
    (True, {"SUBSCRIBE": " a , b,"}),
    (True, {"assign": '{"a":[0,1],"b":[2]}'}),
    (True, {"subscribePattern": "metrics-.*"}),
    (True, A | {"startingOffsets": " EARLIEST ", "endingoffset": None}),
    (True, A | {"startingOffsets": '{"a":{"0":5,"1":-1,"2":-2}}'}),
    (True, A | {"startingTimestamp": "5", "startingOffsets": "nonsense"}),
    (True, A | {"startingOffsetsByTimestamp": '{"a":{"0":5}}', "startingOffsets": "nonsense"}),
    (True, A | {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "Latest"}),
    (True, A | {"minPartitions": "+3", "maxRecordsPerPartition": "10", "maxTriggerDelay": "10MIN"}),
    (True, A | {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "5", "failOnDataLoss": "FALSE"}),
    (False, A | {"maxOffsetsPerTrigger": "5", "kafka.group.id": "g", "groupIdPrefix": "p"}),
    (False, A | {"startingOffsets": '{"a":{"0":-2}}', "endingOffsets": '{"a":{"0":-1}}'}),
    (False, A | {"startingOffsets": '{"a":{"0":9}}', "endingTimestamp": "5"}),
    (False, A | {"startingTimestamp": "9", "endingTimestamp": "5"}),
    (True, A | {"kafka.acks": "all", "kafka.session.timeout.ms": "100", "path": "/x", "topic": "t"}),
]


def test_the_same_options_are_refused(theirs):
    for stream, options in REFUSED:
        refused_by_the_jvm(lambda: theirs.plan(SERVERS | options, stream=stream))  # noqa: B023
        with pytest.raises((OptionError, SourceArgumentError)) as ours:
            read_settings(SERVERS | options, stream=stream)
        assert isinstance(ours.value, ValueError)
    with pytest.raises(Exception, match=re.escape("kafka.bootstrap.servers")):
        theirs.plan(A, stream=True)
    with pytest.raises(OptionError, match=re.escape("kafka.bootstrap.servers")):
        read_settings(A, stream=True)


def test_the_same_options_are_accepted(theirs):
    for stream, options in TAKEN:
        given = SERVERS | {name: value for name, value in options.items() if value is not None}
        theirs.plan(given, stream=stream)
        read_settings(given, stream=stream)


def test_durations_and_sizes(theirs):
    utils = theirs.jvm.org.apache.spark.network.util.JavaUtils
    duration, size = values.duration(minimum=0, default_unit="ms"), values.size(minimum=0, maximum=2**63 - 1)
    for text in ("15m", "10s", "5", " 7s ", "7S", "3min", "2h", "1d", "250ms", "0s"):
        assert duration(text) == utils.timeStringAsMs(text) / 1000
    for text in ("64m", "64MB", "5", "7k", "3pb", "2 ".strip(), "1t", "9gb", "5b"):
        assert size(text) == utils.byteStringAsBytes(text)
    for read, their, text in [
        *((duration, utils.timeStringAsMs, text) for text in ("", "s", "1.5s", "1e3", "5x", "1 s")),
        *((size, utils.byteStringAsBytes, text) for text in ("", "m", "1.5g", "-5m", "5x", "1 m")),
    ]:
        refused_by_the_jvm(lambda: their(text))  # noqa: B023
        with pytest.raises(ValueError):
            read(text)


# --- plans ------------------------------------------------------------------------------------------------------------


def test_ranges_are_split_equally(theirs):
    rng = random.Random(21)
    for _ in range(25):
        starts = [rng.choice([0, rng.randint(0, 10**6), 2**53 + 1]) for _ in range(rng.randint(0, 6))]
        ranges = [
            OffsetRange(
                "t", number, start, start + rng.choice([0, -2, 1, rng.randint(1, 50), rng.randint(1, 10**9)])
            )
            for number, start in enumerate(starts)
        ]
        largest = max((part.end - part.start for part in ranges), default=1)
        least = rng.choice([None, 1, rng.randint(1, 40)])
        most = rng.choice([None, max(1, largest // rng.randint(1, 20) + rng.randint(0, 2))])
        assert split(ranges, least, most) == theirs.split(ranges, least, most), (ranges, least, most)


def test_batches_are_limited_equally(theirs):
    rng = random.Random(22)
    for _ in range(100):
        partitions = [TopicPartition("t", number) for number in range(rng.randint(1, 6))]
        start = {tp: rng.choice([0, rng.randint(0, 10**4), 2**62]) for tp in partitions}
        news = [0, 1, rng.randint(0, 50), rng.randint(0, 10**5), rng.randint(0, 2**60)]
        end = {tp: max(offset + rng.choice([*news, -5]), 0) for tp, offset in start.items()}
        limit = rng.choice([1, rng.randint(1, 100), rng.randint(1, 10**6), 2**63 - 1])
        assert rate_limit(limit, start, end) == theirs.rate_limit(limit, start, end), (limit, start, end)


def test_offsets_are_written_byte_for_byte_equally(theirs):
    rng = random.Random(23)
    for _ in range(60):
        topics = [
            "".join(rng.choices("abcXYZ019_-", k=rng.randint(1, 12))) for _ in range(rng.randint(1, 40))
        ]
        numbers = range(rng.choice([3, 40, 400, 2**31 - 1]))
        offsets = {
            TopicPartition(topic, number): rng.randint(-2, 2**63 - 1)
            for topic in topics
            for number in rng.sample(numbers, rng.randint(1, min(len(numbers), 20)))
        }
        ours = dumps(offsets)
        assert ours == theirs.printed(theirs.offsets(ours))


def test_patterns_match_the_same_names(theirs):
    for pattern in PATTERNS:
        try:
            compiled = java_pattern(pattern)
        except ValueError:
            if pattern not in DIFFER:
                refused_by_the_jvm(lambda: theirs.found(pattern))  # noqa: B023
        else:
            assert [name for name in NAMES if compiled.search(name)] == theirs.found(pattern), pattern
