"""A scripted Pulsar broker for tests of producers, on the network of the running loop.

It stores what is sent to it, and does as its attributes say: hold receipts, refuse registrations, refuse messages.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, Self

from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandCloseProducer,
    CommandConnect,
    CommandConnected,
    CommandError,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandMessage,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    CommandPing,
    CommandPong,
    CommandProducer,
    CommandProducerSuccess,
    CommandSend,
    CommandSendError,
    CommandSendReceipt,
    CommandSuccess,
    FeatureFlags,
    MessageIdData,
)
from asyncgroup.pulsar.wire.entry import Entry, decode_entry
from asyncgroup.pulsar.wire.frames import decode_frame, encode_frame

__all__ = ["Broker", "Link"]

_DROPPED: Final = (1 << 64) - 1
_NOT_ALLOWED: Final = 22
_CHECKSUM: Final = 9


class Link:
    """A connection to the broker."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.producers: dict[int, CommandProducer] = {}
        """By id; also those that were closed or refused are gone."""

    def send(self, command: Command) -> None:
        if not self.writer.is_closing():
            self.writer.write(encode_frame(command))


class Broker:
    """`async with Broker() as broker`: listens at `url`."""

    def __init__(self, port: int = 6650) -> None:
        self.port = port
        self.url = f"pulsar://127.0.0.1:{port}"
        self.partitions: dict[str, int] = {}
        """By local name of the topic; a topic that is not here has none."""
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
        self.links: list[Link] = []
        self.entries: dict[str, list[Entry]] = defaultdict(list)
        """What is stored, by local name."""
        self.commands: list[Command] = []
        """Every command but SEND, in order."""
        self.registrations: list[CommandProducer] = []
        self._held: list[tuple[Link, CommandSendReceipt]] = []
        self._waiting: list[tuple[Link, CommandProducer]] = []
        self._highest: dict[tuple[str, str], int] = {}
        self._names = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

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

    def cut(self) -> None:
        """Close all connections."""
        links, self.links = self.links, []
        for link in links:
            link.writer.transport.abort()

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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(writer)
        self.links.append(link)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                command, at = decode_frame(frame)
                if isinstance(command, CommandSend):
                    self._on_send(link, command, frame, at)
                elif command is not None:
                    self.commands.append(command)
                    self._on_command(link, command)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    def _on_command(self, link: Link, command: Any) -> None:
        match command:
            case CommandConnect():
                flags = FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True)
                link.send(
                    CommandConnected(
                        server_version="test",
                        protocol_version=21,
                        max_message_size=self.max_message_size,
                        feature_flags=flags,
                    )
                )
            case CommandPing():
                link.send(CommandPong())
            case CommandPartitionedTopicMetadata():
                count = self.partitions.get(_local(command.topic), 0)
                link.send(
                    CommandPartitionedTopicMetadataResponse(
                        request_id=command.request_id, partitions=count, response=0
                    )
                )
            case CommandLookupTopic():
                link.send(
                    CommandLookupTopicResponse(
                        request_id=command.request_id, broker_service_url=self.url, response=1
                    )
                )
            case CommandProducer():
                self._on_producer(link, command)
            case CommandCloseProducer():
                link.producers.pop(command.producer_id, None)
                if not self.silent:
                    link.send(CommandSuccess(request_id=command.request_id))

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
        entries = self.entries[_local(producer.topic)]
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


def _local(topic: str) -> str:
    return topic.rsplit("/", 1)[1]
