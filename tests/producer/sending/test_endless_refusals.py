"""Brokers whose answers no attempt can change: requests are repeated with a pause, or the error is raised at once."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgroup.errors import ProtocolError, RequestTimedOut
from tests.producer.support import QUICK, TOPIC, produced, writing
from tests.producer.transactions.support import cluster_with_topics, producer_of


@pytest.mark.parametrize(
    "code", ["OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID", "INVALID_PRODUCER_EPOCH"]
)
async def test_a_broker_that_refuses_every_sequence_number(code: str) -> None:
    async with writing(**{**QUICK, "delivery_timeout": 40.0}) as (cluster, producer):
        await producer.send(TOPIC, b"a", partition=0)
        cluster.faults.on("Produce", times=None).error(code)
        with pytest.raises(RequestTimedOut, match=f"delivery_timeout=40 s, [0-9]+ attempts: .* {code}"):
            await producer.send(TOPIC, b"b", partition=0)
        assert 20 < len(produced(cluster)) < 80
        cluster.faults.clear()
        await producer.send(TOPIC, b"c", partition=0)
        assert producer._inner.memory.used == 0


def without_id(response: Any) -> None:
    response.producer_id = -1


async def test_a_broker_that_returns_no_producer_id() -> None:
    async with writing() as (cluster, producer):
        fault = cluster.faults.on("InitProducerId", times=None).mutate(without_id)
        for _ in range(2):
            with pytest.raises(ProtocolError, match="InitProducerId has the producer id -1"):
                await producer.send(TOPIC, b"a", partition=0)
        fault.cancel()
        await producer.send(TOPIC, b"b", partition=0)


async def test_a_coordinator_that_returns_no_producer_id() -> None:
    async with cluster_with_topics() as cluster:
        cluster.faults.on("InitProducerId").mutate(without_id)
        with pytest.raises(ProtocolError, match=r"'orders-1': .* the producer id -1 and epoch 0"):
            async with producer_of(cluster):
                pass
