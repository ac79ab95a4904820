"""Truncation (KIP-320) and follower fetching (KIP-392) in the embedded cluster."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.log.partition_log import PartitionLog
from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.broker.metadata.replicas import preferred_replica
from asyncgroup.broker.metadata.topics import Partition
from asyncgroup.errors import UsageError
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import append
from tests.broker.internals import partition_in
from tests.profiles import examples


def a_batch(records: int, value: bytes = b"v") -> bytes:
    builder = BatchBuilder("none", 1 << 30)
    for _ in range(records):
        assert builder.append(1000, b"k", value)
    return builder.build()


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12), cut=st.integers(0, 50), more=st.integers(0, 5)
)
@settings(max_examples=examples(100), deadline=None)
def test_a_truncated_log_equals_one_that_was_never_longer(sizes: list[int], cut: int, more: int) -> None:
    log, expected = PartitionLog("t", 0), PartitionLog("t", 0)
    log.start_epoch(0)
    expected.start_epoch(0)
    end, whole = 0, True
    for size in sizes:
        append(log, a_batch(size, b"x" * 3000), 0)
        whole = whole and end + size <= cut
        if whole:
            append(expected, a_batch(size, b"x" * 3000), 0)
        end += size
    handed_out = log.read(0, 1 << 30)
    before = bytes(handed_out)
    log.truncate(cut)
    for each in (log, expected):
        each.start_epoch(1)
        for _ in range(more):
            append(each, a_batch(2, b"y" * 3000), 1)
    assert bytes(handed_out) == before, "data that a fetch has returned does not change"
    assert (log.end_offset, log.size, log.epochs) == (expected.end_offset, expected.size, expected.epochs)
    assert [bytes(r.value or b"") for r in read_records(log)] == [
        bytes(r.value or b"") for r in read_records(expected)
    ]
    for offset in range(log.end_offset + 1):
        assert log.bytes_from(offset) == expected.bytes_from(offset)
        assert log.read(offset, 1, at_least_one=True) == expected.read(offset, 1, at_least_one=True)
    for epoch in (0, 1, 2):
        assert log.end_offset_for_epoch(epoch) == expected.end_offset_for_epoch(epoch)


def test_truncation_resets_producer_state(log: PartitionLog) -> None:
    def numbered(first: int) -> bytes:
        builder = BatchBuilder("none", 1 << 30, producer_id=7, producer_epoch=0, base_sequence=first)
        assert builder.append(1000, b"k", b"v")
        return builder.build()

    for sequence in range(3):
        append(log, numbered(sequence), 0)
    log.truncate(1)
    assert append(log, numbered(1), 1) == (1, 1, False, 1000), "it is not a duplicate any more"
    assert append(log, numbered(0), 1).duplicate


@pytest.mark.parametrize(
    ("rack", "leader", "alive", "expected"),
    [
        ("b", 1, {1, 2, 3}, 2),
        ("a", 1, {1, 2, 3}, -1),
        ("b", 1, {1, 3}, -1),
        ("c", 1, {1, 2, 3}, 3),
        ("c", 4, {1, 2, 3, 4}, -1),
        ("nowhere", 1, {1, 2, 3}, -1),
    ],
)
def test_the_replica_in_the_rack_is_preferred(rack: str, leader: int, alive: set[int], expected: int) -> None:
    partition = Partition("t", 0, [1, 2, 3, 4], leader)
    assert preferred_replica(partition, rack, {1: "a", 2: "b", 3: "c", 4: "c"}, alive) == expected


async def test_a_truncation_starts_a_new_leader_epoch() -> None:
    async with EmbeddedCluster(2, host="10.0.0.1", seed=1, racks=("a", None)) as cluster:
        cluster.create_topic("t", 1)
        partition = partition_in(cluster, "t", 0)
        for _ in range(5):
            append(partition.log, a_batch(1), partition.leader_epoch)
        leader, epoch = partition.leader, partition.leader_epoch
        cluster.truncate("t", 0, 3)
        assert (partition.leader, partition.leader_epoch, partition.log.end_offset) == (leader, epoch + 1, 3)
        assert partition.log.end_offset_for_epoch(epoch) == (epoch, 3)
        cluster.truncate("t", 0, 3, leader=3 - leader)
        assert (partition.leader, partition.log.end_offset) == (3 - leader, 3)
        with pytest.raises(UsageError, match="node 9 is not running"):
            cluster.truncate("t", 0, 0, leader=9)
        assert [node.rack for node in cluster.nodes.values()] == ["a", None]


def test_responses_contain_racks() -> None:
    assert m.MetadataResponse.MetadataResponseBroker(1, "h", 2, "a").rack == "a"
    assert m.DescribeClusterResponse.DescribeClusterBroker(1, "h", 2, "a").rack == "a"
