"""What coordinators have promised and what is kept of it: offsets that were acknowledged, assignments that were given out."""

from __future__ import annotations

from collections import defaultdict

from asyncgroup import TopicPartition
from asyncgroup.broker.coordinator.replayed import ReplayedPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.versioned import decode_versioned
from tests.stories.virtual import VirtualEnvironment

__all__ = ["OFFSETS", "check_acknowledged_offsets", "check_generations", "offsets_partition_of"]

OFFSETS = "__consumer_offsets"


def offsets_partition_of(env: VirtualEnvironment) -> int:
    """The partition of `__consumer_offsets` where the group lives."""
    return env.cluster.nodes[1].controller.coordinators.offsets_partition(env.group_id)


def acknowledged(env: VirtualEnvironment) -> dict[TopicPartition, int]:
    """The highest offset of each partition that a coordinator has said to have."""
    found: dict[TopicPartition, int] = {}
    names = {topic.id: name for name, topic in env.cluster.nodes[1].controller.topics.items()}
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
    """What was acknowledged is in the log, whether its coordinator has read it yet or not."""
    place = offsets_partition_of(env)
    log = env.cluster.partition(OFFSETS, place).log
    replayed = ReplayedPartition(place)
    replayed.replay(log.read(log.start_offset, 1 << 30, at_least_one=True))
    kept = replayed.offsets(env.group_id)
    for tp, offset in acknowledged(env).items():
        assert kept[tp].offset >= offset


def check_generations(env: VirtualEnvironment) -> None:
    """Within a generation no partition was given to two members, whichever nodes have answered them."""
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
