"""The errors of the source: codes and SQL states equal to Spark's, complete messages, pickling."""

from __future__ import annotations

import ast
import logging
import pickle
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source import errors
from asyncgroup.spark.source.errors import (
    CONDITIONS,
    DataLossError,
    SourceArgumentError,
    SourceError,
    report_data_loss,
)

SOURCE = Path(errors.__file__).parent
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
MANY = [TopicPartition("a", number) for number in range(1000)]

LOSS = "KAFKA_DATA_LOSS."
MISMATCHED = "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_"
AVAILABLE_NOW = "_WITH_TRIGGER_AVAILABLENOW"

ONE_OF_EACH = [
    DataLossError(LOSS + "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", topicPartition=A0, startOffset=5),
    DataLossError(
        LOSS + "COULD_NOT_READ_OFFSET_RANGE",
        topicPartition=A0,
        startOffset=5,
        endOffset=9,
        reason="it ends at 7.",
    ),
    DataLossError(LOSS + "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", partitions=[A1, A0]),
    DataLossError(LOSS + "PARTITIONS_DELETED", partitions=[A1, A0]),
    DataLossError(LOSS + "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT", partitions=[A1, A0], groupId="g"),
    DataLossError(LOSS + "PARTITION_OFFSET_CHANGED", topicPartition=A0, prevOffset=9, newOffset=5),
    SourceArgumentError(
        "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED", specifiedPartitions=[A0], assignedPartitions=[A0, A1]
    ),
    SourceArgumentError(
        "KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED", unmatchedTopics=["b", "c"], assignedTopics={"a"}
    ),
    SourceArgumentError(
        "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
        position="end",
        specifiedPartitions=[A0],
        assignedPartitions=MANY,
    ),
    SourceArgumentError(
        MISMATCHED + "START_OFFSET_AND_END_OFFSET", tpsForStartOffset=[A0], tpsForEndOffset=[A1]
    ),
    SourceArgumentError(
        "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        options="startingOffsets and endingOffsets",
        offsetType="timestamp",
        startOffset=9,
        endOffset=5,
        topic="a",
        partition=0,
    ),
    SourceError(
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET", startOffset=9, endOffset=5, topic="a", partition=0
    ),
    SourceError(MISMATCHED + "END_OFFSET_AND_PREFETCHED", tpsForPrefetched=[], tpsForEndOffset=[A1]),
    SourceError(
        "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
        prefetchedOffset={A0: 5},
        endOffset={A0: 6},
    ),
    SourceError(
        "LOST_TOPIC_PARTITIONS_IN_END_OFFSET" + AVAILABLE_NOW,
        tpsForLatestOffset=[A0],
        tpsForEndOffset=[A0, A1],
    ),
    SourceError(
        "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST" + AVAILABLE_NOW,
        latestOffset={A0: 5},
        endOffset={A0: 6},
    ),
    SourceError("KAFKA_MALFORMED_RECORD_TIMESTAMP", topicPartition=A0, offset=5, timestamp=2**62),
    SourceError(
        "ASYNCGROUP_NO_PROGRESS",
        topicPartition=A0,
        startOffset=5,
        endOffset=9,
        seconds=120.0,
        reason=TimeoutError(),
    ),
    SourceError("ASYNCGROUP_BROKERS_UNREACHABLE", what="Finding offsets", servers="x:1", reason="refused"),
    SourceError("ASYNCGROUP_TOPICS_NOT_FOUND", topics={"b", "a"}),
    SourceError("ASYNCGROUP_GROUP_IN_USE", groupId="g", members=["m2", "m1"]),
    SourceError("ASYNCGROUP_NO_COMMITTED_OFFSET", groupId="g", partitions=[A1]),
    DataLossError("ASYNCGROUP_GROUP_LACKS_OFFSETS", groupId="g", offsets={A0: 5}),
    SourceArgumentError("ASYNCGROUP_NO_OFFSET_AT_TIMESTAMP", timestamps={A0: 5}),
    SourceError("ASYNCGROUP_COMMIT_FAILED", groupId="g", reason="no coordinator"),
]

SPARK_CODES = {
    "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO": "22000",
    "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE": "22000",
    "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS": "22000",
    "KAFKA_DATA_LOSS.PARTITIONS_DELETED": "22000",
    "KAFKA_DATA_LOSS.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT": "22000",
    "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED": "22000",
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
"""SQL state of the conditions that we have in `kafka-error-conditions.json` of Spark 4.2.0 and SPARK-58774."""


def test_codes_are_those_of_spark_or_begin_with_asyncgroup():
    ours = {code: condition for code, condition in CONDITIONS.items() if code.startswith("ASYNCGROUP_")}
    assert {code: CONDITIONS[code].sql_state for code in CONDITIONS.keys() - ours.keys()} == SPARK_CODES


def raised_in(path: Path) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield the class, the code and the parameters of each error that a file of the source creates."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        texts = {
            (target.id, node.lineno): node.value.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id not in ("SourceError", "SourceArgumentError", "DataLossError"):
                continue
            (code,) = node.args
            if isinstance(code, ast.Name):
                line = max(at for name, at in texts if name == code.id and at < node.lineno)
                found = texts[code.id, line]
            else:
                assert isinstance(code, ast.Constant)
                found = code.value
            yield node.func.id, found, frozenset(str(keyword.arg) for keyword in node.keywords)


def test_every_condition_occurs_with_its_parameters_and_is_tested_here():
    occurring = {each for path in SOURCE.rglob("*.py") for each in raised_in(path)}
    assert occurring == {
        (type(error).__name__, error.code, frozenset(error.parameters)) for error in ONE_OF_EACH
    }
    assert {error.code for error in ONE_OF_EACH} == CONDITIONS.keys()


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
    assert isinstance(ONE_OF_EACH[0], DataLossError)
    assert {error.code for error in ONE_OF_EACH if isinstance(error, DataLossError)} == {
        *(code for code in CONDITIONS if code.startswith("KAFKA_DATA_LOSS.")),
        "ASYNCGROUP_GROUP_LACKS_OFFSETS",
    }
    assert issubclass(SourceArgumentError, ValueError)


def test_long_lists_are_shortened():
    text = str(DataLossError(LOSS + "PARTITIONS_DELETED", partitions=MANY))
    assert "a-0, a-1, a-2" in text
    assert "a-19, and 980 more, which" in text
    assert len(text) < 600


def test_braces_in_a_reason_are_kept():
    text = str(SourceError("ASYNCGROUP_COMMIT_FAILED", groupId="g{0}", reason="{reason} {nonsense"))
    assert "{reason} {nonsense" in text
    assert "g{0}" in text


def test_data_loss_is_an_error_or_a_warning(caplog):
    error = DataLossError(LOSS + "PARTITIONS_DELETED", partitions=[A0])
    with pytest.raises(DataLossError) as caught:
        report_data_loss(error, fail=True)
    assert caught.value is error
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        report_data_loss(error, fail=False)
    assert [record.getMessage() for record in caplog.records] == [str(error)]
