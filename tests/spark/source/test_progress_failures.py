"""The offsets of a streaming query while brokers fail, answer incorrectly or not at all; without Spark."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.spark.source.driver import broker_lookups
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.testing import KafkaServer
from tests.spark.source.driver_support import TOPIC, Queries, offsets, produce

pytestmark = pytest.mark.kafka(topics={TOPIC: 2})


def test_an_end_that_temporarily_goes_back_is_looked_up_again(
    kafka_server: KafkaServer, query: Queries
) -> None:
    def stale(response: Any) -> Any:
        for part in response.topics[0].partitions:
            part.offset = 0
        return response

    produce(kafka_server, 10)
    progress = query()
    start = progress.next_end(progress.initial_offsets())
    kafka_server.faults.on("ListOffsets", mutate=stale)
    assert progress.next_end(start) == start


def test_no_broker_at_the_address(kafka_server: KafkaServer, query: Queries) -> None:
    kafka_server.stop_node(1)
    with pytest.raises(SourceError, match=r"^\[ASYNCGROUP_BROKERS_UNREACHABLE\]"):
        query(api_timeout=0.3).initial_offsets()


def test_authorization_errors_are_not_retried(kafka_server: KafkaServer, query: Queries) -> None:
    progress = query()
    fault = kafka_server.faults.on("ListOffsets", times=None, error="TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        progress.initial_offsets()
    assert fault.hits == 1


def test_errors_that_are_not_retriable_are_retried_a_few_times(
    kafka_server: KafkaServer, query: Queries
) -> None:
    """As by Spark's source (`fetchOffset.numRetries`): topics being created or deleted temporarily give various errors."""
    progress = query(offset_retries=3)
    fault = kafka_server.faults.on("ListOffsets", times=2, error="UNKNOWN_SERVER_ERROR")
    assert progress.initial_offsets() == offsets(0, 0)
    assert fault.hits == 2


@pytest.mark.kafka(nodes=3, topics={TOPIC: 2})
def test_the_query_continues_after_leader_changes_and_broken_connections(
    kafka_server: KafkaServer, query: Queries
) -> None:
    produce(kafka_server, 5)
    progress = query()
    end = progress.next_end(progress.initial_offsets())
    for fault in (
        {"error": "NOT_LEADER_OR_FOLLOWER"},
        {"disconnect": "before"},
        {"error": "LEADER_NOT_AVAILABLE"},
    ):
        # more often than an error that is not retriable would be retried
        kafka_server.faults.on("ListOffsets", times=8, **fault)
        assert progress.next_end(end) == end
    kafka_server.stop_node(kafka_server.leader(TOPIC, 0))
    produce(kafka_server, 2)
    assert progress.next_end(end) == offsets(7, 0)


@pytest.mark.kafka(nodes=3, topics={TOPIC: 2, "other": 1})
def test_other_partitions_do_not_wait_for_one_without_a_leader(
    kafka_server: KafkaServer,
    query: Queries,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(response: Any) -> Any:
        for part in response.topics[0].partitions:
            if part.partition_index == 0:
                part.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        return response

    monkeypatch.setattr(broker_lookups, "UNAVAILABLE_TIMEOUT", 0.2)
    progress = query()
    end = progress.next_end(progress.initial_offsets())
    fault = kafka_server.faults.on("ListOffsets", topic=TOPIC, times=None, mutate=silent)
    produce(kafka_server, 2)
    produce(kafka_server, 3, partition=1)
    with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
        end = progress.next_end(end)
    assert end == offsets(0, 3)
    assert "unavailable partitions orders-0" in caplog.text
    fault.cancel()
    assert progress.next_end(end) == offsets(2, 3)


def test_a_stopped_query_raises_closed_error(kafka_server: KafkaServer, query: Queries) -> None:
    progress = query()
    progress.initial_offsets()
    progress.stop()
    progress.stop()
    with pytest.raises(Exception, match="stopped"):
        progress.next_end(offsets(0, 0))
