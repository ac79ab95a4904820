"""The bridge in a cooperative group, in virtual time: batches of partitions that stay run over a rebalance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asyncgroup import ConsumerGroup
from asyncgroup.spark import ForeachBatch
from asyncgroup.testing import VirtualKafka
from tests.spark.bridge.virtual import (
    CONFIG,
    GROUP,
    IN_VIRTUAL_TIME,
    Sink,
    committed,
    member,
    produce,
    second_joins_in_a_batch,
    until,
)

pytestmark = [pytest.mark.asyncio, *IN_VIRTUAL_TIME]

COOPERATIVE = replace(CONFIG, assignors=("cooperative-sticky",))


def cooperative(kafka: VirtualKafka, sink: Any, **options: Any) -> tuple[ConsumerGroup, ForeachBatch]:
    _, handler = member(kafka, sink, **options)
    return ConsumerGroup(kafka.bootstrap_servers, GROUP, COOPERATIVE), handler


async def test_a_batch_in_a_rebalance_is_neither_cancelled_nor_delivered_again(
    virtual_kafka: VirtualKafka,
) -> None:
    await produce(virtual_kafka, 80)
    sink = Sink(lambda call: 8.0 if call == 1 else 0.1)
    one, other = (cooperative(virtual_kafka, sink, max_rows=20) for _ in range(2))
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
    virtual_kafka: VirtualKafka,
) -> None:
    """The records of partitions that stay are in the next batch; the session goes on."""
    await produce(virtual_kafka, 40)
    sink, other = Sink(lambda call: 1_000.0 if call == 1 else 0.1), Sink()
    first, handler = cooperative(virtual_kafka, sink)
    async with second_joins_in_a_batch((first, handler), cooperative(virtual_kafka, other), sink):
        session = first.session
        await until(lambda: sum(committed(virtual_kafka).values()) == 40)
        assert first.session is session
        assert handler.statistics().interrupted == 1
    assert set(sink.values) | set(other.values) == set(range(40))
    assert len(other.values) == 20, "the partitions that moved, from their start"
    assert [len(batch_id.ranges) for _, batch_id in sink.calls] == [4, 2], "those that stay, again"
