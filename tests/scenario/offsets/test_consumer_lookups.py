"""Offset lookups of a Consumer: beginning and end offsets, offsets for times, committed offsets of a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import Cluster, Consumer, ConsumerConfig, OffsetManager, TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer import OffsetAndTimestamp
from asyncgroup.errors import (
    BrokerError,
    ClosedError,
    ConfigError,
    ErrorCode,
    NoBrokersError,
    OffsetLookupError,
)
from asyncgroup.offsets import CommittedOffset
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import append
from tests.broker.internals import complete_delayed_operations, log_of, partition_in
from tests.scenario.reading.test_read_committed import Transactions
from tests.scenario.support import now, orders
from tests.stories.virtual import VirtualEnvironment

ALL = [orders(number) for number in range(4)]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def write(env: VirtualEnvironment, tp: TopicPartition, *timestamps: int) -> None:
    """Write a record with each of these timestamps."""
    place = partition_in(env.cluster, *tp)
    for timestamp in timestamps:
        builder = BatchBuilder("none", 1 << 30)
        assert builder.append(timestamp, None, b"v")
        append(place.log, builder.build(), place.leader_epoch)
    complete_delayed_operations(env.cluster, place)


def asked(env: VirtualEnvironment, api: str = "ListOffsets") -> int:
    return len(env.cluster.history.of(api, client_id="looker"))


def consumer_of(env: VirtualEnvironment, **config: object) -> Consumer:
    return Consumer(env.bootstrap_servers, ConsumerConfig(client_id="looker", **config))  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def looker(env: VirtualEnvironment) -> AsyncIterator[Consumer]:
    for number in range(4):
        write(env, orders(number), *(1000 * (n + 1) for n in range(number + 1)))
    async with consumer_of(env) as consumer:
        yield consumer


async def test_starts_and_ends_take_one_request_for_each_broker(
    env: VirtualEnvironment, looker: Consumer
) -> None:
    log_of(env.cluster, "orders", 3).delete_records(2)
    assert await looker.beginning_offsets(ALL) == {**dict.fromkeys(ALL, 0), orders(3): 2}
    assert asked(env) == 3
    assert await looker.end_offsets([("orders", n) for n in range(4)]) == {tp: tp.partition + 1 for tp in ALL}
    assert asked(env) == 6
    assert await looker.beginning_offsets([]) == {}
    assert asked(env) == 6


async def test_ends_respect_the_isolation_level(env: VirtualEnvironment, looker: Consumer) -> None:
    transaction = Transactions(env)
    transaction.write(0, b"open", b"open")
    assert await looker.end_offsets([orders(0)]) == {orders(0): 3}
    committed_only = ConsumerConfig(isolation_level="read_committed")
    async with Consumer(looker.cluster, committed_only) as strict:  # a shared Cluster has no isolation level
        assert await strict.end_offsets([orders(0)]) == {orders(0): 1}
        transaction.end(commit=True)
        await asyncio.sleep(1.0)
        assert await strict.end_offsets([orders(0)]) == {orders(0): 4}, "the transaction marker has an offset"


async def test_times(env: VirtualEnvironment, looker: Consumer) -> None:
    found = await looker.offsets_for_times(
        {
            orders(0): EPOCH + timedelta(seconds=2),
            orders(1): EPOCH + timedelta(milliseconds=1001),
            ("orders", 2): 3000,
            orders(3): datetime.fromtimestamp(0, UTC).astimezone(),
        }
    )
    assert found == {
        orders(0): None,
        orders(1): OffsetAndTimestamp(1, 2000, 0),
        orders(2): OffsetAndTimestamp(2, 3000, 0),
        orders(3): OffsetAndTimestamp(0, 1000, 0),
    }
    assert asked(env) == 3
    at = found[orders(1)]
    assert at is not None
    assert at.time == EPOCH + timedelta(seconds=2)


@pytest.mark.parametrize(
    "when",
    [datetime(2026, 1, 1), -1, True, 1.5, "earliest", None],  # noqa: DTZ001  a naive datetime is tested
    ids=str,
)
async def test_an_invalid_time_is_an_error_of_its_partition(looker: Consumer, when: object) -> None:
    with pytest.raises(ConfigError, match=r"orders-2.*time zone"):
        await looker.offsets_for_times({orders(2): when})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "partitions", ["orders", ["orders"], 3, [("orders",)], [("orders", "0")], [("orders", -1)]], ids=str
)
async def test_an_invalid_partition_is_refused(looker: Consumer, partitions: Any) -> None:
    for lookup in (looker.beginning_offsets, looker.end_offsets):
        with pytest.raises(ConfigError, match=r'partitions? as \("orders", 0\)'):
            await lookup(partitions)
    with pytest.raises(ConfigError, match=r'partitions? as \("orders", 0\)'):
        await looker.committed("reports", partitions)


@pytest.mark.parametrize("place", ["orders", ("orders",), ("orders", "0"), 3], ids=str)
async def test_times_of_an_invalid_partition_are_refused(looker: Consumer, place: Any) -> None:
    with pytest.raises(ConfigError, match=r'partitions? as \("orders", 0\)'):
        await looker.offsets_for_times({place: EPOCH})


async def test_errors_are_named_for_each_partition(env: VirtualEnvironment, looker: Consumer) -> None:
    nowhere, beyond = TopicPartition("nowhere", 0), orders(9)
    with pytest.raises(OffsetLookupError) as raised:
        await looker.end_offsets([*ALL, nowhere, beyond])
    assert set(raised.value.errors) == {nowhere, beyond}
    for tp, error in raised.value.errors.items():
        assert isinstance(error, BrokerError)
        assert error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert str(tp) in str(error)
        assert str(tp) in str(raised.value)
    env.cluster.faults.on("ListOffsets", times=1).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(OffsetLookupError, match="TOPIC_AUTHORIZATION_FAILED"):
        await looker.beginning_offsets([orders(1)])


async def test_temporary_errors_are_retried(env: VirtualEnvironment, looker: Consumer) -> None:
    env.cluster.faults.on("ListOffsets", times=2).error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert await looker.end_offsets(ALL) == {tp: tp.partition + 1 for tp in ALL}
    await env.cluster.stop_node(env.cluster.partition("orders", 2).leader)
    assert (await looker.end_offsets(ALL))[orders(2)] == 3


async def test_an_unexpected_error_of_one_answer_is_retried(
    env: VirtualEnvironment, looker: Consumer
) -> None:
    """As in Java: a broker may fail unexpectedly once."""
    env.cluster.faults.on("ListOffsets", times=1).error(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert await looker.end_offsets(ALL) == {orders(n): n + 1 for n in range(4)}
    env.cluster.faults.on("ListOffsets", times=1).error(ErrorCode.UNKNOWN_SERVER_ERROR)
    reader = await looker.partition("orders", 3, timedelta(days=365 * 100))
    assert (await anext(reader)).offset == 0
    env.cluster.faults.on("ListOffsets", times=None).error(ErrorCode.UNKNOWN_SERVER_ERROR)
    with pytest.raises(OffsetLookupError, match="UNKNOWN_SERVER_ERROR"):
        await looker.end_offsets(ALL)


async def test_no_broker_at_all(env: VirtualEnvironment, looker: Consumer) -> None:
    for node in (1, 2, 3):
        await env.cluster.stop_node(node)
    with pytest.raises((NoBrokersError, OffsetLookupError)):
        await looker.end_offsets(ALL)


async def test_committed_offsets_of_a_group(env: VirtualEnvironment, looker: Consumer) -> None:
    async with OffsetManager(env.bootstrap_servers, "reports") as offsets:
        for tp, offset in ((orders(0), 1), (orders(2), 2)):
            (await offsets.manage(*tp)).mark_offset(offset, "by hand")
        await offsets.commit()
    everything = {orders(0): CommittedOffset(1, "by hand"), orders(2): CommittedOffset(2, "by hand")}
    assert await looker.committed("reports") == everything
    assert await looker.committed("reports", ALL[:2]) == {orders(0): everything[orders(0)]}
    assert await looker.committed("reports", [("orders", 2)]) == {orders(2): everything[orders(2)]}
    assert await looker.committed("reports", []) == {}
    assert await looker.committed("nobody") == {}
    with pytest.raises(ConfigError, match="group_id"):
        await looker.committed("")
    env.cluster.faults.on("OffsetFetch").error(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="reports"):
        await looker.committed("reports")


async def test_committed_offsets_of_an_open_transaction(env: VirtualEnvironment, looker: Consumer) -> None:
    """A call that waits for the transaction has a limit, unlike the start of a claim."""
    env.cluster.faults.on("OffsetFetch", times=None).error(ErrorCode.UNSTABLE_OFFSET_COMMIT)
    async with OffsetManager(env.bootstrap_servers, "reports") as offsets:
        for lookup in (lambda: looker.committed("reports", ALL), lambda: offsets.manage(*orders(0))):
            began = now()
            with pytest.raises(BrokerError, match="UNSTABLE_OFFSET_COMMIT"):
                await lookup()
            assert 60.0 <= now() - began <= 63.0


async def test_a_consumer_that_is_not_open(env: VirtualEnvironment) -> None:
    consumer = consumer_of(env)
    for call in (
        consumer.beginning_offsets(ALL),
        consumer.end_offsets(ALL),
        consumer.offsets_for_times({orders(0): 0}),
        consumer.committed("reports"),
    ):
        with pytest.raises(ClosedError):
            await call


async def test_look_ups_create_no_topic() -> None:
    """Found from outside: `end_offsets` of a misspelled topic created it, if the broker creates topics."""
    missing = [("ordres", 0)]
    async with (
        EmbeddedCluster(auto_create_topics=True) as cluster,
        Cluster(cluster.bootstrap_servers) as shared,
    ):
        async with Consumer(shared) as consumer, OffsetManager(shared, "g") as manager:
            for look_up in (
                consumer.end_offsets(missing),
                consumer.beginning_offsets(missing),
                consumer.offsets_for_times({missing[0]: 0}),
                consumer.partitions("ordres"),
                shared.topics(["ordres"]),
                shared.leader(TopicPartition("ordres", 0)),
                manager.manage("ordres", 0),
            ):
                with pytest.raises((OffsetLookupError, BrokerError), match="UNKNOWN_TOPIC_OR_PARTITION"):
                    await look_up
            assert await consumer.topics() == []
            assert await consumer.committed("g", missing) == {}
            wanted = asyncio.ensure_future(consumer.partitions("ordres"))
            await asyncio.sleep(0.05)
            assert await (await consumer.partition("ordres", 0)).aclose() is None, (
                "what is read is created, as in Java"
            )
            assert await wanted == [0], "also while it is looked up"
            assert await consumer.end_offsets(missing) == {missing[0]: 0}
