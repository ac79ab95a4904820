"""ConsumerParts: the receiver queue, the unacknowledged entries and the pending requests of the consumer of one partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncgroup.model import clock_of_loop
from asyncgroup.pulsar.consumer.acks.ack_sender import AckSender
from asyncgroup.pulsar.consumer.acks.pending_acks import PendingAcks
from asyncgroup.pulsar.consumer.acks.redelivery import RedeliveryRequests
from asyncgroup.pulsar.consumer.acks.unacked import EntryKey, UnackedEntries
from asyncgroup.pulsar.consumer.partition.identity import ConsumerIdentity
from asyncgroup.pulsar.consumer.partition.reports import ConsumerReports
from asyncgroup.pulsar.consumer.partition.subscribing import Subscribing
from asyncgroup.pulsar.consumer.receiving.arrivals import Arrivals, UnstoredArrivals
from asyncgroup.pulsar.consumer.receiving.chunk_assembly import ChunkAssembly, ChunkAssemblyLimits
from asyncgroup.pulsar.consumer.receiving.permits import PermitLedger
from asyncgroup.pulsar.consumer.receiving.receiver_queue import ReceiverQueue
from asyncgroup.pulsar.consumer.receiving.rejections import Rejections
from asyncgroup.pulsar.core import ClientCore

__all__ = ["ConsumerParts"]


class ConsumerParts:
    """The parts of one consumer, which PulsarConsumer and its MessageOutcomes share.

    `on_error` is called for what is tried again, `on_ack_error` for acknowledgements that are sent again later.
    """

    def __init__(
        self,
        core: ClientCore,
        identity: ConsumerIdentity,
        permits: PermitLedger,
        on_error: Callable[[Exception], object],
        on_ack_error: Callable[[Exception], object],
        *,
        creates_topic: bool = True,
    ) -> None:
        consumer_id, name, topic = identity.id, identity.name, identity.topic
        kind, config = identity.kind, identity.config
        self.permits = permits
        self.unacked = UnackedEntries(index_acks=config.index_acks)
        pending = PendingAcks(config.ack_group_time, config.ack_group_size, index_acks=config.index_acks)
        self.reports = ConsumerReports(core.hooks, identity.subscription, topic)
        self.acks = AckSender(
            consumer_id, name, pending, core.config.operation_timeout, on_ack_error, self.reports.acked
        )
        self.redelivery = RedeliveryRequests(consumer_id, kind, self.unacked, self.acks)
        self.nacks = self.redelivery.nacks
        self.queue = ReceiverQueue(self.permits, self.redelivery.epoch)
        limits = ChunkAssemblyLimits(
            config.max_pending_chunked,
            core.config.max_message_size,
            config.chunk_expiry,
            config.ack_oldest_chunked,
        )
        self.chunks = ChunkAssembly(limits, largest=core.config.max_message_size, in_order=kind.in_order)
        kind_of_arrivals = Arrivals if topic.is_persistent else UnstoredArrivals
        self.arrivals = kind_of_arrivals(
            str(topic.whole),
            topic.partition,
            self.unacked,
            pending,
            self.nacks,
            self.redelivery.epoch,
            self.chunks,
            asyncio.get_running_loop().time,
            clock_of_loop(),
            largest=core.config.max_message_size,
        )
        self.rejections = Rejections(
            consumer_id,
            name,
            self.unacked,
            self.acks,
            self.redelivery,
            self.chunks,
            on_error,
            self.reports.chunks_dropped,
        )
        self.subscribing = Subscribing(identity, creates_topic=creates_topic)
        self.arrivals.start = self.subscribing.start

    def __repr__(self) -> str:
        return f"<ConsumerParts {self.queue!r}, {self.unacked!r}>"

    def void(self) -> None:
        """What is not acknowledged comes again."""
        for message in self.queue:
            self.unacked.release(message.message_id)
        self.queue.clear()
        self.unacked.release_all()
        self.chunks.clear()

    def forget(self, last: EntryKey) -> None:
        """After a seek: forget all that was before. `last` is the last entry that may have been acknowledged."""
        self.acks.clear()
        self.nacks.clear()
        self.chunks.clear()
        self.unacked.clear(last)
