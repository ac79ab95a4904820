"""Invariants of coordinators: acknowledged offsets are in the log, and assignments of a generation don't overlap."""

from __future__ import annotations

from collections import defaultdict

from asyncgroup import TopicPartition
from asyncgroup.broker.groups.store.replayed import ReplayedPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import decode_versioned
from tests.broker.internals import controller_of, log_of
from tests.stories.virtual import VirtualEnvironment

__all__ = ["OFFSETS", "check_acknowledged_offsets", "check_generations", "offsets_partition_of"]

OFFSETS = "__consumer_offsets"


def offsets_partition_of(env: VirtualEnvironment) -> int:
    """Return the partition of `__consumer_offsets` that stores the group."""
    return controller_of(env.cluster).coordinators.offsets_partition(env.group_id)


def acknowledged(env: VirtualEnvironment) -> dict[TopicPartition, int]:
    """Return the highest offset of each partition that a coordinator has acknowledged."""
    found: dict[TopicPartition, int] = {}
    names = {topic.id: name for name, topic in controller_of(env.cluster).topics.items()}
    for exchange in env.cluster.history.of("OffsetCommit"):
        if exchange.response is None:
            continue
        for asked, answered in zip(exchange.request.topics, exchange.response.topics, strict=True):
            name = asked.name or names[asked.topic_id]
            for place, result in zip(asked.partitions, answered.partitions, strict=True):
                if not result.error_code:
                    tp = TopicPartition(name, place.partition_index)
                    found[tp] = max(found.get(tp, 0), place.committed_offset)
    return found


def check_acknowledged_offsets(env: VirtualEnvironment) -> None:
    """Check that acknowledged offsets are in the log, even if the current coordinator has not loaded them yet."""
    place = offsets_partition_of(env)
    log = log_of(env.cluster, OFFSETS, place)
    replayed = ReplayedPartition(place)
    replayed.replay(log.read(log.start_offset, 1 << 30, at_least_one=True))
    kept = replayed.offsets(env.group_id)
    for tp, offset in acknowledged(env).items():
        assert kept[tp].offset >= offset


def check_generations(env: VirtualEnvironment) -> None:
    """Check that no partition was assigned to two members in one generation, also if several nodes answered them."""
    given: dict[int, dict[TopicPartition, str]] = defaultdict(dict)
    for exchange in env.cluster.history.of("SyncGroup"):
        response = exchange.response
        if response is None or response.error_code or not response.assignment:
            continue
        assignment = decode_versioned(m.ConsumerProtocolAssignment, response.assignment)
        for topic in assignment.assigned_partitions:
            for number in topic.partitions:
                owners = given[exchange.request.generation_id]
                owner = owners.setdefault(TopicPartition(topic.topic, number), exchange.request.member_id)
                assert owner == exchange.request.member_id, (exchange.line(), owner)
