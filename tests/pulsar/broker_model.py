"""BrokerModel: what the models of Pulsar's broker have in common: its connections, the handshake, and the lookup of topics.

Those of consumers (`consumer/broker.py`) and producers (`producer/broker.py`) add the commands that are about them. A test that
writes the answers of several brokers itself uses `scripted.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Self

from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandConnect,
    CommandConnected,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    CommandPing,
    CommandPong,
    CommandProducer,
    CommandSend,
    FeatureFlags,
)
from asyncgroup.pulsar.wire.frames import decode_frame, encode_frame

__all__ = ["BrokerModel", "Link", "local_name"]


class Link:
    """A connection to the broker."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.producers: dict[int, CommandProducer] = {}
        """By id; those that were closed or refused are gone."""
        self.consumers: dict[int, Any] = {}

    def send(self, command: Command) -> None:
        self.write(encode_frame(command))

    def write(self, data: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(data)


class BrokerModel:
    """`async with`: listens at `url`, on the network of the running loop."""

    max_message_size: int | None = None
    features: ClassVar = FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True)

    def __init__(self, port: int = 6650) -> None:
        self.url = f"pulsar://127.0.0.1:{port}"
        self.port = port
        self.partitions: dict[str, int] = {}
        """By local name of the topic; a topic that is not here has none."""
        self.links: list[Link] = []
        self.commands: list[Any] = []
        """Every command but SEND, in order."""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Close all connections."""
        links, self.links = self.links, []
        for link in links:
            link.writer.transport.abort()
            self._forget(link)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(writer)
        self.links.append(link)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                command, at = decode_frame(frame)
                if isinstance(command, CommandSend):
                    self._on_send(link, command, frame, at)
                elif command is not None:
                    self.commands.append(command)
                    self._on_command(link, command)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._forget(link)
            writer.close()

    def _forget(self, link: Link) -> None:
        """The connection has ended; called once or twice."""

    def _on_send(self, link: Link, command: CommandSend, frame: bytes, at: int) -> None:
        """SEND, whose payload begins at `at` in its frame."""

    def _on_command(self, link: Link, command: Any) -> None:
        """Another command."""
        match command:
            case CommandConnect():
                link.send(
                    CommandConnected(
                        server_version="test",
                        protocol_version=21,
                        max_message_size=self.max_message_size,
                        feature_flags=self.features,
                    )
                )
            case CommandPing():
                link.send(CommandPong())
            case CommandPartitionedTopicMetadata(request_id=number):
                count = self.partitions.get(local_name(command.topic), 0)
                link.send(
                    CommandPartitionedTopicMetadataResponse(request_id=number, partitions=count, response=0)
                )
            case CommandLookupTopic(request_id=number):
                link.send(
                    CommandLookupTopicResponse(request_id=number, broker_service_url=self.url, response=1)
                )


def local_name(topic: str) -> str:
    """Return the last part of a topic's name."""
    return topic.rsplit("/", 1)[1]
