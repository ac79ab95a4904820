"""The errors of the source: codes and SQL states equal to Spark's, complete messages, pickling."""

from __future__ import annotations

import inspect
import logging
import pickle
import string

import pytest

from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source import errors
from asyncgroup.spark.source.conditions import CONDITIONS

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
MANY = [TopicPartition("a", number) for number in range(1000)]

ONE_OF_EACH = [
    errors.added_partition_does_not_start_from_zero(A0, 5),
    errors.could_not_read_offset_range(A0, 5, 9, "it ends at 7."),
    errors.initial_offset_not_found([A1, A0]),
    errors.partitions_deleted([A1, A0]),
    errors.partitions_deleted([A1, A0], "g"),
    errors.partition_offset_changed(A0, 9, 5),
    errors.start_offset_reset(A0, 5, 9),
    errors.start_offsets_do_not_match_assigned([A0], [A0, A1]),
    errors.topic_offsets_do_not_match_assigned(["b", "c"], ["a", "a"]),
    errors.timestamps_do_not_match_assigned("end", [A0], MANY),
    errors.mismatched_start_and_end([A0], [A1]),
    errors.unresolved_start_greater_than_end(A0, 9, 5, kind="timestamp"),
    errors.resolved_start_greater_than_end(A0, 9, 5),
    errors.mismatched_partitions_with_prefetched([], [A1]),
    errors.end_offset_beyond_prefetched({A0: 5}, {A0: 6}),
    errors.lost_partitions_with_available_now([A0], [A0, A1]),
    errors.end_offset_beyond_latest({A0: 5}, {A0: 6}),
    errors.malformed_timestamp(A0, 5, 2**62),
    errors.no_progress(A0, 5, 9, 120.0, TimeoutError()),
    errors.brokers_unreachable("Looking up offsets", "x:1", "refused"),
    errors.topics_not_found(["b", "a"]),
    errors.group_in_use("g", ["m2", "m1"]),
    errors.no_committed_offset("g", [A1]),
    errors.group_lacks_offsets("g", {A0: 5}),
    errors.no_offset_at_timestamp({A0: 5}),
    errors.commit_failed("g", "no coordinator"),
]

SPARK_CODES = {
    "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO": "22000",
    "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE": "22000",
    "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS": "22000",
    "KAFKA_DATA_LOSS.PARTITIONS_DELETED": "22000",
    "KAFKA_DATA_LOSS.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT": "22000",
    "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED": "22000",
    "KAFKA_DATA_LOSS.START_OFFSET_RESET": "22000",
    "KAFKA_MALFORMED_RECORD_TIMESTAMP": "22008",
    "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED": None,
    "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED": None,
    "KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED": None,
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET": None,
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED": None,
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED": None,
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW": None,
    "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW": None,
    "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET": None,
    "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET": None,
}
"""SQL state of each condition in `kafka-error-conditions.json` of Spark 4.2.0 and SPARK-58774, except the sink's."""


def test_codes_are_those_of_spark_or_begin_with_asyncgroup():
    ours = {code: condition for code, condition in CONDITIONS.items() if code.startswith("ASYNCGROUP_")}
    assert {code: CONDITIONS[code].sql_state for code in CONDITIONS.keys() - ours.keys()} == SPARK_CODES


def test_every_condition_has_an_error_and_every_error_is_tested_here():
    assert {error.code for error in ONE_OF_EACH} == CONDITIONS.keys()
    functions = {
        name
        for name, value in vars(errors).items()
        if inspect.isfunction(value) and value.__module__ == errors.__name__
    }
    assert {name for name in functions if not name.startswith("_")} <= set(errors.__all__)


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: error.code)
def test_a_text_begins_with_the_code_and_contains_the_parameters(error):
    text = str(error)
    assert text.startswith(f"[{error.code}] ")
    assert text.endswith(f"SQLSTATE: {error.sql_state}" if error.sql_state else ".")
    assert ".." not in text.replace("…", "")
    assert "\n" not in text
    placeholders = {name for _, name, _, _ in string.Formatter().parse(CONDITIONS[error.code].text) if name}
    assert placeholders == error.parameters.keys()
    assert all(value and value in text for value in error.parameters.values())


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: error.code)
def test_errors_survive_pickling(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.code, copy.parameters) == (str(error), error.code, error.parameters)
    assert isinstance(copy, AsyncGroupError)


def test_error_classes():
    assert isinstance(ONE_OF_EACH[0], errors.DataLossError)
    assert {error.code for error in ONE_OF_EACH if isinstance(error, errors.DataLossError)} == {
        *(code for code in CONDITIONS if code.startswith("KAFKA_DATA_LOSS.")),
        "ASYNCGROUP_GROUP_LACKS_OFFSETS",
    }
    assert isinstance(errors.mismatched_start_and_end([A0], [A1]), ValueError)


def test_long_lists_are_shortened():
    text = str(errors.partitions_deleted(MANY))
    assert "a-0, a-1, a-2" in text
    assert "a-19, and 980 more, which" in text
    assert len(text) < 600


def test_braces_in_a_reason_are_kept():
    text = str(errors.commit_failed("g{0}", "{reason} {nonsense"))
    assert "{reason} {nonsense" in text
    assert "g{0}" in text


def test_data_loss_is_an_error_or_a_warning(caplog):
    error = errors.partitions_deleted([A0])
    with pytest.raises(errors.DataLossError) as caught:
        errors.report_data_loss(error, fail=True)
    assert caught.value is error
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        errors.report_data_loss(error, fail=False)
    assert [record.getMessage() for record in caplog.records] == [str(error)]
