"""Write the markers of a transaction to its partitions (Kafka's `TransactionMarkerChannelManager`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.metadata.topics import NO_LEADER, OFFSETS_TOPIC, Partition
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.control import ControlType

__all__ = ["OFFSETS_TOPIC", "MarkerWriter", "TransactionMarker"]


class TransactionMarker(NamedTuple):
    """The marker that ends a producer's transaction in a partition."""

    producer: ProducerIdAndEpoch
    commit: bool
    coordinator_epoch: int = 0
    bumps_epoch: bool = False
    """Whether the producer's epoch was bumped with the end of the transaction (KIP-890)."""


class MarkerWriter:
    """Appends markers to the logs of the cluster; `clock` gives ms since 1970.

    `on_appended` is called with each partition after an append. For partitions of `__consumer_offsets`,
    `on_offsets_marker` is called too, with the partition number: the transaction's offsets are pending until its
    marker.
    """

    def __init__(
        self,
        controller: Controller,
        on_offsets_marker: Callable[[int, TransactionMarker], None],
        on_appended: Callable[[Partition], None],
        clock: Callable[[], int],
    ) -> None:
        self._controller = controller
        self._on_offsets_marker = on_offsets_marker
        self._on_appended = on_appended
        self.clock = clock

    def write(self, tp: TopicPartition, marker: TransactionMarker) -> ErrorCode:
        """Append a marker and return NONE or an error code.

        LEADER_NOT_AVAILABLE: to be retried when the partition has a leader. After UNKNOWN_TOPIC_OR_PARTITION
        (deleted) or INVALID_PRODUCER_EPOCH (a newer epoch of the producer wrote to the partition) no marker is
        needed.
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
                bumps_epoch=marker.bumps_epoch,
            )
        except AppendError as error:
            return error.code
        if tp.topic == OFFSETS_TOPIC:
            self._on_offsets_marker(tp.partition, marker)
        self._on_appended(partition)
        return ErrorCode.NONE
