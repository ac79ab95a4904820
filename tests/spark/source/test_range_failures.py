"""Ranges are read completely in spite of failures of brokers and connections; in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError, ErrorCode, RecordTooLargeError
from asyncgroup.spark.source.errors import SourceError
from tests.spark.source.reading import TOPIC, by_partition, fetches, fill, now, part, worker

pytestmark = pytest.mark.virtual(max_virtual_time=86_400)

DISTURBED = {"fetch_bytes": 20_000}


async def read_all_but_disturbed(brokers: EmbeddedCluster, disturb: object, **options: object) -> None:
    """Read four partitions with small fetches; call `disturb(step)` after each wait."""
    for number in range(4):
        fill(brokers, 300, partition=number, size=300)
    async with worker(brokers, **DISTURBED, **options) as one:  # type: ignore[arg-type]
        rows = await one.rows(*(part(5, 295, number) for number in range(4)), between=disturb)  # type: ignore[arg-type]
    assert by_partition(rows) == {number: list(range(5, 295)) for number in range(4)}


async def test_leaders_move(brokers: EmbeddedCluster) -> None:
    def move(step: int) -> None:
        brokers.move_leader(TOPIC, step % 4, 1 + step // 2 % 2)

    await read_all_but_disturbed(brokers, move)


async def test_nodes_are_killed_and_restarted(brokers: EmbeddedCluster) -> None:
    async def kill(step: int) -> None:
        if step == 3:
            await brokers.stop_node(1)
        elif step == 8:
            await brokers.start_node(1)
            await brokers.stop_node(2)
        elif step == 12:
            await brokers.start_node(2)

    await read_all_but_disturbed(brokers, kill)


@pytest.mark.parametrize("when", ["before", "after", "mid-frame"])
async def test_connections_are_cut(brokers: EmbeddedCluster, when: str) -> None:
    for nth in (1, 3, 4, 9):
        brokers.faults.on("Fetch", nth=nth).disconnect(when)  # type: ignore[arg-type]
    await read_all_but_disturbed(brokers, None)


@pytest.mark.parametrize(
    "code",
    [
        "NOT_LEADER_OR_FOLLOWER",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_ID",
        "OFFSET_NOT_AVAILABLE",
        "KAFKA_STORAGE_ERROR",
        "REPLICA_NOT_AVAILABLE",
        "UNKNOWN_SERVER_ERROR",
    ],
)
@pytest.mark.parametrize("topic", [TOPIC, None], ids=["of partitions", "of the answer"])
async def test_retriable_errors(brokers: EmbeddedCluster, code: str, topic: str | None) -> None:
    brokers.faults.on("Fetch", nth=2, times=5, topic=topic).error(code)
    await read_all_but_disturbed(brokers, None)


async def test_slow_and_unresponsive_brokers(brokers: EmbeddedCluster) -> None:
    brokers.slow_node(2, 3.0)
    brokers.faults.on("Fetch", node=1, nth=2).drop()
    await read_all_but_disturbed(brokers, None, config={"request_timeout": 10.0})
    assert 10 < now() < 120


async def test_no_broker_at_first(brokers: EmbeddedCluster) -> None:
    fill(brokers, 10)
    await brokers.stop_node(1)
    await brokers.stop_node(2)

    async def start() -> None:
        await asyncio.sleep(30)
        await brokers.start_node(1)
        await brokers.start_node(2)

    starting = asyncio.create_task(start())
    async with worker(brokers) as one:
        assert await one.offsets(part(0, 10)) == list(range(10))
    await starting


async def test_no_broker_for_too_long(brokers: EmbeddedCluster) -> None:
    fill(brokers, 10)
    async with worker(brokers, poll_timeout=60.0, **DISTURBED) as one:
        assert await one.offsets(part(0, 2)) == [0, 1]
        await brokers.stop_node(1)
        await brokers.stop_node(2)
        with pytest.raises(SourceError, match=r"^\[ASYNCGROUP_(BROKERS_UNREACHABLE|NO_PROGRESS)\]"):
            await one.offsets(part(4, 10, 1))
    async with worker(brokers, poll_timeout=60.0) as one:
        with pytest.raises(SourceError, match=r"^\[ASYNCGROUP_BROKERS_UNREACHABLE\]"):
            await one.offsets(part(4, 10))
    assert 119 < now() < 140


async def test_the_poll_timeout_error_has_the_last_reason(brokers: EmbeddedCluster) -> None:
    fill(brokers, 10)
    brokers.faults.on("Fetch", times=None).error("NOT_LEADER_OR_FOLLOWER")
    async with worker(brokers, poll_timeout=30.0) as one:
        with pytest.raises(
            SourceError, match=r"\[ASYNCGROUP_NO_PROGRESS\].*for 30 s.*NOT_LEADER_OR_FOLLOWER"
        ):
            await one.offsets(part(4, 10))
    assert now() == pytest.approx(30, abs=3)


@pytest.mark.parametrize("seconds", [200, 1000])
async def test_the_time_between_waits_does_not_count(brokers: EmbeddedCluster, seconds: int) -> None:
    """A sink may be slow for minutes; the response of the in-flight fetch is used when Spark continues."""

    async def pause(_step: int) -> None:
        await asyncio.sleep(seconds)

    fill(brokers, 300, size=300)
    async with worker(brokers, poll_timeout=20.0, fetch_bytes=20_000) as one:
        assert await one.offsets(part(0, 300), between=pause) == list(range(300))


async def test_a_response_that_comes_just_after_a_pause(
    brokers: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The request timeout and the poll timeout do not include the pause, in which the task did not wait."""

    async def pause(step: int) -> None:
        if step == 1:
            await asyncio.sleep(200)

    fill(brokers, 300, size=300)
    brokers.faults.on("Fetch", nth=2).delay(205)
    async with worker(brokers, poll_timeout=20.0, fetch_bytes=20_000) as one:
        with caplog.at_level(logging.DEBUG, "asyncgroup.spark"):
            assert await one.offsets(part(0, 300), between=pause) == list(range(300))
    assert now() == pytest.approx(205, abs=1)
    assert "failed" not in caplog.text


async def test_a_partition_without_a_leader(brokers: EmbeddedCluster) -> None:
    def without_leader(response: object) -> None:
        for topic in response.topics:  # type: ignore[attr-defined]
            for partition in topic.partitions:
                if partition.partition_index == 0:
                    partition.error_code, partition.leader_id = ErrorCode.LEADER_NOT_AVAILABLE, -1

    fill(brokers, 10)
    fault = brokers.faults.on("Metadata", times=None).mutate(without_leader)
    async with worker(brokers, poll_timeout=30.0) as one:
        with pytest.raises(SourceError, match=r"\[ASYNCGROUP_NO_PROGRESS\].*for 30 s.*LEADER_NOT_AVAILABLE"):
            await one.offsets(part(0, 10))
    assert now() == pytest.approx(30, abs=3)
    fault.cancel()
    async with worker(brokers, poll_timeout=30.0) as one:
        assert await one.offsets(part(0, 10)) == list(range(10))


async def test_a_batch_that_a_broker_cuts_at_the_requested_bytes(brokers: EmbeddedCluster) -> None:
    """As brokers before KIP-74 do: there is no progress, however often it is fetched."""

    def cut(response: object) -> None:
        for topic in response.responses:  # type: ignore[attr-defined]
            for data in topic.partitions:
                data.records = bytes(data.records or b"")[:1000]

    fill(brokers, 1, per_batch=1, size=5000)
    brokers.faults.on("Fetch", times=None).mutate(cut)
    async with worker(brokers, fetch_bytes=1000) as one:
        with pytest.raises(RecordTooLargeError, match="orders-0 at offset 0"):
            await one.offsets(part(0, 1))
    assert now() < 1


async def test_final_errors_are_raised_at_once(brokers: EmbeddedCluster) -> None:
    fill(brokers, 10)
    brokers.faults.on("Fetch", topic=TOPIC).error("TOPIC_AUTHORIZATION_FAILED")
    async with worker(brokers) as one:
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await one.offsets(part(4, 10))
    assert now() < 1


async def test_a_topic_without_authorization(brokers: EmbeddedCluster) -> None:
    def refuse(response: object) -> None:
        for topic in response.topics:  # type: ignore[attr-defined]
            topic.error_code, topic.partitions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []

    brokers.faults.on("Metadata", nth=2, times=None).mutate(refuse)
    async with worker(brokers) as one:
        with pytest.raises(BrokerError, match="topic 'orders': TOPIC_AUTHORIZATION_FAILED"):
            await one.offsets(part(4, 10))
    assert now() < 1


async def test_responses_without_requested_partitions(brokers: EmbeddedCluster) -> None:
    def thin_out(response: object) -> None:
        response.responses = response.responses[:0]  # type: ignore[attr-defined]

    brokers.faults.on("Fetch", nth=2, times=3).mutate(thin_out)
    await read_all_but_disturbed(brokers, None)


async def test_an_offset_that_a_follower_lacks_is_fetched_from_the_leader() -> None:
    async with EmbeddedCluster(3, host="10.0.0.1", seed=1, racks=("a", "b", "c")) as brokers:
        brokers.create_topic(TOPIC, 1)
        brokers.move_leader(TOPIC, 0, 1)
        fill(brokers, 100, size=300)
        brokers.faults.on("Fetch", node=2, topic=TOPIC).error("OFFSET_OUT_OF_RANGE")
        async with worker(brokers, config={"rack_id": "b"}, fetch_bytes=5000) as one:
            assert await one.offsets(part(0, 100)) == list(range(100))
    assert now() < 0.05, "the leader is asked without a pause"


async def test_a_preferred_read_replica_is_used() -> None:
    async with EmbeddedCluster(3, host="10.0.0.1", seed=1, racks=("a", "b", "c")) as brokers:
        brokers.create_topic(TOPIC, 1)
        brokers.move_leader(TOPIC, 0, 1)
        fill(brokers, 100, size=300)
        async with worker(brokers, config={"rack_id": "b"}, fetch_bytes=5000) as one:
            assert await one.offsets(part(0, 100)) == list(range(100))
        asked = [exchange.node_id for exchange in brokers.history.of("Fetch")]
        assert asked[0] == 1
        assert set(asked[1:]) == {2}


async def test_a_preferred_replica_that_is_not_in_the_metadata_yet() -> None:
    """A partition was moved to other nodes, one of which is the preferred replica: an immediate retry would not help."""
    async with EmbeddedCluster(3, host="10.0.0.1", seed=1, racks=("a", "b", "c")) as brokers:
        brokers.create_topic(TOPIC, 1)
        brokers.move_leader(TOPIC, 0, 1)
        fill(brokers, 100, size=300)

        def older(response: object) -> None:
            for topic in response.topics:  # type: ignore[attr-defined]
                for partition in topic.partitions:
                    partition.replica_nodes = partition.isr_nodes = [1]

        brokers.faults.on("Metadata", times=2).mutate(older)
        async with worker(brokers, config={"rack_id": "b"}, fetch_bytes=5000) as one:
            assert await one.offsets(part(0, 100)) == list(range(100))
        asked = [exchange.node_id for exchange in brokers.history.of("Fetch")]
        assert asked[-1] == 2
        assert asked.count(1) < 5
    assert now() < 5


async def test_brokers_that_redirect_to_each_other_are_asked_with_pauses() -> None:
    async with EmbeddedCluster(3, host="10.0.0.1", seed=1, racks=("a", "b", "c")) as brokers:
        brokers.create_topic(TOPIC, 1)
        brokers.move_leader(TOPIC, 0, 1)
        fill(brokers, 10)
        fault = brokers.faults.on("Fetch", node=2, topic=TOPIC, times=None).error("OFFSET_OUT_OF_RANGE")

        async def restore() -> None:
            await asyncio.sleep(5)
            fault.cancel()

        restoring = asyncio.create_task(restore())
        async with worker(brokers, config={"rack_id": "b"}) as one:
            assert await one.offsets(part(0, 10)) == list(range(10))
        await restoring
        assert fetches(brokers) < 200
