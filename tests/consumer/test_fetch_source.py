"""FetchSource: topic ids, leader epochs, and the lease of the preferred read replica."""

from __future__ import annotations

import uuid

import pytest

from asyncgroup.cluster.metadata import PartitionInfo
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_state import Budget, FetchSource
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.wire.messages import NO_UUID

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)
LEADER, FOLLOWER = 1, 2


def info(epoch: int = 5, replicas: tuple[int, ...] = (LEADER, FOLLOWER)) -> PartitionInfo:
    return PartitionInfo(0, LEADER, epoch, replicas)


def preferring() -> FetchSource:
    source = FetchSource()
    source.update_preferred_replica(FOLLOWER, 10.0)
    return source


@pytest.mark.parametrize(
    ("now", "known", "may"),
    [
        (9.9, info(), True),
        (10.0, info(), False),
        (9.9, info(replicas=(LEADER, 3)), False),
        (9.9, None, False),
    ],
    ids=["within the lease", "the lease is over", "not a replica", "no metadata"],
)
def test_the_preferred_replica_is_used_within_its_lease(
    now: float, known: PartitionInfo | None, may: bool
) -> None:
    assert preferring().may_read_replica(now, known) is may


def test_the_preferred_replica_can_be_cleared_once() -> None:
    source = preferring()
    assert source.clear_preferred_replica()
    assert not source.clear_preferred_replica()
    assert not source.may_read_replica(0.0, info())


def make_partition() -> TopicPartitionState:
    return TopicPartitionState(TopicPartition("t", 0), 0, ConsumerConfig(), Budget(1, 1), Hooks())


def test_the_first_topic_id_is_adopted_and_another_one_is_a_recreated_topic() -> None:
    partition = make_partition()
    assert partition.adopt_topic_id(NO_UUID)
    assert partition.adopt_topic_id(OLD)
    assert partition.adopt_topic_id(OLD)
    assert partition.adopt_topic_id(NO_UUID), "old brokers have no topic ids in metadata"
    assert not partition.adopt_topic_id(NEW)
    partition.fetch_source.forget()
    assert partition.adopt_topic_id(NEW)


def test_the_listener_is_told_the_adopted_id() -> None:
    reported: list[uuid.UUID] = []
    partition = make_partition()
    partition.listener.on_topic_id = reported.append  # type: ignore[method-assign]
    for topic_id in (NO_UUID, OLD, OLD, NEW):
        partition.adopt_topic_id(topic_id)
    assert reported == [OLD]
    partition.fetch_source.forget()
    partition.adopt_topic_id(NEW)
    assert reported == [OLD, NEW]


@pytest.mark.parametrize(
    ("fetched", "valid", "leader", "must"),
    [
        (-1, -1, 5, False),
        (5, -1, 5, False),
        (4, -1, 5, True),
        (4, 5, 5, False),
        (4, 5, 6, True),
        (6, -1, 5, False),
    ],
)
def test_only_a_leader_of_a_later_epoch_has_to_validate(
    fetched: int, valid: int, leader: int, must: bool
) -> None:
    source = FetchSource()
    source.validated_epoch = valid
    assert source.must_validate(fetched, info(leader)) is must
    assert not source.must_validate(fetched, None)
