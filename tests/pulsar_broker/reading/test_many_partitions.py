"""Consumers of many partitions and topics: requests, tasks and timers for each, at the start, after a reconnect and as topics come and go."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import pytest

from asyncgroup.pulsar import PulsarTopicConsumer
from asyncgroup.pulsar.consumer.receiving.permits import PermitLedger
from asyncgroup.pulsar_broker import EmbeddedPulsar
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.support import early, embedded

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

FEW, MANY = 40, 100

EACH = {"LookupTopic": FEW, "Subscribe": FEW}
"""Requests of a connection for its partitions."""


def requests(pulsar: EmbeddedPulsar, *apis: str) -> Counter[str]:
    """Return how often clients have sent these commands since the last call."""
    found = Counter(each.api for each in pulsar.history.of(*apis))
    pulsar.history.clear()
    return found


APIS = ("LookupTopic", "Subscribe", "GetLastMessageId", "Flow", "Ack", "CloseConsumer")


async def test_a_reader_at_the_end_asks_once_where_that_is() -> None:
    """A reader that has received nothing has no other way to know where its partition begins after a reconnect."""
    async with embedded(topics={"t": FEW}) as (pulsar, client):
        async with client.reader("t", "latest") as reader:
            await asyncio.sleep(1)
            assert requests(pulsar, *APIS) == EACH | {"GetLastMessageId": FEW, "Flow": FEW}
            for _ in range(2):
                runtime_of(pulsar).nodes[1].cut()
                await asyncio.sleep(10)
                assert requests(pulsar, *APIS) == EACH | {"Flow": FEW}, "the answers are known"
            assert len(asyncio.all_tasks()) < FEW + 20
            for number in range(FEW):
                pulsar.produce("t", b"x", partition=number)
            for _ in range(FEW):
                await reader.read()
            requests(pulsar)
            runtime_of(pulsar).nodes[1].cut()
            await asyncio.sleep(10)
            assert requests(pulsar, *APIS) == EACH | {"Flow": FEW, "Ack": FEW}
        assert requests(pulsar, *APIS) == {"CloseConsumer": FEW}


async def test_topics_that_come_one_by_one_change_the_limits_of_few_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each topic has its share of the queue, which is computed for many at once."""
    shares = 0
    share = PermitLedger.share

    def counted(ledger: PermitLedger, size: int, max_bytes: int | None) -> None:
        nonlocal shares
        shares += 1
        share(ledger, size, max_bytes)

    monkeypatch.setattr(PermitLedger, "share", counted)
    async with embedded(topics={f"p{number}": 0 for number in range(MANY)}) as (pulsar, client):
        config = early(max_total_receiver_queue_size=10 * MANY)
        async with client.subscribe(re.compile("p.*"), "s", type="shared", config=config) as consumer:
            await asyncio.sleep(5)
            shares = 0
            for number in range(20):
                pulsar.create_topic(f"p-{number}")
                await asyncio.sleep(1)
            assert sum(sizes(consumer)) <= 10 * MANY
            assert len(consumer.topics) == len(sizes(consumer)) == MANY + 20
            for number in range(20):
                pulsar.delete_topic(f"p-{number}")
                await asyncio.sleep(1)
            assert shares < 12 * MANY
            assert 9 * MANY < sum(sizes(consumer)) <= 10 * MANY


def sizes(consumer: PulsarTopicConsumer) -> list[int]:
    return [part.permits.size for part in consumer.partitions]
