"""Settings from options, without Spark and brokers. Refused options: `test_refused_options`."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver import planner
from asyncgroup.spark.source.driver.planner import split_into_tasks
from asyncgroup.spark.source.errors import OptionError, SourceArgumentError
from asyncgroup.spark.source.options.parser import read_include_headers, read_settings
from asyncgroup.spark.source.options.settings import (
    Assign,
    AtTimestamp,
    ByTimestamp,
    Earliest,
    FromGroup,
    Latest,
    Specific,
    Subscribe,
    SubscribePattern,
)
from tests.spark.source.reading_options import SERVERS, read, refused

GROUP = {"kafka.group.id": "orders"}
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


# --- values -----------------------------------------------------------------------------------------------------------


def test_defaults_equal_those_of_sparks_source():
    settings = read()
    assert settings.bootstrap_servers == "one:9092,two:9092"
    assert settings.strategy == Subscribe(("a",))
    assert (settings.starting, settings.ending) == (Latest(), Latest())
    assert (settings.fail_on_data_loss, settings.include_headers) == (True, False)
    assert settings.max_offsets_per_trigger is settings.min_offsets_per_trigger is None
    assert settings.min_partitions is settings.max_records_per_partition is None
    assert (settings.max_trigger_delay, settings.poll_timeout) == (900.0, 120.0)
    assert (settings.offset_retries, settings.offset_retry_interval) == (3, 1.0)
    assert settings.config.isolation_level == "read_uncommitted"
    assert read(False).starting == Earliest()


def test_defaults_of_additional_options():
    settings = read()
    assert settings.group_id is settings.tasks is settings.max_bytes_per_trigger is None
    assert (settings.commit_offsets, settings.commit_failure, settings.commit_interval) == (True, "warn", 60)
    assert settings.fetch_bytes == 4 * 1024 * 1024


def test_small_partitions_are_combined_on_request(monkeypatch):
    monkeypatch.setattr(planner, "usable_cores", lambda: 3)
    settings = read(tasks=" Auto")
    assert settings.tasks == "auto"
    ranges = [OffsetRange("a", number, 0, 5) for number in range(100)]
    assert [len(task) for task in split_into_tasks(ranges, settings)] == [34, 33, 33]
    assert [len(task) for task in split_into_tasks(ranges, read())] == [1] * 100


def test_all_options_at_once():
    settings = read(
        startingOffsets="earliest",
        failOnDataLoss="FALSE",
        includeHeaders="True",
        maxOffsetsPerTrigger="1000",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="30s",
        maxBytesPerTrigger="64m",
        minPartitions="8",
        maxRecordsPerPartition="+500",
        tasks="4",
        kafka_group_id="orders",
        commitOffsets="off",
        commitFailure="Fail",
        commitInterval="5s",
        fetchBytes="512k",
        groupIdPrefix="ours",
        partition_metadata_cache_ttl_ms="-1",
    )
    assert settings.starting == Earliest()
    assert (settings.fail_on_data_loss, settings.include_headers) == (False, True)
    assert (settings.max_offsets_per_trigger, settings.min_offsets_per_trigger) == (1000, 10)
    assert (settings.max_trigger_delay, settings.max_bytes_per_trigger) == (30.0, 64 * 1024**2)
    assert (settings.min_partitions, settings.max_records_per_partition, settings.tasks) == (8, 500, 4)
    assert (settings.group_id, settings.commit_offsets) == ("orders", False)
    assert (settings.commit_failure, settings.commit_interval) == ("fail", 5.0)
    assert settings.fetch_bytes == 512 * 1024


def test_names_with_dots():
    settings = read_settings(
        SERVERS
        | {
            "subscribe": "a",
            "kafkaConsumer.pollTimeoutMs": "512",
            "fetchOffset.numRetries": "0",
            "fetchOffset.retryIntervalMs": "250",
        },
        stream=True,
    )
    assert (settings.poll_timeout, settings.offset_retries, settings.offset_retry_interval) == (
        0.512,
        0,
        0.25,
    )


def test_names_are_case_insensitive_and_the_later_one_wins():
    options = {
        "KAFKA.bootstrap.SERVERS": "x:1",
        "SUBSCRIBE": "a",
        "subscribe": "b",
        "StartingOffsets": "EarliesT",
    }
    settings = read_settings(options, stream=True)
    assert (settings.bootstrap_servers, settings.strategy) == ("x:1", Subscribe(("b",)))
    assert settings.starting == Earliest()


def test_values_that_are_not_strings_and_options_that_are_none():
    options: dict[str, Any] = {"includeHeaders": True, "minPartitions": 3, "maxTriggerDelay": None}
    settings = read(**options)
    assert (settings.include_headers, settings.min_partitions, settings.max_trigger_delay) == (True, 3, 900.0)


@pytest.mark.parametrize(
    ("option", "strategy"),
    [
        ({"subscribe": " a ,b,, a"}, Subscribe(("a", "b"))),
        ({"subscribePattern": " or.* "}, SubscribePattern("or.*")),
        ({"assign": '{"a":[1,0,1],"b":[]}'}, Assign((A0, A1))),
    ],
)
def test_strategies(option, strategy):
    assert read(**({"subscribe": None} | option)).strategy == strategy


@pytest.mark.parametrize("stream", [True, False])
def test_settings_can_be_pickled(stream):
    settings = read(
        stream, startingOffsets='{"a":{"0":5,"1":-2}}', kafka_group_id="g", kafka_client_rack="r1"
    )
    again = pickle.loads(pickle.dumps(settings))
    assert again == settings
    assert again.config.rack_id == "r1"


def test_reading_include_headers_alone():
    assert read_include_headers({"INCLUDEHEADERS": "true"}) is True
    assert read_include_headers({"subscribe": "a"}) is False
    with pytest.raises(OptionError, match=r"includeHeaders='1'.*true or false"):
        read_include_headers({"includeHeaders": "1"})


# --- where to start and end -------------------------------------------------------------------------------------------


def test_precedence_of_the_starting_options():
    options = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"a":{"0":7}}'}
    assert read(**options).starting == ByTimestamp({A0: 7}, "error")
    assert read(**options, startingTimestamp=" 9 ").starting == AtTimestamp(9, "error")
    late = read(**options, startingOffsetsByTimestampStrategy="LATEST")
    assert late.starting == ByTimestamp({A0: 7}, "latest")


def test_precedence_of_the_ending_options():
    options = {"endingOffsets": '{"a":{"0":9}}', "endingOffsetsByTimestamp": '{"a":{"0":7}}'}
    assert read(False, **options).ending == ByTimestamp({A0: 7}, "latest")
    assert read(False, **options, endingTimestamp="9").ending == AtTimestamp(9, "latest")
    assert read(False, endingOffsets='{"a":{"0":9,"1":-1}}').ending == Specific({A0: 9, A1: -1})


def test_offsets_of_the_group():
    assert read(startingOffsets=" Group", **GROUP).starting == FromGroup("latest")
    assert read(False, startingOffsets="group", **GROUP).starting == FromGroup("earliest")
    for fallback in ("earliest", "latest", "error"):
        options = {"startingOffsets": "group", "groupFallback": fallback.upper()}
        assert read(**options, **GROUP).starting == FromGroup(fallback)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "group"}, ["startingOffsets", "kafka.group.id"]),
        ({"groupFallback": "latest", **GROUP}, ["groupFallback", "startingOffsets=group"]),
        (
            {"startingOffsets": "group", "groupFallback": "none", **GROUP},
            ["groupFallback", "earliest or latest"],
        ),
        ({"commitOffsets": "auto"}, ["commitOffsets", "kafka.group.id"]),
        ({"commitOffsets": "true", **GROUP}, ["commitOffsets", "auto or off"]),
        ({"commitInterval": "60", **GROUP}, ["commitInterval", "10s"]),
        ({"commitInterval": "0s", **GROUP}, ["commitInterval", "at least 0.001s"]),
        ({"commitFailure": "ignore", **GROUP}, ["commitFailure", "warn or fail"]),
        ({"kafka.group.id": " "}, ["kafka.group.id", "not empty"]),
    ],
)
def test_invalid_group_options_are_refused(options, words):
    text = refused(**options)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("start", "end", "code"),
    [
        ('{"a":{"0":5}}', '{"a":{"0":4}}', "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"),
        ('{"a":{"0":1}}', '{"a":{"0":0}}', "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"),
        (
            '{"a":{"0":5}}',
            '{"a":{"1":9}}',
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
        ),
    ],
)
@pytest.mark.parametrize("names", ["{}Offsets", "{}OffsetsByTimestamp"])
def test_an_end_before_its_start(start, end, code, names):
    with pytest.raises(SourceArgumentError) as caught:
        read(False, **{names.format("starting"): start, names.format("ending"): end})
    assert isinstance(caught.value, AsyncGroupError)
    assert str(caught.value).startswith(f"[{code}] ")
    assert names.format("starting") in str(caught.value) or "by timestamp" in str(caught.value)
    assert names.format("ending") in str(caught.value) or "by timestamp" in str(caught.value)


def test_offsets_of_whole_topics():
    """SPARK-58774."""
    settings = read(subscribe="a,b", startingOffsets='{"b":"Earliest","a":{"0":5,"1":-1}}')
    assert settings.starting == Specific({A0: 5, A1: -1}, {"b": -2})
    b0, b1 = TopicPartition("b", 0), TopicPartition("b", 1)
    assert settings.starting.resolve([A0, A1, b0, b1]) == {A0: 5, A1: -1, b0: -2, b1: -2}
    assert settings.starting.resolve([]) == {A0: 5, A1: -1}
    assert read(startingOffsets='{"a":"latest"}').starting == Specific({}, {"a": -1})
    ends = read(False, startingOffsets='{"a":"earliest"}', endingOffsets='{"a":{"0":5}}')
    assert ends.ending == Specific({A0: 5})
    assert pickle.loads(pickle.dumps(ends)) == ends


@pytest.mark.parametrize(
    ("stream", "options"),
    [
        (True, {"startingOffsets": '{"a":"newest"}'}),
        (True, {"startingOffsets": '{"a":""}'}),
        (True, {"startingOffsets": '{"b":"latest"}'}),
        (True, {"startingOffsets": '{"a":"latest","a":{"0":1}}'}),
        (True, {"startingOffsetsByTimestamp": '{"a":"latest"}'}),
        (True, {"subscribe": None, "assign": '{"a":[0]}', "startingOffsets": '{"b":"latest"}'}),
        (True, {"subscribe": None, "subscribePattern": "a", "startingOffsets": '{"b":"latest"}'}),
        (False, {"startingOffsets": '{"a":"latest"}'}),
        (False, {"endingOffsets": '{"a":"earliest"}'}),
    ],
)
def test_offsets_of_whole_topics_that_are_not_read(stream, options):
    name, value = list(options.items())[-1]
    assert refused(stream, **options).startswith(f"{name}={value!r} is not allowed")


def test_unknown_ends_are_not_compared():
    settings = read(False, startingOffsets='{"a":{"0":5}}', endingOffsets='{"a":{"0":-1}}')
    assert (settings.starting, settings.ending) == (Specific({A0: 5}), Specific({A0: -1}))
    read(False, startingOffsets='{"a":{"0":-2}}', endingOffsets='{"a":{"0":0}}')
    read(False, startingTimestamp="9", endingTimestamp="5")


def test_an_end_equal_to_the_start_is_an_empty_range():
    read(False, startingOffsets='{"a":{"0":5}}', endingOffsets='{"a":{"0":5}}')
    settings = read(
        False, startingOffsetsByTimestamp='{"a":{"0":0}}', endingOffsetsByTimestamp='{"a":{"0":0}}'
    )
    assert settings.starting == ByTimestamp({A0: 0}, "error")
