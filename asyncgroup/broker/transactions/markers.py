"""Writing the markers of a transaction to its partitions (Kafka's `TransactionMarkerChannelManager`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from asyncgroup.broker.controller import Controller
from asyncgroup.broker.coordinator.ports import OffsetStore
from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.topics import NO_LEADER, Partition
from asyncgroup.broker.transactions.metadata import Producer
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.control import ControlType

__all__ = ["OFFSETS_TOPIC", "Marker", "Markers"]

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""Where offsets of a transaction are pending, partition by partition, until its marker."""


class Marker(NamedTuple):
    """What ends a producer's transaction in a partition."""

    producer: Producer
    commit: bool
    coordinator_epoch: int = 0


class Markers:
    """Appends markers to the cluster's logs; those to `__consumer_offsets` go to the store of groups and offsets.

    `appended` is told of each partition that got one, `now` is the loop's time in seconds.
    """

    def __init__(
        self,
        controller: Controller,
        store: OffsetStore,
        appended: Callable[[Partition], None],
        now: Callable[[], float],
    ) -> None:
        self._controller, self._store = controller, store
        self._appended, self._now = appended, now

    def write(self, tp: TopicPartition, marker: Marker) -> ErrorCode:
        """Append a marker.

        LEADER_NOT_AVAILABLE has to be tried again when the partition has a leader; UNKNOWN_TOPIC_OR_PARTITION (it was
        deleted) and INVALID_PRODUCER_EPOCH (a newer life of the producer wrote here) need no marker any more.
        """
        if tp.topic == OFFSETS_TOPIC:
            self._store.end_transaction(marker.producer.id, tp.partition, commit=marker.commit)
            return ErrorCode.NONE
        topic = self._controller.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = topic.partitions[tp.partition]
        if partition.leader == NO_LEADER:
            return ErrorCode.LEADER_NOT_AVAILABLE
        try:
            partition.log.append_marker(
                ControlType.COMMIT if marker.commit else ControlType.ABORT,
                *marker.producer,
                partition.leader_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp=int(self._now() * 1000),
            )
        except AppendError as error:
            return error.code
        self._appended(partition)
        return ErrorCode.NONE
