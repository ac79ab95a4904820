"""Fetching from the preferred read replica (KIP-392), and leader hints in Fetch responses (KIP-951)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import pytest
import pytest_asyncio

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import ConfigError, ErrorCode
from asyncgroup.testing import current_network
from tests.consumer.brokers import caught_up, client, fetches, fill, now, read


@pytest_asyncio.fixture
async def racks() -> AsyncIterator[EmbeddedCluster]:
    """Nodes 1 to 3 in racks a to c, each with a replica of `orders-0` and `orders-1`; node 1 is the leader of both."""
    async with EmbeddedCluster(3, host="10.0.0.1", seed=1, racks=("a", "b", "c")) as cluster:
        cluster.create_topic("orders", 2)
        for partition in (0, 1):
            if cluster.leader("orders", partition) != 1:
                cluster.move_leader("orders", partition, 1)
        yield cluster


def nodes_asked(brokers: EmbeddedCluster, since: float = 0.0) -> list[int]:
    return [exchange.node_id for exchange in fetches(brokers) if exchange.time >= since]


async def test_there_must_be_one_rack_per_node() -> None:
    with pytest.raises(ConfigError, match="one for each of 2 nodes"):
        EmbeddedCluster(2, racks=("a",))


async def test_records_are_fetched_from_the_own_rack(racks: EmbeddedCluster) -> None:
    fill(racks, "orders", 0, batches=3)
    async with client(racks, rack_id="b") as reader:
        (consumer,) = reader.read("orders", 0)
        start = now()
        assert await read(consumer, 3) == [0, 1, 2]
        assert now() - start < 0.05, "the move to the replica is no failure, and causes no pause"
        await caught_up(consumer)
        mark = now()
        fill(racks, "orders", 0, batches=2)
        assert await read(consumer, 2) == [3, 4]
        await asyncio.sleep(5)
        assert set(nodes_asked(racks, mark)) == {2}
        assert nodes_asked(racks)[0] == 1
        assert nodes_asked(racks).count(1) == 1
        assert reader.errors == []
        assert reader.cluster.view.brokers[2].rack == "b"


@pytest.mark.parametrize("rack", ["a", "nowhere", ""])
async def test_without_a_replica_in_the_rack_the_leader_is_used(racks: EmbeddedCluster, rack: str) -> None:
    fill(racks, "orders", 0, batches=1)
    async with client(racks, rack_id=rack) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 1) == [0]
        await asyncio.sleep(2)
        assert set(nodes_asked(racks)) == {1}
        assert {exchange.request.rack_id for exchange in fetches(racks)} == {rack}


async def test_the_preferred_replica_has_a_lease(racks: EmbeddedCluster) -> None:
    """The leader is asked again after the metadata refresh interval."""
    async with client(racks, rack_id="b", metadata_refresh_interval=60.0) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        await asyncio.sleep(200)
        assert nodes_asked(racks).count(1) == 4
        fill(racks, "orders", 0, batches=1)
        assert await read(consumer, 1) == [0]
        assert reader.errors == []


async def test_the_lease_is_ten_minutes_without_periodic_metadata_refreshes(racks: EmbeddedCluster) -> None:
    async with client(racks, rack_id="b", metadata_refresh_interval=0.0) as reader:
        reader.read("orders", 0)
        await asyncio.sleep(599)
        assert nodes_asked(racks).count(1) == 1
        await asyncio.sleep(2)
        assert nodes_asked(racks).count(1) == 2


async def test_an_offset_that_a_follower_lacks_is_fetched_from_the_leader(racks: EmbeddedCluster) -> None:
    fill(racks, "orders", 0, batches=3)
    async with client(racks, rack_id="b", auto_offset_reset="error") as reader:
        (consumer,) = reader.read("orders", 0)
        await read(consumer, 3)
        await caught_up(consumer)
        racks.faults.on("Fetch", node=2, times=1).error(
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
        await asyncio.sleep(2)
        fill(racks, "orders", 0, batches=1)
        assert await read(consumer, 1) == [3], "the reset policy is not applied"
        assert nodes_asked(racks).count(1) == 2


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR]
)
async def test_after_a_followers_error_the_leader_is_used(racks: EmbeddedCluster, code: ErrorCode) -> None:
    async with client(racks, rack_id="b") as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        racks.faults.on("Fetch", node=2, topic="orders").error(code)
        await asyncio.sleep(2)
        fill(racks, "orders", 0, batches=1)
        assert await read(consumer, 1) == [0]
        assert nodes_asked(racks).count(1) >= 2


async def test_after_a_followers_crash_the_leader_is_used(racks: EmbeddedCluster) -> None:
    async with client(racks, rack_id="b") as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        await racks.stop_node(2)
        fill(racks, "orders", 0, batches=1)
        assert await asyncio.wait_for(read(consumer, 1), 5) == [0]
        mark = now()
        await asyncio.sleep(2)
        assert set(nodes_asked(racks, mark)) == {1}


async def test_replicas_that_advise_each_other_are_asked_with_pauses(racks: EmbeddedCluster) -> None:
    async with client(racks, rack_id="b") as reader:
        racks.faults.on("Fetch", node=2, topic="orders", times=None).error(ErrorCode.OFFSET_OUT_OF_RANGE)
        reader.read("orders", 0)
        await asyncio.sleep(10)
        assert len(nodes_asked(racks)) < 250


async def test_a_new_leader_may_advise_another_replica(racks: EmbeddedCluster) -> None:
    async with client(racks, rack_id="b") as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        racks.move_leader("orders", 0, 3)
        fill(racks, "orders", 0, batches=2)
        assert await asyncio.wait_for(read(consumer, 2), 5) == [0, 1]
        await asyncio.sleep(2)
        mark = now()
        await asyncio.sleep(2)
        assert set(nodes_asked(racks, mark)) == {2}


async def test_the_position_is_validated_by_the_leader_and_not_by_a_follower(racks: EmbeddedCluster) -> None:
    fill(racks, "orders", 0, batches=8)
    async with client(racks, rack_id="b", auto_offset_reset="earliest") as reader:
        (consumer,) = reader.read("orders", 0)
        await read(consumer, 8)
        await caught_up(consumer)
        racks.truncate("orders", 0, 5, leader=3)
        await asyncio.sleep(3)
        fill(racks, "orders", 0, batches=2)
        assert await asyncio.wait_for(read(consumer, 2), 5) == [5, 6]
        assert {e.node_id for e in racks.history.of("OffsetForLeaderEpoch", client_id="reader")} == {3}


async def test_a_leader_hint_moves_a_partition_at_once(racks: EmbeddedCluster) -> None:
    async with client(racks) as reader:
        moved, stays = reader.read("orders", 0, 1)
        await caught_up(moved)
        metadata = len(racks.history.of("Metadata", client_id="reader"))
        start = now()
        racks.move_leader("orders", 0, 2)
        fill(racks, "orders", 0, batches=1)
        fill(racks, "orders", 1, batches=1)
        assert await read(moved, 1) == [0]
        assert await read(stays, 1) == [0]
        assert now() - start < 0.05
        assert len(racks.history.of("Metadata", client_id="reader")) == metadata, (
            "no metadata request was needed"
        )
        assert reader.cluster.view.brokers[2].rack == "b", "the hint contains the new leader's rack"


# -- followers that do not answer or refuse ----------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [0.5, 1.0, 2.0])
async def test_a_lease_shorter_than_the_retry_backoff_works(racks: EmbeddedCluster, lease: float) -> None:
    """The lease begins with the first fetch from the follower, not with the leader's advice."""
    config = {"retry_backoff": 2.0, "retry_backoff_max": 2.0, "metadata_refresh_interval": lease}
    async with client(racks, rack_id="b", **config) as reader:
        (consumer,) = reader.read("orders", 0)
        for offset in range(40):
            fill(racks, "orders", 0, batches=1)
            assert await asyncio.wait_for(read(consumer, 1), 1) == [offset]
            await asyncio.sleep(0.73)
        assert reader.errors == []
        asked = nodes_asked(racks)
        assert asked.count(2) > asked.count(1)


@pytest.mark.parametrize("connect", ["accept", "hang"])
@pytest.mark.parametrize("first", [0, 3])
async def test_a_follower_that_never_answers_is_avoided_for_a_minute(
    racks: EmbeddedCluster, connect: Literal["accept", "hang"], first: int
) -> None:
    """The follower hangs after `first` records."""
    fill(racks, "orders", 0, batches=5)
    network, port = current_network(), racks.nodes[2].port
    if first == 0:
        network.blackhole("10.0.0.1", port, connect=connect)
    async with client(racks, rack_id="b", max_partition_fetch_bytes=80) as reader:
        (consumer,) = reader.read("orders", 0)
        await read(consumer, first)
        network.blackhole("10.0.0.1", port, connect=connect)
        start = now()
        last = first
        while last < 5:
            (last,) = [offset + 1 for offset in await asyncio.wait_for(read(consumer, 1), 10)]
        assert now() - start < 8
        for offset in range(5, 45):
            fill(racks, "orders", 0, batches=1)
            assert await asyncio.wait_for(read(consumer, 1), 0.1) == [offset]
            await asyncio.sleep(1)
        assert len(reader.errors) == 1
        network.heal()
        await asyncio.sleep(80)
        mark = now()
        await asyncio.sleep(5)
        assert set(nodes_asked(racks, mark)) == {2}


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_a_follower_that_refuses_everything_does_not_stop_fetching(
    racks: EmbeddedCluster, code: ErrorCode
) -> None:
    racks.faults.on("Fetch", node=2, topic="orders", times=None).error(code)
    async with client(racks, rack_id="b") as reader:
        (consumer,) = reader.read("orders", 0)
        for offset in range(30):
            fill(racks, "orders", 0, batches=1)
            assert await asyncio.wait_for(read(consumer, 1), 1) == [offset]
            await asyncio.sleep(1)
        assert nodes_asked(racks).count(2) <= 3
