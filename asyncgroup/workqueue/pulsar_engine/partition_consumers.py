"""PartitionConsumers: creates the consumers of a queue's partitions, by the settings of the queue and its source."""

from __future__ import annotations

from typing import Final

from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig, SubscriptionType
from asyncgroup.pulsar.consumer.partition.listener import PulsarConsumerListener
from asyncgroup.pulsar.consumer.partition.pulsar_consumer import PulsarConsumer
from asyncgroup.pulsar.core import ClientCore
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_work import RECORD_OVERHEAD
from asyncgroup.workqueue.pulsar_engine.source import PulsarPlan
from asyncgroup.workqueue.receive_limits import ReceiveLimits
from asyncgroup.workqueue.settings import QueueSettings

__all__ = ["PartitionConsumers"]

_TYPES: Final = {
    Mode.EXCLUSIVE: SubscriptionType.EXCLUSIVE,
    Mode.SHARED: SubscriptionType.SHARED,
    Mode.FAILOVER: SubscriptionType.FAILOVER,
    Mode.KEY_SHARED: SubscriptionType.KEY_SHARED,
}


class PartitionConsumers:
    """Creates consumers; each gets the share of the queue's limits that a partition has."""

    def __init__(self, plan: PulsarPlan, settings: QueueSettings, limits: ReceiveLimits) -> None:
        self._source = plan.source
        self._settings = settings
        self._limits = limits

    def __repr__(self) -> str:
        return f"<PartitionConsumers of {self._source.subscription!r}>"

    def create(
        self,
        core: ClientCore,
        topic: TopicName,
        listener: PulsarConsumerListener,
        *,
        begins_early: bool,
        creates_topic: bool,
    ) -> PulsarConsumer:
        """Return the consumer of a partition, or of a topic without any; it is not started."""
        return PulsarConsumer(
            core,
            topic,
            self._source.subscription,
            _TYPES[self._settings.mode],
            self._config(begins_early=begins_early),
            listener,
            queue_size=self._queue_size,
            overhead=RECORD_OVERHEAD,
            creates_topic=creates_topic,
        )

    def limit(self, consumer: PulsarConsumer) -> None:
        """Set the limits of a consumer to the share that a partition has now."""
        consumer.set_limits(self._queue_size, self._limits.bytes)

    @property
    def _queue_size(self) -> int:
        return 0 if self._limits.on_demand else self._limits.records

    def _config(self, *, begins_early: bool) -> PulsarConsumerConfig:
        settings, source = self._settings, self._source
        is_failover = settings.mode is Mode.FAILOVER
        return PulsarConsumerConfig(
            consumer_name=(settings.name or source.consumer_name) if is_failover else source.consumer_name,
            initial_position="earliest" if begins_early else settings.initial_position or "latest",
            priority_level=settings.priority if is_failover else source.priority_level,
            durable=source.durable,
            key_ranges=source.key_ranges,
            allow_out_of_order=settings.allow_out_of_order,
            ack_group_time=settings.ack_group_time,
            ack_group_size=settings.ack_group_size,
            index_acks=source.index_acks,
            close_timeout=source.close_timeout,
            receiver_queue_bytes=self._limits.bytes,
        )
