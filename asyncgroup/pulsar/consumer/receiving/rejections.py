"""Rejections: acknowledges entries from which no message is delivered, or asks for them again. None is dropped without that.

An entry that is not wanted is acknowledged, one that cannot be read as well, with the reason. Chunks that cannot become a value are
acknowledged, and those that may become one later are asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.connection.connection import PulsarConnection
from asyncgroup.pulsar.consumer.acks.ack_sender import AckSender
from asyncgroup.pulsar.consumer.acks.redelivery import RedeliveryRequests
from asyncgroup.pulsar.consumer.acks.unacked import UnackedEntries
from asyncgroup.pulsar.consumer.receiving.arrivals import Arrived
from asyncgroup.pulsar.consumer.receiving.chunk_assembly import ChunkAssembly
from asyncgroup.pulsar.wire.commands import CommandAck
from asyncgroup.pulsar.wire.entry import DECRYPTION_ERROR
from asyncgroup.pulsar.wire.message_id import MessageId

__all__ = ["Rejections"]

CHUNK_PAUSE: Final = 1.0
"""Seconds before chunks are asked for again whose value cannot be completed yet."""


class Rejections:
    """The reactions of one consumer; `report(error)` is called for entries and values that are not delivered.

    `on_chunks_dropped(kind)` is called for values whose chunks do not come again.
    """

    def __init__(
        self,
        consumer_id: int,
        name: str,
        unacked: UnackedEntries,
        acks: AckSender,
        redelivery: RedeliveryRequests,
        chunks: ChunkAssembly,
        report: Callable[[Exception], object],
        on_chunks_dropped: Callable[[str], object] | None = None,
    ) -> None:
        self._id = consumer_id
        self._name = name
        self._unacked = unacked
        self._acks = acks
        self._redelivery = redelivery
        self._chunks = chunks
        self._report = report
        self._on_chunks_dropped = on_chunks_dropped

    def __repr__(self) -> str:
        return f"<Rejections of {self._name}>"

    def react(self, arrived: Arrived, connection: PulsarConnection | None) -> None:
        """No message came of an entry."""
        if arrived.acked is not None:
            self._acks.add(arrived.acked)
        if arrived.error is not None and arrived.bad_id is not None:
            self._refuse(arrived.bad_id, arrived.error.found.number, connection)
            self._report(arrived.error)
        self.react_to_chunks()

    def _ack(self, entry: MessageId) -> None:
        if (acked := self._unacked.ack(entry)) is not None:
            self._acks.add(acked)

    def _refuse(self, entry: MessageId, number: int, connection: PulsarConnection | None) -> None:
        """Acknowledge an entry that cannot be read; one that is encrypted may be for other consumers."""
        if connection is not None and number != DECRYPTION_ERROR:
            ids = [entry.data()]
            connection.send_command(
                CommandAck(consumer_id=self._id, ack_type=0, message_id=ids, validation_error=number)
            )

    def react_to_chunks(self) -> None:
        """Chunks were given up."""
        chunks = self._chunks
        for entry in chunks.acks:
            self._ack(entry)
        self._redelivery.add(chunks.redeliveries, CHUNK_PAUSE)
        for report in chunks.reports:
            if report.is_acked and self._on_chunks_dropped is not None:
                self._on_chunks_dropped(report.kind)
            follows = "its chunks are acknowledged" if report.is_acked else "its chunks come again"
            self._report(
                DecodeError(f"{self._name}: value {report.uuid} is incomplete: {report.reason}; {follows}")
            )
        chunks.acks.clear()
        chunks.redeliveries.clear()
        chunks.reports.clear()
