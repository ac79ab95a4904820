"""Writing the markers of a transaction to its partitions (Kafka's `TransactionMarkerChannelManager`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from asyncgroup.broker.controller import Controller
from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.topics import NO_LEADER, OFFSETS_TOPIC, Partition
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.control import ControlType

__all__ = ["OFFSETS_TOPIC", "MarkerWriter", "TransactionMarker"]


class TransactionMarker(NamedTuple):
    """What ends a producer's transaction in a partition; `bumps` if its epoch went up with that (KIP-890)."""

    producer: ProducerIdAndEpoch
    commit: bool
    coordinator_epoch: int = 0
    bumps: bool = False


class MarkerWriter:
    """Appends markers to the cluster's logs; of those to `__consumer_offsets` `on_offsets_marker` is told as well, with the
    partition: there the offsets of the transaction are pending until its marker.

    `on_appended` is told of each partition that got one, `clock` gives ms since 1970.
    """

    def __init__(
        self,
        controller: Controller,
        on_offsets_marker: Callable[[int, TransactionMarker], None],
        on_appended: Callable[[Partition], None],
        clock: Callable[[], int],
    ) -> None:
        self._controller, self._on_offsets_marker = controller, on_offsets_marker
        self._on_appended, self.clock = on_appended, clock

    def write(self, tp: TopicPartition, marker: TransactionMarker) -> ErrorCode:
        """Append a marker.

        LEADER_NOT_AVAILABLE has to be tried again when the partition has a leader; UNKNOWN_TOPIC_OR_PARTITION (it was
        deleted) and INVALID_PRODUCER_EPOCH (a newer life of the producer wrote here) need no marker any more.
        """
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
                timestamp=self.clock(),
                append_time=partition.config.log_append_time,
                bumps=marker.bumps,
            )
        except AppendError as error:
            return error.code
        if tp.topic == OFFSETS_TOPIC:
            self._on_offsets_marker(tp.partition, marker)
        self._on_appended(partition)
        return ErrorCode.NONE
