"""Public spellings, as a type checker sees them: sequences, names and plain values, without `type: ignore`.

What they mean is tested with each class; the changelog has the table of former spellings.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from asyncgroup import (
    Claim,
    ClientConfig,
    CommittedOffset,
    Consumer,
    ConsumerConfig,
    ConsumerGroup,
    GroupOffsets,
    Interceptor,
    OffsetManager,
    Plain,
    Producer,
    ProducerConfig,
    ProducerRecord,
    Record,
    Security,
    Session,
    ThreadClaim,
    Tls,
    TopicPartition,
    in_thread,
)
from asyncgroup.admin import AckWindowLag
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.consumer import PartitionConsumer
from asyncgroup.group import ClaimHealth, RangeAssignor
from asyncgroup.offsets.manager import PartitionOffsets
from asyncgroup.workqueue import DeliveryState, PartitionStatistics, QueueStatistics

SERVERS = "127.0.0.1:9092"
TP = TopicPartition("orders", 0)


def test_configurations() -> None:
    assert [
        config.effective_assignors
        for config in (
            ConsumerConfig(assignors="sticky"),
            ConsumerConfig(assignors=["sticky"]),
            ConsumerConfig(assignors=("sticky",)),
        )
    ] == [("sticky",)] * 3
    ConsumerConfig(assignors=RangeAssignor())
    ConsumerConfig(assignors=["sticky", RangeAssignor()])
    for config in (ProducerConfig(acks=-1), ProducerConfig(acks="-1"), ProducerConfig(acks="all")):
        assert config == ProducerConfig()
    assert ProducerConfig(acks="1") == ProducerConfig(acks=1)
    ClientConfig(metadata_retry_backoff=0.5)
    ConsumerConfig(fetch_retry_backoff=lambda failures: 0.1 * failures)


def test_security() -> None:
    context = ssl.create_default_context()
    assert Security(tls=True, sasl=Plain("u", "p")) == Security(tls=Tls(), sasl=Plain("u", "p"))
    assert Security(tls=False) == Security()
    assert Security(tls=context) == Security(tls=Tls(context=context))
    made = Security(tls=True).tls
    assert made is not None
    assert made.check_hostname


async def test_servers_and_interceptors() -> None:
    class Both(Interceptor):
        def on_consume(self, record: Record) -> None:
            del record

    def count(record: Record) -> None:
        del record

    def tag(record: ProducerRecord) -> ProducerRecord:
        return record

    both = Both()
    ConsumerGroup([SERVERS], "g", interceptors=[both, count])
    Consumer((SERVERS, SERVERS), interceptors=[count, both])
    Producer([SERVERS], interceptors=[tag, both])
    OffsetManager([SERVERS], "g")


async def test_partitions() -> None:
    group = ConsumerGroup(SERVERS, "g")
    group.pause(TP)
    group.pause(("orders", 0))
    group.pause([TP, ("orders", 1)])
    group.resume({TP: 5})


@pytest.mark.virtual
async def test_offsets_by_partition() -> None:
    """Mappings by TopicPartition and by (topic, partition): the key of a Mapping is invariant for a type checker."""
    by_partition = {TP: 1}
    by_tuple = {("orders", 0): 1}
    now = datetime.now(UTC)
    times: tuple[Mapping[Any, Any], ...]
    async with EmbeddedCluster(topics="orders") as cluster:
        cluster.commit("billing", by_partition)
        cluster.commit("billing", by_tuple)
        async with Consumer(cluster.bootstrap_servers) as consumer:
            await consumer.offsets_for_times(by_partition)
            await consumer.offsets_for_times(by_tuple)
            await consumer.offsets_for_times({TP: now})
            assert await consumer.end_offsets(TP) == await consumer.end_offsets(("orders", 0)) == {TP: 0}
            assert await consumer.committed("billing", TP) == {TP: CommittedOffset(1)}
        async with OffsetManager(cluster.bootstrap_servers, "billing") as offsets:
            assert await offsets.fetch(("orders", 0)) == {TP: CommittedOffset(1)}
            assert list(await offsets.manage_all(TP)) == [TP]
        async with Producer(cluster.bootstrap_servers) as producer:
            await producer.enqueue_all(
                [ProducerRecord("orders", b"x"), ("orders", b"y", None, (), None, None)]
            )
            await producer.flush()
        assert len(cluster.records("orders")) == 2
    times = (GroupOffsets("g", by_partition).offsets, GroupOffsets("g", by_tuple).offsets)
    assert times == ({TP: CommittedOffset(1)}, {TP: CommittedOffset(1)})


@pytest.mark.parametrize("cls", [Claim, PartitionConsumer, ClaimHealth, Consumer])
def test_the_former_name_of_the_high_watermark_names_the_new_one(cls: type) -> None:
    plural = "s" if cls is Consumer else ""
    assert hasattr(cls, f"high_watermark{plural}")
    with pytest.raises(AttributeError, match=rf"here it is: (\w+\.)?high_watermark{plural}\b"):
        getattr(cls, f"high_water_mark{plural}")


@pytest.mark.parametrize(
    ("place", "former", "new"),
    [
        (PartitionOffsets, "mark", "mark_offset"),
        (PartitionOffsets, "reset", "reset_offset"),
        (QueueStatistics, "in_hand", "acquired"),
        (PartitionStatistics, "in_hand", "acquired"),
        (DeliveryState, "IN_HAND", "ACQUIRED"),
        (AckWindowLag, "done", "acked_above"),
    ],
)
def test_a_former_name_names_the_new_one(place: type, former: str, new: str) -> None:
    assert hasattr(place, new)
    with pytest.raises(AttributeError, match=rf"here it is: (\w+\.)?{new}\b") as raised:
        getattr(place, former)
    assert raised.value.name == former


def test_threads() -> None:
    def consume(session: Session, claim: ThreadClaim) -> None:
        del session, claim

    handler = in_thread(consume)
    assert repr(handler).startswith("<in_thread(<function")
