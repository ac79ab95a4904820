"""Refused options: names, values, contradictions; and options that only cause a warning."""

from __future__ import annotations

import pytest

from asyncgroup.spark.source.errors import OptionError
from asyncgroup.spark.source.options.parser import read_settings
from tests.spark.source.reading_options import SERVERS, read, refused

# --- refused options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        *(
            "startingOffset",
            "startingoffsetts",
            "maxOffsetPerTrigger",
            "minOffsetPerTrigger",
            "topics",
            "subscrib",
        ),
        *(
            "failOnDataloss ",
            "maxRecordPerPartition",
            "kafkaConsumer.pollTimeout",
            "group.id",
            "bootstrap.servers",
        ),
        *("includeHeader", "nonsense", "maxBytesPerTriger", "x.y.z", ""),
    ],
)
def test_unknown_names(stream, name):
    with pytest.raises(OptionError, match="there is no such option") as caught:
        read_settings(SERVERS | {"subscribe": "a", name: "5"}, stream=stream)
    assert caught.value.key == name
    assert str(caught.value).startswith(f"{name}='5' is not allowed")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
    ],
)
def test_unknown_names_with_suggestions(name, suggestion):
    with pytest.raises(OptionError, match=f"did you mean {suggestion}"):
        read_settings(SERVERS | {"subscribe": "a", name: "5"}, stream=True)


def test_names_of_spark_itself_and_of_sinks_are_ignored():
    others = {
        "path": "/x",
        "paths": "[]",
        "topic": "out",
        "transactional.id.prefix": "p",
        "checkpointLocation": "/c",
        "queryName": "q",
    }
    table = {"provider": "asyncgroup", "owner": "me", "comment": "", "option.subscribe": "a"}
    assert read_settings(SERVERS | {"subscribe": "a"} | others | table, stream=True) == read()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": None}, ["subscribe, subscribePattern, assign", "none"]),
        ({"subscribePattern": "a"}, ["subscribe and subscribePattern are set"]),
        ({"subscribe": " , "}, ["subscribe", "topic names"]),
        ({"subscribe": "a b"}, ["'a b' is not a valid topic name"]),
        ({"subscribe": None, "subscribePattern": "  "}, ["subscribePattern", "empty"]),
        ({"subscribe": None, "subscribePattern": "(a"}, ["subscribePattern='(a'"]),
        ({"subscribe": None, "assign": "a"}, ["assign='a'", '{"topicA":[0,1]']),
        ({"subscribe": None, "assign": "{}"}, ["assign", "names no partitions"]),
        ({"subscribe": None, "assign": '{"a":[-1]}'}, ["assign", "-1"]),
        ({"subscribe": None, "assign": '{"a":{"0":1}}'}, ["assign", "list of partitions"]),
    ],
)
def test_values_that_cannot_be_parsed(options, words):
    text = refused(**options)
    assert all(word in text for word in words), text


NUMBERS = (
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "tasks",
    "kafkaConsumer.pollTimeoutMs",
)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["0", "-1", "", "five", "1.5", "1e3", " 5", "5 ", "٣", "9" * 40])
def test_invalid_and_too_small_numbers(name, value):
    with pytest.raises(OptionError) as caught:
        read_settings(SERVERS | {"subscribe": "a", name: value}, stream=True)
    assert (caught.value.key, caught.value.value) == (name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "1") for name in NUMBERS),
        ("minPartitions", 2**31 - 1),
        ("maxOffsetsPerTrigger", 2**63 - 1),
        ("minOffsetsPerTrigger", "0"),
        ("fetchOffset.numRetries", "0"),
        ("maxTriggerDelay", "0s"),
        ("maxBytesPerTrigger", "1"),
        ("fetchBytes", 2**31 - 1),
        ("startingTimestamp", "0"),
        ("startingOffsets", '{"a":{"0":-2,"1":-1,"2":0}}'),
    ],
)
def test_minimum_and_maximum_values_are_accepted(name, value):
    read_settings(SERVERS | {"subscribe": "a", name: value}, stream=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("minPartitions", 2**31),
        ("maxRecordsPerPartition", 2**63),
        ("minOffsetsPerTrigger", -1),
        ("fetchOffset.numRetries", -1),
        ("fetchOffset.retryIntervalMs", -1),
        ("maxTriggerDelay", "-5s"),
        ("maxTriggerDelay", "1.5s"),
        ("maxTriggerDelay", "soon"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "1.5g"),
        ("fetchBytes", "3g"),
        ("fetchBytes", "-1"),
        ("failOnDataLoss", "no"),
        ("includeHeaders", ""),
        ("startingTimestamp", "-1"),
        ("startingTimestamp", "yesterday"),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("startingOffsetsByTimestamp", '{"a":{"0":-5}}'),
        ("startingOffsetsByTimestamp", "{}"),
        ("startingOffsets", "newest"),
        ("startingOffsets", ""),
        ("startingOffsets", "{}"),
        ("startingOffsets", '{"a":{}}'),
        ("startingOffsets", '{"a":{"0":-3}}'),
        ("startingOffsets", '{"a":{"0":1,"0":2}}'),
        ("startingOffsets", '{"a":{"0":"1"}}'),
        ("startingOffsets", '{"other":{"0":1}}'),
    ],
)
def test_other_values(name, value):
    with pytest.raises(OptionError) as caught:
        read_settings(SERVERS | {"subscribe": "a", name: value}, stream=True)
    assert caught.value.key == name
    assert str(value) in str(caught.value)


@pytest.mark.parametrize("name", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_offsets_of_topics_that_do_not_match_the_pattern(name):
    wrong, right = '{"old-orders":{"0":1},"bills":{"0":1}}', '{"old-orders":{"0":1}}'
    pattern = {"subscribe": None, "subscribePattern": "orders"}
    assert "bills is not in subscribePattern" in refused(**pattern, **{name: wrong})
    read(**pattern, **{name: right})


def test_offsets_of_partitions_that_are_not_assigned():
    text = refused(subscribe=None, assign='{"a":[0]}', startingOffsets='{"a":{"0":1,"1":1}}')
    assert "a-1 is not in assign" in text


def test_limits_that_contradict_each_other():
    text = refused(minOffsetsPerTrigger="11", maxOffsetsPerTrigger="10")
    assert text == "minOffsetsPerTrigger=11 is not allowed: at most maxOffsetsPerTrigger=10"
    assert read(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="10").min_offsets_per_trigger == 10


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_ending_offsets_are_refused_in_streams(name):
    assert "streaming" in refused(**{name: "latest"})


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"a":{"0":-1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": "group"},
        {"endingOffsets": '{"a":{"0":-2}}'},
    ],
)
def test_batch_queries_start_before_their_end(options):
    assert refused(False, **options).startswith(next(iter(options)))


def test_limits_of_triggers_cause_a_warning_in_batch_queries():
    assert read(False, maxOffsetsPerTrigger="5", maxTriggerDelay="1m", commitInterval="5s").warnings == (
        "option maxOffsetsPerTrigger is ignored in batch queries",
        "option maxTriggerDelay is ignored in batch queries",
        "option commitInterval is ignored in batch queries",
    )


def test_long_values_are_shortened():
    text = refused(startingOffsets='{"a":{' + '"0":1,' * 10_000)
    assert len(text) < 700
    assert text.startswith("startingOffsets=")


@pytest.mark.parametrize("options", [None, [("subscribe", "a")], "subscribe", {5: "a"}])
def test_options_that_are_not_a_mapping(options):
    with pytest.raises(OptionError, match="options"):
        read_settings(options, stream=True)
