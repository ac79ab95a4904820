"""A broker whose responses are written by the test, for cases that a real broker does not produce."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Self
from uuid import UUID

from asyncgroup.broker.net.frames import decode_request_body, decode_request_header, encode_response
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import API_BY_NAME, API_VERSIONS_KEY, APIS

PORT = 9092


class ReceivedRequest(NamedTuple):
    """A request that a scripted broker received; `time` is loop time, `connection` counts a broker's connections from 0."""

    time: float
    node_id: int
    api: str
    version: int
    request: Any
    connection: int


class Call:
    """A received request, with the means to answer it, correctly or not."""

    def __init__(self, connection: BrokerConnection, header: Any, request: Any) -> None:
        self.connection = connection
        self.header = header
        self.request = request
        self.version: int = header.api_version

    def frame(self, response: Any, *, correlation_id: int | None = None) -> bytes:
        """Return the frame of a response to this request."""
        number = self.header.correlation_id if correlation_id is None else correlation_id
        version = 0 if getattr(response, "error_code", 0) == 35 and self._is_handshake else self.version
        return b"".join(encode_response(response, version, number))

    @property
    def _is_handshake(self) -> bool:
        return self.header.api_key == API_VERSIONS_KEY

    def answer(self, response: Any, **how: Any) -> None:
        self.write(self.frame(response, **how))

    def write(self, data: bytes) -> None:
        """Write arbitrary bytes to the client."""
        self.connection.transport.write(data)

    def cut(self) -> None:
        """Abort the connection."""
        self.connection.transport.abort()


Answerer = Callable[[Call], Any]


def no_answer(call: Call) -> None:
    """Send no answer."""


class BrokerConnection(asyncio.Protocol):
    """The broker's side of a connection."""

    transport: asyncio.Transport

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.data = b""
        self.number = broker.accepted
        broker.accepted += 1

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.broker.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.broker.open.discard(self)

    def data_received(self, data: bytes) -> None:
        self.data += data
        while len(self.data) >= 4 and len(self.data) >= 4 + (size := int.from_bytes(self.data[:4], "big")):
            frame, self.data = self.data[4 : 4 + size], self.data[4 + size :]
            self.broker.handle_frame(self, frame)


class ScriptedBroker:
    """Node `node_id` on `host`; answers ApiVersions, Metadata and InitProducerId unless `script` overrides them.

    `script[api]` is called with each `Call` of that API. `versions` overrides the version ranges in ApiVersions responses.
    """

    def __init__(self, scripted: ScriptedCluster, node_id: int, host: str, port: int = PORT) -> None:
        self.scripted = scripted
        self.node_id = node_id
        self.host = host
        self.port = port
        self.script: dict[str, Answerer] = {}
        self.versions: dict[str, tuple[int, int]] = {}
        self.open: set[BrokerConnection] = set()
        self.accepted = 0
        self._server: Any = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: BrokerConnection(self), self.host, self.port)

    async def stop(self) -> None:
        """Close the listener and abort every connection."""
        if self._server is not None:
            self._server.close()
            for end in list(self.open):
                end.transport.abort()
            await self._server.wait_closed()
            self._server = None

    def handle_frame(self, end: BrokerConnection, frame: bytes) -> None:
        header = decode_request_header(frame)
        api = APIS[header.api_key].name
        try:
            request = decode_request_body(header, frame)
        except Exception:
            request = None  # a version that the codec does not support
        now = asyncio.get_running_loop().time()
        self.scripted.received.append(
            ReceivedRequest(now, self.node_id, api, header.api_version, request, end.number)
        )
        call = Call(end, header, request)
        answer = self.script.get(api) or getattr(self, f"answer_{api}", no_answer)
        answer(call)

    def answer_ApiVersions(self, call: Call) -> None:
        call.answer(self.api_versions())

    def api_versions(self, error_code: int = 0) -> m.ApiVersionsResponse:
        offers = {api.name: tuple(api.versions) for api in APIS.values()} | self.versions
        keys = [
            m.ApiVersionsResponse.ApiVersion(API_BY_NAME[name].key, low, high)
            for name, (low, high) in offers.items()
        ]
        return m.ApiVersionsResponse(error_code=error_code, api_keys=keys)

    def answer_Metadata(self, call: Call) -> None:
        call.answer(self.scripted.metadata(call.request, call.version))

    def answer_InitProducerId(self, call: Call) -> None:
        number = len(self.scripted.requests_of("InitProducerId"))
        call.answer(m.InitProducerIdResponse(producer_id=number, producer_epoch=0))


class ScriptedCluster:
    """Scripted brokers with common metadata: `brokers` by node id, `topics` with partitions → (leader, epoch)."""

    def __init__(self, *hosts: str) -> None:
        self.received: list[ReceivedRequest] = []
        self.brokers = {number: ScriptedBroker(self, number, host) for number, host in enumerate(hosts, 1)}
        self.listed = set(self.brokers)
        self.topics: dict[str, dict[int, tuple[int, int]]] = {}
        self.topic_ids: dict[str, UUID] = {}
        """Topics without an entry have the nil id, as with brokers before 2.8."""

    async def __aenter__(self) -> Self:
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            await broker.stop()

    def __getitem__(self, node_id: int) -> ScriptedBroker:
        return self.brokers[node_id]

    @property
    def servers(self) -> str:
        return ",".join(f"{broker.host}:{broker.port}" for broker in self.brokers.values())

    def requests_of(self, api: str, node_id: int | None = None) -> list[ReceivedRequest]:
        """Return the received requests of an API, to one node or to all."""
        return [one for one in self.received if one.api == api and node_id in (None, one.node_id)]

    def metadata(self, request: Any, version: int = 13) -> m.MetadataResponse:
        everything = request.topics is None or (version == 0 and not request.topics)
        names = list(self.topics) if everything else [topic.name for topic in request.topics]
        Topic, Partition = (
            m.MetadataResponse.MetadataResponseTopic,
            m.MetadataResponse.MetadataResponsePartition,
        )
        listed = [self.brokers[number] for number in sorted(self.listed)]
        return m.MetadataResponse(
            cluster_id="scripted",
            controller_id=1,
            brokers=[m.MetadataResponse.MetadataResponseBroker(b.node_id, b.host, b.port) for b in listed],
            topics=[
                Topic(
                    name=name,
                    topic_id=self.topic_ids.get(name, m.NO_UUID),
                    error_code=0 if name in self.topics else 3,
                    partitions=[
                        Partition(0, number, leader, epoch, [leader], [leader])
                        for number, (leader, epoch) in self.topics.get(name, {}).items()
                    ],
                )
                for name in names
            ],
        )
