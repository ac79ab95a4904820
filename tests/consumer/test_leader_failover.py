"""Time until records are read from a new leader after the old one was killed, hangs, or lost its host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import ErrorCode
from asyncgroup.testing import current_network
from tests.consumer.brokers import Client, caught_up, client, fetches, fill, now, read

HOST = "10.0.0.1"

Fault = Callable[[int], None]


@pytest_asyncio.fixture
async def three() -> AsyncIterator[EmbeddedCluster]:
    """Three nodes; node 1 is the leader of `orders-0`, node 2 of `orders-1`."""
    async with EmbeddedCluster(3, host=HOST, seed=1) as cluster:
        cluster.create_topic("orders", 2)
        cluster.move_leader("orders", 0, 1)
        cluster.move_leader("orders", 1, 2)
        yield cluster
        current_network().heal()


def killed(port: int) -> None:
    """`kill -9`: connections are reset, and new ones refused."""
    current_network().refuse(HOST, port)
    current_network().cut(HOST, port)


def vanished(port: int) -> None:
    """The host is lost: connections are reset, and new ones get no answer."""
    current_network().cut(HOST, port)
    current_network().blackhole(HOST, port)


def hung(port: int) -> None:
    """`SIGSTOP`: connections stay open, new ones are accepted, and nothing is answered."""
    current_network().blackhole(HOST, port, connect="accept")


async def delay_after(
    brokers: EmbeddedCluster, reader: Client, fault: Fault, seconds: float, *, after: float = 0.0
) -> float:
    """Return the seconds from the first record at the new leader, elected `seconds` after the fault, to its handing out."""
    (consumer,) = reader.read("orders", 0)
    await caught_up(consumer)
    await asyncio.sleep(after)
    fault(brokers.nodes[1].port)
    await asyncio.sleep(seconds)
    brokers.move_leader("orders", 0, 2)
    fill(brokers, "orders", 0, batches=1)
    start = now()
    assert await asyncio.wait_for(read(consumer, 1), 60) == [0]
    return now() - start


@pytest_asyncio.fixture
async def reader(three: EmbeddedCluster) -> AsyncIterator[Client]:
    """A client of the three brokers."""
    async with client(three) as reader:
        yield reader


@pytest.mark.parametrize("seconds", [0.05, 1.0, 3.03, 9.09, 18.07])
@pytest.mark.parametrize("fault", [killed, vanished])
async def test_a_dead_leader_delays_by_at_most_a_retry_backoff(
    reader: Client, three: EmbeddedCluster, fault: Fault, seconds: float
) -> None:
    assert await delay_after(three, reader, fault, seconds) < 0.15


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    ],
)
async def test_a_new_leader_that_does_not_lead_yet_delays_by_at_most_a_retry_backoff(
    reader: Client, three: EmbeddedCluster, code: ErrorCode
) -> None:
    """Under load a killed node's partitions have a leader in the metadata some time before that node serves them."""
    (consumer,) = reader.read("orders", 0)
    await caught_up(consumer)
    fault = three.faults.on("Fetch", node=2, times=None).error(code)
    killed(three.nodes[1].port)
    await asyncio.sleep(1.0)
    three.move_leader("orders", 0, 2)
    fill(three, "orders", 0, batches=1)
    await asyncio.sleep(0.9)
    fault.cancel()
    start = now()
    assert await asyncio.wait_for(read(consumer, 1), 60) == [0]
    assert now() - start < 0.15


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1.0),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, 1.0),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, 30.0),
    ],
)
async def test_a_leader_that_has_not_heard_of_its_election_is_asked_again_soon(
    reader: Client, three: EmbeddedCluster, code: ErrorCode, seconds: float
) -> None:
    """Another broker names the new leader some milliseconds before the leader itself knows of its election."""
    (consumer,) = reader.read("orders", 0)
    await caught_up(consumer)
    fault = three.faults.on("Fetch", node=2).error(code)
    killed(three.nodes[1].port)
    await asyncio.sleep(seconds)
    three.move_leader("orders", 0, 2)
    fill(three, "orders", 0, batches=1)
    await fault.wait_hit()
    start, requests = now(), len(three.history.of("Metadata", client_id="reader"))
    assert await asyncio.wait_for(read(consumer, 1), 60) == [0]
    assert now() - start < 0.04
    if code == ErrorCode.UNKNOWN_LEADER_EPOCH:  # the metadata is newer than what the leader knows
        assert len(three.history.of("Metadata", client_id="reader")) == requests


async def test_a_seek_by_name_waits_no_longer_for_a_new_leader_than_a_fetch(three: EmbeddedCluster) -> None:
    """Its lookup may wait for a connection to the former leader, which is opened at growing intervals."""
    async with client(three) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        killed(three.nodes[1].port)
        await asyncio.sleep(0.5)
        consumer.seek("earliest")
        await asyncio.sleep(8.0)
        three.move_leader("orders", 0, 2)
        fill(three, "orders", 0, batches=1)
        start = now()
        assert await asyncio.wait_for(read(consumer, 1), 60) == [0]
        assert now() - start < 0.2
        assert len(three.history.of("Metadata", client_id="reader")) < 150


async def test_a_seek_to_an_offset_holds_while_a_lookup_moves_to_a_new_leader(three: EmbeddedCluster) -> None:
    async with client(three) as reader:
        fill(three, "orders", 0, batches=5)
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        killed(three.nodes[1].port)
        consumer.seek("earliest")
        await asyncio.sleep(5.0)
        consumer.seek(3)
        await asyncio.sleep(0.3)
        three.move_leader("orders", 0, 2)
        assert await asyncio.wait_for(read(consumer, 2), 60) == [3, 4]


@pytest.mark.parametrize("after", [0.0, 0.2, 0.4])
async def test_a_hung_leader_is_left_once_there_is_a_new_one(three: EmbeddedCluster, after: float) -> None:
    async with client(three) as reader:
        assert await delay_after(three, reader, hung, 9.0, after=after) <= 1.25


async def move_from_hung_leader(three: EmbeddedCluster, reader: Client, after: float) -> PartitionConsumer:
    """Read to the end of a partition, let its leader hang, and move the partition after some seconds."""
    (consumer,) = reader.read("orders", 0)
    await caught_up(consumer)
    hung(three.nodes[1].port)
    await asyncio.sleep(after)
    three.move_leader("orders", 0, 2)
    return consumer


async def test_any_metadata_refresh_ends_a_fetch_that_hangs(reader: Client, three: EmbeddedCluster) -> None:
    """Whatever caused the refresh, no further request is needed."""
    consumer = await move_from_hung_leader(three, reader, 0.1)
    fill(three, "orders", 0, batches=1)
    await reader.cluster.refresh()
    start = now()
    assert await read(consumer, 1) == [0]
    assert now() - start < 0.05
    assert reader.errors == []


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_fetch_may_be_given_up_twice(reader: Client, three: EmbeddedCluster, turns: int) -> None:
    """Another partition of the same node moves before the task of the fetch has run."""
    three.move_leader("orders", 1, 1)
    three.faults.on("Fetch", node=1).hold()
    first, second = (reader.consumer("orders", number) for number in (0, 1))
    second.pause()
    for consumer in (first, second):
        reader.fetchers.add(consumer)
    await asyncio.sleep(1)
    fetcher = reader.fetchers
    for number, consumer in enumerate((first, second)):
        reader.cluster.update_leader(consumer.tp, 2, 1000)
        for node_id in fetcher._states.metadata_changed(now()):
            assert node_id == 1
            fetcher._tasks[node_id].give_up_unwanted()
        assert consumer._inner.node_id == 2
        for _ in range(0 if number else turns):
            await asyncio.sleep(0)


async def test_a_returning_leader_is_fetched_from_without_waiting_for_the_old_fetch(
    reader: Client, three: EmbeddedCluster
) -> None:
    held = three.faults.on("Fetch", node=1, nth=2).hold()
    (consumer,) = reader.read("orders", 0)
    await held.wait_hit()
    for leader in (2, 1):
        three.move_leader("orders", 0, leader)
        fill(three, "orders", 0, batches=1)
        await reader.cluster.refresh()
        await asyncio.wait_for(read(consumer, 1), 1)
    held.release()


async def test_metadata_is_refreshed_often_at_first_and_later_seldom(three: EmbeddedCluster) -> None:
    async with client(three) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        start = now()
        killed(three.nodes[1].port)
        await asyncio.sleep(20)
        asked = len(three.history.of("Metadata", client_id="reader"))
        assert 100 < asked < 260
        await asyncio.sleep(600)
        assert len(three.history.of("Metadata", client_id="reader")) - asked < 700
        assert now() - start < 621


async def test_metadata_is_refreshed_once_a_second_for_an_unresponsive_leader(three: EmbeddedCluster) -> None:
    async with client(three) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        before = len(three.history.of("Metadata", client_id="reader"))
        hung(three.nodes[1].port)
        await asyncio.sleep(25)
        asked = len(three.history.of("Metadata", client_id="reader")) - before
        assert 15 < asked < 30


async def test_a_new_leader_that_is_not_ready_is_retried_soon(reader: Client, three: EmbeddedCluster) -> None:
    """The old leader's failures do not lengthen its pauses."""
    three.faults.on("Fetch", node=2, topic="orders", times=2).error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert await delay_after(three, reader, killed, 15.0) < 0.5


async def test_other_partitions_of_an_unresponsive_node_stay_in_flight(three: EmbeddedCluster) -> None:
    """Only the moved partition is removed; the others continue when the node answers again."""
    three.move_leader("orders", 1, 1)
    async with client(three) as reader:
        moved, stays = reader.read("orders", 0, 1)
        await caught_up(moved)
        await caught_up(stays)
        hung(three.nodes[1].port)
        await asyncio.sleep(3)
        three.move_leader("orders", 0, 2)
        fill(three, "orders", 0, batches=1)
        fill(three, "orders", 1, batches=1)
        assert await asyncio.wait_for(read(moved, 1), 2) == [0]
        current_network().heal()
        assert await asyncio.wait_for(read(stays, 1), 2) == [0]


async def test_a_paused_partition_of_a_dead_leader_causes_no_requests(three: EmbeddedCluster) -> None:
    async with client(three) as reader:
        (consumer,) = reader.read("orders", 0)
        await caught_up(consumer)
        killed(three.nodes[1].port)
        await asyncio.sleep(1)
        consumer.pause()
        await asyncio.sleep(30)
        asked = len(three.history.of("Metadata", client_id="reader"))
        await asyncio.sleep(60)
        assert len(three.history.of("Metadata", client_id="reader")) == asked


async def test_a_moved_partition_is_fetched_only_from_its_leader(three: EmbeddedCluster) -> None:
    async with client(three) as reader:
        consumer = await move_from_hung_leader(three, reader, 3)
        await asyncio.sleep(3)
        current_network().heal()
        mark = now()
        fill(three, "orders", 0, batches=3)
        assert await read(consumer, 3) == [0, 1, 2]
        await asyncio.sleep(5)
        assert {fetch.node_id for fetch in fetches(three) if fetch.time > mark} == {2}
