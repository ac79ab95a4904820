"""The bridge in cooperative and consumer groups, in virtual time: batches of partitions that stay run over a rebalance."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.spark import ForeachBatch
from asyncgroup.testing import VirtualKafka
from tests.spark.bridge.virtual import (
    CONFIG,
    GROUP,
    IN_VIRTUAL_TIME,
    Sink,
    committed,
    member,
    metadata,
    produce,
    second_joins_in_a_batch,
    until,
)

INCREMENTAL: Final[dict[str, ConsumerConfig]] = {
    "cooperative": replace(CONFIG, assignors=("cooperative-sticky",)),
    "consumer": replace(CONFIG, group_protocol="consumer"),
}

pytestmark = [pytest.mark.parametrize("config", INCREMENTAL.values(), ids=INCREMENTAL), *IN_VIRTUAL_TIME]


def bridged(
    kafka: VirtualKafka, config: ConsumerConfig, sink: Any, **options: Any
) -> tuple[ConsumerGroup, ForeachBatch]:
    _, handler = member(kafka, sink, **options)
    return ConsumerGroup(kafka.bootstrap_servers, GROUP, config), handler


async def test_a_batch_in_a_rebalance_is_neither_cancelled_nor_delivered_again(
    virtual_kafka: VirtualKafka, config: ConsumerConfig
) -> None:
    await produce(virtual_kafka, 80)
    sink = Sink(lambda call: 8.0 if call == 1 else 0.1)
    one, other = (bridged(virtual_kafka, config, sink, max_rows=20) for _ in range(2))
    (first, first_handler), (second, second_handler) = one, other
    async with second_joins_in_a_batch(one, other, sink):
        session = first.session
        await until(lambda: sum(committed(virtual_kafka).values()) == 80)
        assert first.session is session, "the session lasts over the rebalance"
        assert second.session is not None
        assert len(second.session.partitions) == 2
    assert first_handler.statistics().interrupted == second_handler.statistics().interrupted == 0
    starts = [(part.partition, part.start) for _, batch_id in sink.calls for part in batch_id.ranges]
    assert len(set(starts)) == len(starts), "no range was delivered again"
    assert sink.values == list(range(80))


async def test_a_batch_with_records_of_a_partition_that_moves_is_interrupted_at_its_limit(
    virtual_kafka: VirtualKafka, config: ConsumerConfig
) -> None:
    """The records of partitions that stay are in the next batch; the session goes on."""
    await produce(virtual_kafka, 40)
    sink, other = Sink(lambda call: 1_000.0 if call == 1 else 0.1), Sink()
    first, handler = bridged(virtual_kafka, config, sink)
    async with second_joins_in_a_batch((first, handler), bridged(virtual_kafka, config, other), sink):
        session = first.session
        await until(lambda: sum(committed(virtual_kafka).values()) == 40)
        assert first.session is session
        assert handler.statistics().interrupted == 1
    assert set(sink.values) | set(other.values) == set(range(40))
    assert len(other.values) == 20, "the partitions that moved, from their start"
    assert [len(batch_id.ranges) for _, batch_id in sink.calls] == [4, 2], "those that stay, again"


# -- batches of one partition ------------------------------------------------------------------------------------------

STAYS, MOVES = 0, 3
"""The first member keeps 0 and 1 when the second one joins, and gives 2 and 3 away."""


async def produce_to(kafka: VirtualKafka, partition: int, count: int = 10) -> None:
    """Produce records of one partition, so that the first batch has no other."""
    async with Producer(kafka.bootstrap_servers) as producer:
        for number in range(count):
            await producer.enqueue("numbers", b"%d" % number, partition=partition)
        await producer.flush()


def partitions(group: ConsumerGroup) -> set[int]:
    return {tp.partition for tp in group.session.partitions} if group.session is not None else set()


def has_claim(group: ConsumerGroup, partition: int) -> bool:
    return group.session is not None and any(claim.partition == partition for claim in group.session.claims)


def claim_of(group: ConsumerGroup, partition: int) -> Claim:
    assert group.session is not None
    return next(claim for claim in group.session.claims if claim.partition == partition)


def ranges(sink: Sink, partition: int) -> list[tuple[int, int]]:
    every = [part for _, batch_id in sink.calls for part in batch_id.ranges]
    return [(part.start, part.end) for part in every if part.partition == partition]


async def test_a_batch_of_a_partition_that_stays_may_outlast_the_rebalance_timeout(
    virtual_kafka: VirtualKafka, config: ConsumerConfig
) -> None:
    """The second member gets its partitions, and handles them, while the batch runs."""
    await produce_to(virtual_kafka, STAYS)
    sink, other = Sink(lambda call: 50.0 if call == 1 else 0.1), Sink()
    one, two = bridged(virtual_kafka, config, sink), bridged(virtual_kafka, config, other)
    (first, handler), (second, _) = one, two
    async with second_joins_in_a_batch(one, two, sink):
        claim = claim_of(first, STAYS)
        await until(lambda: (partitions(first), partitions(second)) == ({0, 1}, {2, 3}))
        await produce(virtual_kafka, 40, start=10)
        await until(lambda: committed(virtual_kafka) == {2: 10, 3: 10}, limit=30.0)
        assert handler.statistics().running == 0
        assert claim_of(first, STAYS) is claim
        await until(lambda: sum(committed(virtual_kafka).values()) == 50)
        assert handler.statistics().interrupted == 0
    assert sink.calls[1][0] == pytest.approx(sink.calls[0][0] + 50, abs=0.5)
    assert ranges(sink, STAYS) == [(0, 10), (10, 20)]
    assert sorted(sink.values + other.values) == list(range(50))
    assert len(other.values) == 20


async def test_a_batch_of_a_partition_that_moves_is_committed_before_its_next_owner_starts(
    virtual_kafka: VirtualKafka, config: ConsumerConfig
) -> None:
    await produce_to(virtual_kafka, MOVES)
    sink, other = Sink(lambda call: 15.0 if call == 1 else 0.1), Sink()
    one, two = bridged(virtual_kafka, config, sink), bridged(virtual_kafka, config, other)
    (first, handler), (second, _) = one, two
    async with second_joins_in_a_batch(one, two, sink):
        claim = claim_of(first, MOVES)
        await until(lambda: claim.ended)
        await produce(virtual_kafka, 40, start=10)
        await until(lambda: handler.statistics().running is None)
        assert asyncio.get_running_loop().time() == pytest.approx(sink.calls[0][0] + 15, abs=0.5)
        assert metadata(virtual_kafka)[MOVES] == "foreachBatch/1:0@10"
        assert MOVES not in partitions(second)
        await until(lambda: has_claim(second, MOVES))
        assert claim_of(second, MOVES).initial_offset == 10
        await until(lambda: sum(committed(virtual_kafka).values()) == 50)
        assert handler.statistics().interrupted == 0
    assert ranges(sink, MOVES) == [(0, 10)]
    assert ranges(other, MOVES) == [(10, 20)]
    assert sorted(sink.values + other.values) == list(range(50))


async def test_a_batch_of_a_partition_that_moves_is_delivered_again_if_it_takes_too_long(
    virtual_kafka: VirtualKafka, config: ConsumerConfig
) -> None:
    """Its jobs are cancelled before the partition has its next owner; the session goes on, and `run()` raises nothing."""
    await produce_to(virtual_kafka, MOVES)
    sink, other = Sink(lambda call: 1_000.0 if call == 1 else 0.1), Sink()
    one, two = bridged(virtual_kafka, config, sink), bridged(virtual_kafka, config, other)
    (first, handler), (second, _) = one, two
    async with second_joins_in_a_batch(one, two, sink):
        session, claim = first.session, claim_of(first, MOVES)
        await until(lambda: claim.ended)
        began = asyncio.get_running_loop().time()
        await until(lambda: handler.statistics().interrupted == 1)
        assert asyncio.get_running_loop().time() - began < config.rebalance_timeout
        assert MOVES not in partitions(second)
        assert committed(virtual_kafka) == {}
        await produce(virtual_kafka, 40, start=10)
        await until(lambda: sum(committed(virtual_kafka).values()) == 50)
        assert first.session is session
    assert ranges(sink, MOVES) == [(0, 10)]
    assert ranges(other, MOVES)[0][0] == 0
    assert set(range(10)) < set(other.values)
    assert set(sink.values) | set(other.values) == set(range(50))
