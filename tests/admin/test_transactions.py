"""Admin, transactions: listed at all nodes, described with their partitions; hanging ones are found and aborted, live ones spared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup import (
    BrokerError,
    ConfigError,
    ErrorCode,
    Producer,
    ProducerConfig,
    TopicPartition,
    UnsupportedVersionError,
)
from asyncgroup.admin import Admin, HangingTransaction, ProducerDescription
from asyncgroup.admin.hanging import hanging, long_open, still_open
from asyncgroup.errors import TransportError
from asyncgroup.wire import messages as m
from tests.broker.batches import append
from tests.broker.internals import log_of
from tests.broker.transactional import transactional
from tests.stories.holding import limit_version
from tests.stories.virtual import VirtualEnvironment

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
MISSING = TopicPartition("orders", 99)


def code(error: object) -> int:
    assert isinstance(error, BrokerError)
    return error.code


@asynccontextmanager
async def transaction(env: VirtualEnvironment, *partitions: int, name: str = "tx") -> AsyncIterator[Producer]:
    """Write a record to each partition in a transaction, which is open in the block and committed after it."""
    config = ProducerConfig(transactional_id=name)
    async with Producer(env.bootstrap_servers, config) as producer:
        async with producer.transaction():
            for partition in partitions:
                await producer.send("orders", b"x", partition=partition)
            yield producer


def hang(env: VirtualEnvironment, tp: TopicPartition, producer_id: int = 9) -> None:
    """Write a record of 1970 in a transaction that no coordinator knows."""
    append(log_of(env.cluster, *tp), transactional(b"x", producer_id=producer_id, epoch=3), 0)


async def test_an_open_transaction_is_listed_and_described(admin: Admin, env: VirtualEnvironment) -> None:
    assert not (await admin.transactions.list()).raise_first()
    async with transaction(env, 1, 0):
        await asyncio.sleep(2)
        (listed,) = (await admin.transactions.list(states=["Ongoing"])).raise_first()
        coordinator = env.cluster.transaction_coordinator("tx")
        assert (listed.transactional_id, listed.coordinator, listed.state) == (
            "tx",
            coordinator,
            "Ongoing",
        )
        described = (await admin.transactions.describe(["tx", "none"])).values_by_name["tx"]
        assert (described.coordinator, described.state) == (coordinator, "Ongoing")
        assert (described.timeout, described.partitions) == (60.0, (ZERO, ONE))
        assert described.producer_id == listed.producer_id
        now = asyncio.get_running_loop().wall_clock()  # type: ignore[attr-defined]
        assert described.start_timestamp is not None
        assert abs(now - described.start_timestamp) < 3_600_000  # the broker has its own clock
        (producer,) = (await admin.transactions.producers([ZERO])).raise_first()[ZERO]
        assert (producer.producer_id, producer.producer_epoch) == (
            described.producer_id,
            described.producer_epoch,
        )
        assert producer.current_transaction_start_offset == 0
        assert producer.coordinator_epoch is None
    (listed,) = (await admin.transactions.list()).raise_first()
    assert listed.state == "CompleteCommit"
    described = (await admin.transactions.describe(["tx"])).raise_first()["tx"]
    assert (described.state, described.partitions) == ("CompleteCommit", ())
    (producer,) = (await admin.transactions.producers([ZERO])).raise_first()[ZERO]
    assert producer.current_transaction_start_offset is None
    assert producer.coordinator_epoch is not None


async def test_filters(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin, transaction(env, 0, name="a-1"):
        await asyncio.sleep(5)
        async with transaction(env, 1, name="b-1"):

            async def names(**filters: Any) -> list[str]:
                found = (await admin.transactions.list(**filters)).raise_first()
                return [each.transactional_id for each in found]

            assert await names() == ["a-1", "b-1"]
            assert await names(longer_than=3.0) == ["a-1"]
            assert await names(pattern="b-.*") == ["b-1"]
            assert await names(states=["Empty"]) == []
            (one,) = (await admin.transactions.list(pattern="a-1")).raise_first()
            assert await names(producer_ids=[one.producer_id]) == ["a-1"]


async def test_a_broker_that_lacks_a_filter_says_so(env: VirtualEnvironment) -> None:
    limit_version(env.cluster, m.ListTransactionsRequest.API_KEY, 0)
    async with Admin(env.bootstrap_servers) as admin:
        assert not (await admin.transactions.list(states=["Ongoing"])).errors
        for filters, text in ({"longer_than": 1.0}, "Kafka 3.8"), ({"pattern": "a"}, "Kafka 4.1"):
            found = await admin.transactions.list(**filters)  # type: ignore[arg-type]
            assert sorted(found.errors) == [1, 2, 3]
            with pytest.raises(UnsupportedVersionError, match=text):
                found.raise_first()


async def test_a_silent_and_a_dead_node_cost_the_others_nothing(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin, transaction(env, 0):
        silent, dead = (n for n in (1, 2, 3) if n != env.cluster.transaction_coordinator("tx"))
        env.cluster.faults.on("ListTransactions", node=silent, times=None).drop()
        env.cluster.faults.on("ListTransactions", node=dead, times=None).disconnect()
        begun = asyncio.get_running_loop().time()
        found = await admin.transactions.list()
        assert asyncio.get_running_loop().time() - begun <= 5.1
        assert [each.transactional_id for each in found.transactions] == ["tx"]
        assert sorted(found.errors) == sorted([silent, dead])
        assert all(isinstance(error, TransportError) for error in found.errors.values())


async def test_a_silent_leader_costs_the_others_nothing(env: VirtualEnvironment) -> None:
    partitions = [TopicPartition("orders", n) for n in range(4)]
    silent = env.cluster.leader("orders", 0)
    env.cluster.faults.on("DescribeProducers", node=silent, times=None).drop()
    async with Admin(env.bootstrap_servers) as admin:
        begun = asyncio.get_running_loop().time()
        found = await admin.transactions.producers(partitions)
        assert asyncio.get_running_loop().time() - begun <= 5.1
        assert set(found.errors) == {tp for tp in partitions if env.cluster.leader(*tp) == silent}
        assert set(found.values_by_name) == set(partitions) - set(found.errors)
        searched = await admin.transactions.find_hanging(topics=["orders"])
        assert set(searched.errors) == set(found.errors)


async def test_an_id_that_two_nodes_list_is_listed_where_it_is_alive(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin, transaction(env, 0):
        coordinator = env.cluster.transaction_coordinator("tx")
        others = [n for n in (1, 2, 3) if n != coordinator]
        (listed,) = (await admin.transactions.list()).raise_first()

        def stale(response: Any) -> Any:
            row = type(response).TransactionState("tx", listed.producer_id, "CompleteCommit")
            response.transaction_states.append(row)
            return response

        for node in others:
            env.cluster.faults.on("ListTransactions", node=node).mutate(stale)
        assert (await admin.transactions.list()).raise_first() == (listed,)


async def test_each_name_has_its_own_error(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin, transaction(env, 0):
        described = await admin.transactions.describe(["tx", "none"])
        assert list(described.values_by_name) == ["tx"]
        assert code(described["none"]) == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        other = TopicPartition("nothing", 0)
        found = await admin.transactions.producers([ZERO, MISSING, other])
        assert list(found.values_by_name) == [ZERO]
        for tp in (MISSING, other):
            assert code(found[tp]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_replica_describes_its_producers(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("alone", 1, replication_factor=1)
    tp = TopicPartition("alone", 0)
    append(log_of(env.cluster, *tp), transactional(b"x", producer_id=9), 0)
    leader = env.cluster.leader("alone", 0)
    async with Admin(env.bootstrap_servers, timeout=1.0) as admin:
        found = (await admin.transactions.producers([tp], broker=leader)).raise_first()
        assert [each.producer_id for each in found[tp]] == [9]
        refused = await admin.transactions.producers([tp], broker=leader % 3 + 1)
        assert code(refused[tp]) == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_hanging_transaction_is_found_and_aborted_and_a_live_one_is_spared(
    env: VirtualEnvironment,
) -> None:
    async with Admin(env.bootstrap_servers) as admin, transaction(env, 0):
        hang(env, ONE)
        assert not (await admin.transactions.find_hanging(partitions=[ZERO])).raise_first()
        for scope in (
            {"topics": ["orders"]},
            {"partitions": [ONE]},
            {"broker": env.cluster.leader("orders", 1)},
            {},
        ):
            (found,) = (await admin.transactions.find_hanging(**scope)).raise_first()  # type: ignore[arg-type]
            assert (found.partition, found.producer_id, found.producer_epoch) == (ONE, 9, 3)
            assert (found.start_offset, found.last_timestamp, found.transactional_id) == (0, 1000, None)
            assert found.duration > 1e9  # written in 1970
        assert env.cluster.partition("orders", 1).last_stable_offset == 0
        await admin.transactions.abort_at(found.partition, found.start_offset)
        assert env.cluster.partition("orders", 1).last_stable_offset == 2
        assert not (await admin.transactions.find_hanging()).raise_first()
        assert env.cluster.transactions["tx"].state == "Ongoing"
        # nothing is long open that Kafka's own limit of 15 minutes allows
        assert not (await admin.transactions.find_hanging(topics=["orders"])).transactions


async def test_a_producer_id_that_a_coordinator_knows_hangs_where_it_will_write_no_marker(
    env: VirtualEnvironment,
) -> None:
    async with Admin(env.bootstrap_servers) as admin, transaction(env, 0):
        (described,) = (await admin.transactions.describe(["tx"])).raise_first().values()
        hang(env, ONE, described.producer_id)
        await asyncio.sleep(1)
        found = await admin.transactions.find_hanging(topics=["orders"], max_transaction_timeout=0.0)
        assert [(each.partition, each.transactional_id) for each in found.raise_first()] == [(ONE, "tx")]


async def test_a_transaction_that_ends_during_the_search_did_not_hang(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        hang(env, ONE)
        env.cluster.faults.on("ListTransactions", node=1).delay(1.0)
        search = asyncio.create_task(admin.transactions.find_hanging(topics=["orders"]))
        await asyncio.sleep(0.5)
        async with Admin(env.bootstrap_servers) as other:
            await other.transactions.abort_at(ONE, 0)
        assert not (await search).raise_first()


async def test_a_stale_listing_with_another_producer_id_makes_no_transaction_hang(
    env: VirtualEnvironment,
) -> None:
    def stale(response: Any) -> Any:
        response.transaction_states.append(type(response).TransactionState("tx", 77, "Ongoing"))
        return response

    async with Admin(env.bootstrap_servers) as admin, transaction(env, 0):
        await asyncio.sleep(1)
        for node in (1, 2, 3):
            if node != env.cluster.transaction_coordinator("tx"):
                env.cluster.faults.on("ListTransactions", node=node).mutate(stale)
        found = await admin.transactions.find_hanging(topics=["orders"], max_transaction_timeout=0.0)
        assert not found.raise_first()


async def test_a_silent_coordinator_makes_no_transaction_hang(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers, timeout=5.0) as admin, transaction(env, 0):
        await asyncio.sleep(1)
        coordinator = env.cluster.transaction_coordinator("tx")
        env.cluster.faults.on("ListTransactions", node=coordinator, times=None).drop()
        with pytest.raises(TransportError):
            await admin.transactions.find_hanging(topics=["orders"], max_transaction_timeout=0.0)


async def test_a_partition_that_cannot_be_searched_is_an_error_of_its_own(env: VirtualEnvironment) -> None:
    async with Admin(env.bootstrap_servers) as admin:
        hang(env, ONE)
        found = await admin.transactions.find_hanging(partitions=[ONE, MISSING])
        assert [each.partition for each in found.transactions] == [ONE]
        assert code(found.errors[MISSING]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(BrokerError, match="producers of topic 'nothing': UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.transactions.find_hanging(topics=["nothing"])


async def test_an_abort_follows_its_leader(admin: Admin, env: VirtualEnvironment) -> None:
    hang(env, ONE)
    (found,) = (await admin.transactions.producers([ONE])).raise_first()[ONE]
    env.cluster.move_leader("orders", 1, env.cluster.leader("orders", 1) % 3 + 1)
    env.cluster.faults.on("WriteTxnMarkers").disconnect("after")  # a marker repeated changes nothing
    await admin.transactions.abort(
        ONE,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        coordinator_epoch=found.coordinator_epoch,
    )
    assert not (await admin.transactions.find_hanging(topics=["orders"])).raise_first()


async def test_an_abort_is_refused_by_name(admin: Admin, env: VirtualEnvironment) -> None:
    with pytest.raises(ConfigError, match=r"start_offset=7 .* transaction of orders-0; none is open"):
        await admin.transactions.abort_at(ZERO, 7)
    hang(env, ZERO)
    with pytest.raises(ConfigError, match="transaction of orders-0; open from 0"):
        await admin.transactions.abort_at(ZERO, 7)
    with pytest.raises(
        BrokerError, match=r"transaction of producer id 9 in orders-0: INVALID_PRODUCER_EPOCH"
    ):
        await admin.transactions.abort(ZERO, producer_id=9, producer_epoch=2)
    for call in (
        admin.transactions.abort_at(MISSING, 0),
        admin.transactions.abort(MISSING, producer_id=9, producer_epoch=2),
    ):
        with pytest.raises(BrokerError, match="orders-99: UNKNOWN_TOPIC_OR_PARTITION"):
            await call


async def test_bad_arguments(admin: Admin, env: VirtualEnvironment) -> None:
    calls: list[tuple[str, Any]] = [
        ("state='open' .*Ongoing", admin.transactions.list(states=["open"])),
        ("state='open' .*Ongoing", admin.transactions.list(states="open")),
        ("producer_id=-1", admin.transactions.list(producer_ids=[-1])),
        ("longer_than=-1", admin.transactions.list(longer_than=-1)),
        ("pattern=''", admin.transactions.list(pattern="")),
        ("transactional_id=''", admin.transactions.describe([""])),
        ("transactional_id=''", admin.transactions.describe("")),
        ("partition", admin.transactions.producers([("orders", -1)])),  # type: ignore[list-item]
        ("broker=-1", admin.transactions.producers([ZERO], broker=-1)),
        ("max_transaction_timeout=-1", admin.transactions.find_hanging(max_transaction_timeout=-1)),
        ("topic='no/topic'", admin.transactions.find_hanging(topics="no/topic")),
        ("offset=-1", admin.transactions.abort_at(ZERO, -1)),
        ("producer_id=-1", admin.transactions.abort(ZERO, producer_id=-1, producer_epoch=0)),
        ("producer_epoch=32768", admin.transactions.abort(ZERO, producer_id=1, producer_epoch=32768)),
        (
            "coordinator_epoch=-1",
            admin.transactions.abort(ZERO, producer_id=1, producer_epoch=0, coordinator_epoch=-1),
        ),
    ]
    for text, call in calls:
        with pytest.raises(ConfigError, match=text):
            await call
    apis = ("ListTransactions", "DescribeTransactions", "DescribeProducers", "WriteTxnMarkers")
    assert not env.cluster.history.of(*apis)


# --- judgement, without a broker ------------------------------------------------------------------------------------------


def opened(start: int | None, last: int = 0, producer_id: int = 1) -> ProducerDescription:
    return ProducerDescription(producer_id, 0, 0, last, None, start)


async def test_only_open_transactions_beyond_the_limit_are_candidates() -> None:
    known = {ZERO: [opened(None), opened(5, 1000)], ONE: [opened(6, 1001)]}
    assert [each.start_offset for each in long_open(known, 11_000, 10.0)] == []
    assert [each.start_offset for each in long_open(known, 11_001, 10.0)] == [5]
    assert [each.duration for each in long_open(known, 21_000, 10.0)] == [20.0, 19.999]


async def test_a_candidate_is_alive_only_where_its_coordinator_names_the_partition() -> None:
    candidates = [HangingTransaction(tp, 1, 0, None, 5, 0, 1.0) for tp in (ZERO, ONE)]
    assert hanging(candidates, {1: "a"}, {"a": [ZERO, ONE]}) == []
    assert [each.partition for each in hanging(candidates, {1: "a"}, {"a": [ZERO]})] == [ONE]
    assert len(hanging(candidates, {1: "a"}, {})) == 2  # the id was forgotten after it was listed
    assert len(hanging(candidates, {2: "a"}, {"a": [ZERO, ONE]})) == 2


async def test_only_the_same_open_transaction_counts_at_the_later_look() -> None:
    found = [HangingTransaction(ZERO, 1, 0, None, 5, 0, 1.0)]
    assert still_open(found, {ZERO: [opened(5)]}) == found
    for later in (
        {ZERO: [opened(6)]},
        {ZERO: [opened(5, producer_id=2)]},
        {ZERO: [opened(None)]},
        {ONE: [opened(5)]},
        {},
    ):
        assert still_open(found, later) == []  # type: ignore[arg-type]
