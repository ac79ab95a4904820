"""Pure functions of fetching: whether a partition is to be asked for, and the Fetch request. Plans: `test_random_plans.py`."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_session import (
    TOPIC_ID_VERSION,
    PartitionData,
    SessionRequest,
    build_fetch_request,
)
from asyncgroup.model import TopicPartition
from asyncgroup.testing import run_virtual
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import API_BY_NAME
from asyncgroup.wire.codec import decode, encode
from tests.consumer.support import batch, feed, make_consumer
from tests.profiles import examples

FETCH_VERSIONS = range(4, 19)
IDS = {name: uuid.UUID(int=number + 1) for number, name in enumerate("abc")}


def said(*tps: TopicPartition) -> SessionRequest:
    wanted = {tp: PartitionData(100 + tp.partition, 7, 2048, 5, IDS[tp.topic]) for tp in tps}
    return SessionRequest(0, -1, wanted, [])


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), unique=True, max_size=12))
@settings(max_examples=examples(20), deadline=None)
def test_a_request_contains_the_plan_in_every_version(version: int, names: list[tuple[str, int]]) -> None:
    tps = [TopicPartition(*name) for name in names]
    config = ConsumerConfig(fetch_min_bytes=3, fetch_max_bytes=9999)
    request = build_fetch_request(said(*tps), config, 0.25, version)
    read = decode(m.FetchRequest, version, encode(request, version))
    assert (read.replica_id, read.replica_state.replica_id) == (-1, -1), "a consumer, not a follower"
    assert (read.max_wait_ms, read.min_bytes, read.max_bytes) == (250, 3, 9999)
    assert read.isolation_level == 0
    if version >= 7:
        assert (read.session_id, read.session_epoch) == (0, -1), "a full fetch without a session"
        assert read.forgotten_topics_data == []
    # with a rack id the broker may return a preferred read replica instead of records
    assert read.rack_id == ""
    by_id = {topic_id: name for name, topic_id in IDS.items()}
    found = []
    for topic in read.topics:
        name = topic.topic if version < TOPIC_ID_VERSION else by_id[topic.topic_id]
        for partition in topic.partitions:
            found.append(TopicPartition(name, partition.partition))
            assert partition.fetch_offset == 100 + partition.partition
            assert partition.partition_max_bytes == 2048
            assert partition.current_leader_epoch == (7 if version >= 9 else -1)
            assert partition.last_fetched_epoch == (5 if version >= 12 else -1)
    assert sorted(found) == sorted(tps)
    assert len(read.topics) == len({tp.topic for tp in tps}), "each topic once"
    # brokers fill a response in this order (KIP-74): topics by their first partition, partitions as planned
    assert [tp for tp in found if found and tp.topic == found[0].topic] == [
        tp for tp in tps if tp.topic == tps[0].topic
    ]


@pytest.mark.parametrize(("limit", "buffer", "asked"), [(800, 8000, 800), (9999, 8000, 1000), (9999, 7, 1)])
def test_a_response_may_have_an_eighth_of_the_buffer(limit: int, buffer: int, asked: int) -> None:
    config = ConsumerConfig(fetch_max_bytes=limit, buffer_bytes=buffer)
    assert build_fetch_request(SessionRequest(0, -1, {}, []), config, 0.5, 17).max_bytes == asked


@pytest.mark.parametrize(("level", "number"), [("read_uncommitted", 0), ("read_committed", 1)])
def test_the_isolation_level_is_sent_as_a_number(level: Any, number: int) -> None:
    config = ConsumerConfig(isolation_level=level)
    assert build_fetch_request(SessionRequest(0, -1, {}, []), config, 0.5, 17).isolation_level == number


def test_all_supported_versions_are_tested() -> None:
    assert API_BY_NAME["Fetch"].versions == (FETCH_VERSIONS.start, FETCH_VERSIONS.stop - 1)


def test_only_its_full_buffer_makes_a_partition_full() -> None:
    async def story() -> None:
        wanting, full, paused, ended, failed = ((make_consumer(share=200, ask=50))._inner for _ in range(5))
        feed(full, batch(0, value=b"x" * 150))
        paused.pause()
        ended.end()
        failed.fail(OSError("broken"))
        everyone = (full, paused, ended, failed)
        assert [c.is_fetchable for c in everyone] == [False] * 4
        assert [c.is_buffer_full for c in everyone] == [True, False, False, False]
        wanting.reserved = 180
        assert wanting.is_buffer_full, "in-flight bytes count"

    run_virtual(story())
