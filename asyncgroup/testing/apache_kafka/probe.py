"""A readiness probe: ask one Kafka broker for its cluster id and the live brokers, over a plain socket.

Two requests are enough to know that a broker is ready: ApiVersions version 0, which every broker answers, and Metadata
version 2, the first version with the cluster id. They are encoded by hand here, so that the helper that starts the
broker does not depend on the code that is tested with it.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final

__all__ = ["ProbeResult", "probe"]

_METADATA: Final = 3
_API_VERSIONS: Final = 18
_METADATA_VERSION: Final = 2
_LARGEST: Final = 1 << 20  # bytes of a response; another program on the port may send any size


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A broker's answer: the id of its cluster, and the ids of the live brokers."""

    cluster_id: str | None
    node_ids: frozenset[int]


def probe(host: str, port: int, limit: float = 2.0) -> ProbeResult:
    """Ask the broker at this address; `limit` in seconds applies to each operation on the socket.

    Raises OSError if there is no answer, and ValueError if the answer is not that of a Kafka broker.
    """
    with socket.create_connection((host, port), timeout=limit) as connection:
        versions = _Reader(_call(connection, _API_VERSIONS, 0, b""))
        if error := versions.int16():
            raise ValueError(f"ApiVersions answered with error {error}")
        no_topics = struct.pack(">i", 0)
        return _metadata(_Reader(_call(connection, _METADATA, _METADATA_VERSION, no_topics)))


def _metadata(reader: _Reader) -> ProbeResult:
    node_ids = set()
    for _ in range(reader.int32()):
        node_ids.add(reader.int32())
        reader.string()  # host
        reader.int32()  # port
        reader.string()  # rack
    return ProbeResult(reader.string(), frozenset(node_ids))


def _call(connection: socket.socket, api_key: int, version: int, body: bytes) -> bytes:
    """Send one request and return the body of its response. The client id is null, the correlation id the API key."""
    header = struct.pack(">hhih", api_key, version, api_key, -1)
    connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
    size, correlation_id = struct.unpack(">ii", _receive(connection, 8))
    if correlation_id != api_key or not 4 <= size <= _LARGEST:
        raise ValueError(f"not the response of a Kafka broker: size {size}, correlation id {correlation_id}")
    return _receive(connection, size - 4)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return bytes(data)


class _Reader:
    """Reads Kafka's primitive types from a response, in order; raises ValueError if the response is too short."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0  # position of the next byte to read

    def int16(self) -> int:
        return int.from_bytes(self._take(2), signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), signed=True)

    def string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._take(size).decode()

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ValueError("the response is too short")
        part, self._at = self._data[self._at : end], end
        return part
