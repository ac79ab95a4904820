"""A scripted Pulsar broker for tests of producers, on the network of the running loop.

It stores what is sent to it, and does as its attributes say: hold receipts, refuse registrations, refuse messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from asyncgroup.pulsar.wire.commands import (
    CommandCloseProducer,
    CommandError,
    CommandMessage,
    CommandProducer,
    CommandProducerSuccess,
    CommandSend,
    CommandSendError,
    CommandSendReceipt,
    CommandSuccess,
    MessageIdData,
)
from asyncgroup.pulsar.wire.entry import Entry, decode_entry
from tests.pulsar.broker_model import BrokerModel, Link, local_name

__all__ = ["Broker"]

_DROPPED: Final = (1 << 64) - 1
_NOT_ALLOWED: Final = 22
_CHECKSUM: Final = 9


class Broker(BrokerModel):
    """`async with Broker() as broker`: listens at `url`."""

    def __init__(self, port: int = 6650) -> None:
        super().__init__(port)
        self.max_message_size = 5 * 1024 * 1024
        self.deduplicates = False
        self.holds_receipts = False
        self.ready = True
        """False: a registration waits for its turn, until `make_ready`."""
        self.refuse_producer: Callable[[CommandProducer], int | None] = lambda _: None
        """Returns an error's code."""
        self.refuse_send: Callable[[CommandSend], int | None] = lambda _: None
        self.silent = False
        """Whether registrations and their ends are not answered."""
        self.entries: dict[str, list[Entry]] = defaultdict(list)
        """What is stored, by local name."""
        self.registrations: list[CommandProducer] = []
        self._held: list[tuple[Link, CommandSendReceipt]] = []
        self._waiting: list[tuple[Link, CommandProducer]] = []
        self._highest: dict[tuple[str, str], int] = {}
        self._names = 0

    # --- what tests look at and do ------------------------------------------------------------------------------------

    def values(self, topic: str) -> list[bytes | None]:
        return [message.value for entry in self.entries[topic] for message in entry.messages()]

    def release(self) -> None:
        """Send the receipts that were held."""
        self.holds_receipts = False
        held, self._held = self._held, []
        for link, receipt in held:
            link.send(receipt)

    def drop_receipts(self) -> None:
        """Lose the receipts that were held."""
        self._held.clear()

    def make_ready(self) -> None:
        """It is the turn of the producers that wait."""
        self.ready = True
        waiting, self._waiting = self._waiting, []
        for link, producer in waiting:
            self._answer(link, producer, ready=True)

    def close_producers(self, assigned_url: str | None = None) -> None:
        """Give the topics away."""
        for link in self.links:
            for number in list(link.producers):
                del link.producers[number]
                link.send(
                    CommandCloseProducer(
                        producer_id=number, request_id=0, assigned_broker_service_url=assigned_url
                    )
                )

    # --- its side of the protocol -------------------------------------------------------------------------------------

    def _on_command(self, link: Link, command: Any) -> None:
        match command:
            case CommandProducer():
                self._on_producer(link, command)
            case CommandCloseProducer():
                link.producers.pop(command.producer_id, None)
                if not self.silent:
                    link.send(CommandSuccess(request_id=command.request_id))
            case _:
                super()._on_command(link, command)

    def _on_producer(self, link: Link, command: CommandProducer) -> None:
        self.registrations.append(command)
        code = self.refuse_producer(command)
        if self.silent:
            return
        if code is not None:
            link.send(CommandError(request_id=command.request_id, error=code, message="refused"))
            return
        if command.producer_name is None:
            self._names += 1
            command.producer_name = f"standalone-{self._names}"
        self._answer(link, command, ready=self.ready)
        if not self.ready:
            self._waiting.append((link, command))

    def _answer(self, link: Link, command: CommandProducer, *, ready: bool) -> None:
        link.producers[command.producer_id] = command
        assert command.producer_name is not None
        link.send(
            CommandProducerSuccess(
                request_id=command.request_id,
                producer_name=command.producer_name,
                last_sequence_id=self._highest.get((command.topic, command.producer_name), -1),
                topic_epoch=5 if command.producer_access_mode else None,
                producer_ready=ready,
            )
        )

    def _on_send(self, link: Link, command: CommandSend, frame: bytes, at: int) -> None:
        producer = link.producers.get(command.producer_id)
        if producer is None:
            return
        code = self.refuse_send(command)
        if code is not None:
            if code not in (
                _NOT_ALLOWED,
                _CHECKSUM,
            ):  # what follows is not stored either: the topic is closed
                del link.producers[command.producer_id]
            link.send(
                CommandSendError(
                    producer_id=command.producer_id,
                    sequence_id=command.sequence_id,
                    error=code,
                    message="refused",
                )
            )
            return
        entries = self.entries[local_name(producer.topic)]
        place = MessageIdData(ledger_id=1, entry_id=len(entries))
        if self._is_new(producer, command):
            pushed = CommandMessage(consumer_id=0, message_id=place)
            entries.append(decode_entry(pushed, frame, at, -1, 100 << 20))
        else:
            place = MessageIdData(ledger_id=_DROPPED, entry_id=_DROPPED)
        receipt = CommandSendReceipt(
            producer_id=command.producer_id,
            sequence_id=command.sequence_id,
            highest_sequence_id=command.highest_sequence_id or _DROPPED,  # a real broker says -1
            message_id=place,
        )
        if self.holds_receipts:
            self._held.append((link, receipt))
        else:
            link.send(receipt)

    def _is_new(self, producer: CommandProducer, command: CommandSend) -> bool:
        assert producer.producer_name is not None
        key = (producer.topic, producer.producer_name)
        is_new = not self.deduplicates or command.is_chunk or command.sequence_id > self._highest.get(key, -1)
        if is_new and self.deduplicates:
            self._highest[key] = max(command.sequence_id, command.highest_sequence_id)
        return is_new
