"""Connections that end after each byte of a producer's requests, and of the responses: nothing is lost or written twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import NoBrokersError
from asyncgroup.producer import Producer
from asyncgroup.testing import current_network
from asyncgroup.testing.virtual.connection import Signal
from tests.producer.support import QUICK, TOPIC
from tests.producer.transactions.support import committed, offsets_of
from tests.stories.byte_cuts import ByteCuts, Direction, End

pytestmark = pytest.mark.virtual(max_virtual_time=864_000)

HOST = "10.9.0.1"

Story: TypeAlias = Callable[[EmbeddedCluster], Awaitable[None]]


@contextlib.asynccontextmanager
async def connected(cluster: EmbeddedCluster, **config: Any) -> AsyncIterator[Producer]:
    """Yield a producer; if the only broker does not answer its first request, a caller tries again."""
    settings = ProducerConfig(**{**QUICK, "request_timeout": 5.0, **config})
    for attempt in range(5):
        producer = Producer(cluster.bootstrap_servers, settings, rng=random.Random(attempt))
        with contextlib.suppress(NoBrokersError):
            await producer.__aenter__()
            break
    async with contextlib.aclosing(producer):
        yield producer


async def idempotent(cluster: EmbeddedCluster) -> None:
    """Five records for two partitions, three of them in flight together; each is acknowledged at its place in the log."""
    async with connected(cluster) as producer:
        sends = [producer.send(TOPIC, b"%d" % number, partition=0) for number in range(3)]
        found = [*await asyncio.gather(*sends)]
        found += [
            await producer.send(TOPIC, b"3", partition=0),
            await producer.send(TOPIC, b"4", partition=1),
        ]
    assert [(each.partition, each.offset) for each in found] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    assert [record.value for record in cluster.records(TOPIC, 0)] == [b"0", b"1", b"2", b"3"]
    assert [record.value for record in cluster.records(TOPIC, 1)] == [b"4"]


async def transactional(cluster: EmbeddedCluster) -> None:
    """A transaction with two partitions and offsets, one that is aborted, and another one."""
    async with connected(cluster, transactional_id="tx") as producer:
        async with producer.transaction():
            for number in range(3):
                await producer.enqueue(TOPIC, b"%d" % number, partition=number % 2)
            await producer.send_offsets(offsets_of(next_offset=5))
        assert committed(cluster, 0) == [b"0", b"2"]
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send(TOPIC, b"aborted", partition=0)
                raise ZeroDivisionError
        async with producer.transaction():
            await producer.enqueue(TOPIC, b"3", partition=0)
            await producer.send_offsets(offsets_of(next_offset=6))
    assert committed(cluster) == [b"0", b"2", b"3", b"1"]
    assert [c.offset for tp, c in cluster.group("g").offsets.items()] == [6]


async def told(story: Story, **options: Any) -> None:
    async with EmbeddedCluster(nodes=1, seed=1, **options) as cluster:
        cluster.create_topic(TOPIC, 2)
        cluster.create_topic("input", 1)
        with current_network().source(HOST):
            async with asyncio.timeout(60.0):
                await story(cluster)


SOME = 87
"""Every byte takes two minutes."""


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(SOME, marks=pytest.mark.full),
        pytest.param(1, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
@pytest.mark.parametrize("end", [Signal.EOF, Signal.RESET])
@pytest.mark.parametrize("direction", ["requests", "responses"])
@pytest.mark.parametrize("story", [idempotent, transactional])
async def test_cut_after_each_byte(
    monkeypatch: pytest.MonkeyPatch, story: Story, direction: Direction, end: End, step: int
) -> None:
    """A connection ends; every second time also the next ones, after a few more bytes."""
    rng, cuts = random.Random(1), ByteCuts(monkeypatch, HOST)
    cuts.start(direction)
    await told(story)
    whole = cuts.bytes
    assert whole > 500
    for count, after in enumerate(range(0, whole + 1, step)):
        places = [after, *(rng.randint(1, 500) for _ in range(count % 2 * 3))]
        cuts.start(direction, *places, end=end)
        try:
            await told(story)
        except BaseException as error:
            error.add_note(f"cut after {places} of {whole} bytes of {direction}")
            raise
