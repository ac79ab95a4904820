"""The producer beside Java's: the same Produce requests, field by field, after the same responses of the brokers.

Both write the same records to the embedded broker. What differs on purpose is left out:

- Java sends up to five batches before the first one is acknowledged; a broker without state accepts any of them first.
- After INVALID_PRODUCER_EPOCH Java fails the batch of a producer without a transactional id, and after UNKNOWN_PRODUCER_ID it
  sends it again under the same epoch. Such a batch is not in the log, so here it is sent again under the next epoch.
- While the fate of an expired batch is unknown, Java waits with the next one. Here it is sent behind it, with the sequence
  numbers that follow: the broker accepts it only if it has the one before.
- Java cuts a batch that is too large into parts of `batch.size` bytes, here it is cut into halves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from asyncgroup import Producer, ProducerConfig
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.records import decode_batch
from tests.interop.java_tools import JavaTools

pytestmark = pytest.mark.full

TOPIC: Final = "orders"
TIME: Final = 1_700_000_000_000
SETTINGS: Final = {"linger.ms": "200", "request.timeout.ms": "1000", "delivery.timeout.ms": "20000"}


class Sent(NamedTuple):
    """A batch of a Produce request."""

    version: int
    acks: int
    timeout_ms: int
    transactional_id: str | None
    producer: int
    """0 if it has a producer id, else -1."""
    epoch: int
    sequence: int
    count: int
    attributes: int
    times: tuple[int, int]
    records: tuple[tuple[Any, ...], ...]


class Story(NamedTuple):
    """What is written and what the broker does."""

    flushes: str
    """The numbers of records to write before each flush."""
    settings: dict[str, str] = {}
    disturb: Callable[[EmbeddedCluster], object] = lambda _: None


def lost_response(cluster: EmbeddedCluster) -> None:
    cluster.faults.on("Produce", nth=2).disconnect("after")


def refused(code: ErrorCode, *, nth: int = 2, times: int = 1) -> Callable[[EmbeddedCluster], object]:
    return lambda cluster: cluster.faults.on("Produce", nth=nth, times=times).error(code)


def refused_late(cluster: EmbeddedCluster) -> None:
    """Refuse the third request when the ones after it are also in flight."""
    cluster.faults.on("Produce", nth=3).delay(0.5).error(ErrorCode.NOT_ENOUGH_REPLICAS)


ONE_BY_ONE: Final = {"batch.size": "1", "linger.ms": "0"}

STORIES: Final = {
    "nothing happens": Story("2,3,1"),
    "acks of the leader": Story("2,1", {"acks": "1", "enable.idempotence": "false"}),
    "no acks": Story("1,2", {"acks": "0", "enable.idempotence": "false"}),
    "gzip": Story("3,1", {"compression.type": "gzip"}),
    "lz4": Story("3,1", {"compression.type": "lz4"}),
    "zstd": Story("3,1", {"compression.type": "zstd"}),
    "snappy": Story("3,1", {"compression.type": "snappy"}),
    "a response is lost": Story("2,2,2", {}, lost_response),
    **{
        f"{code.name} once": Story("2,2,2", {}, refused(code))
        for code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.INVALID_REQUIRED_ACKS,
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            ErrorCode.POLICY_VIOLATION,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        )
    },
    "five in flight, the second one refused": Story("1,5", ONE_BY_ONE, refused_late),
}


async def written_by_java(cluster: EmbeddedCluster, java: JavaTools, story: Story) -> list[str]:
    settings = {
        "bootstrap.servers": ",".join(cluster.bootstrap_servers.split(",")),
        **SETTINGS,
        **story.settings,
    }
    program = Path(__file__).with_name("Produce.java")
    output = await java(
        program, TOPIC, *(f"{name}={value}" for name, value in settings.items()), story.flushes
    )
    assert output.code == 0, output.text
    return [line for line in output.lines if line.isdigit() or line == "-1" or line.endswith("Exception")]


async def written_by_us(cluster: EmbeddedCluster, story: Story) -> list[str]:
    settings = {**SETTINGS, **story.settings}
    one_by_one = settings.pop("batch.size", None) == "1"
    config, _ = ProducerConfig.from_properties(settings, batch_records=1 if one_by_one else None)
    results: list[str] = []
    number = 0
    async with Producer(cluster.bootstrap_servers, config) as producer:
        for count in map(int, story.flushes.split(",")):
            sent = []
            for _ in range(count):
                value = bytes([ord("a") + number % 26]) * 100
                headers = [("name", b"content")]
                sent.append(
                    producer.send_nowait(
                        TOPIC, value, key=b"key", partition=0, timestamp=TIME, headers=headers
                    )
                )
                number += 1
            await producer.flush()
            for future in sent:
                try:
                    results.append(str((await future).offset))
                except AsyncGroupError:
                    results.append("Exception")
    return results


def requests_of(cluster: EmbeddedCluster) -> list[Sent]:
    found = []
    for exchange in cluster.history.of("Produce"):
        request = exchange.request
        for topic in request.topic_data:
            for partition in topic.partition_data:
                for view in iter_batches(partition.records):
                    records = tuple(
                        (record.timestamp, record.key, record.value, tuple(record.headers))
                        for record in decode_batch(TOPIC, 0, view)
                    )
                    sent = Sent(
                        exchange.version,
                        request.acks,
                        request.timeout_ms,
                        request.transactional_id,
                        min(view.producer_id, 0),
                        view.producer_epoch,
                        view.base_sequence,
                        view.record_count,
                        view.attributes,
                        (view.base_timestamp, view.max_timestamp),
                        records,
                    )
                    found.append(sent)
    return found


@pytest.mark.parametrize("name", STORIES)
async def test_requests_are_those_of_java(java_tools: JavaTools, name: str):
    story = STORIES[name]
    results, requests = [], []
    for is_java in (True, False):
        async with EmbeddedCluster(nodes=1, history_payloads=True) as cluster:
            cluster.create_topic(TOPIC, 1)
            story.disturb(cluster)
            async with asyncio.timeout(60):
                if is_java:
                    lines = await written_by_java(cluster, java_tools, story)
                else:
                    lines = await written_by_us(cluster, story)
            results.append([line if line.lstrip("-").isdigit() else "failed" for line in lines])
            requests.append(requests_of(cluster))
    assert len(requests[0]) >= len(story.flushes.split(","))
    assert requests[1] == requests[0]
    assert results[1] == results[0]
