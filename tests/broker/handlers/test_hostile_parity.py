"""Malformed frames sent to Apache Kafka 4.3.1 and to the embedded broker: both respond, or both close."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from uuid import UUID

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import APIS
from asyncgroup.wire.codec import decode_response, encode
from tests.real.support import RunningKafka

PRODUCE, METADATA, HEARTBEAT, API_VERSIONS = 0, 3, 12, 18
CLOSED = "closed"
ANSWERED = "answered"

HEARTBEAT_V0 = encode(m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 0)
HEARTBEAT_V4 = encode(m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
TOPIC = m.MetadataRequest.MetadataRequestTopic
METADATA_V10 = encode(m.MetadataRequest(topics=[TOPIC(topic_id=UUID(int=7), name="t")]), 10)
METADATA_V11 = encode(m.MetadataRequest(topics=[TOPIC(name=None)]), 11)
VERSIONS_V3 = encode(m.ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3)


def head(key: int, version: int, client: bytes = b"\x00\x02me", tags: bytes | None = None) -> bytes:
    if tags is None:
        tags = b"\x00" if key in APIS and version >= APIS[key].flexible_from else b""
    return struct.pack(">hhi", key, version, 77) + client + tags


def heartbeat(version: int, body: bytes) -> bytes:
    return head(HEARTBEAT, version) + body


FRAMES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", CLOSED),
    "one byte": (b"\x00", CLOSED),
    "three bytes": (b"\x00\x03\x00", CLOSED),
    "no correlation id": (struct.pack(">hh", METADATA, 5), CLOSED),
    "no client id": (struct.pack(">hhi", METADATA, 5, 77), CLOSED),
    "an API that does not exist": (head(999, 0), CLOSED),
    "a negative API": (head(-1, 0), CLOSED),
    "a controller-only API": (head(52, 0), CLOSED),
    "a version too new": (head(METADATA, 99), CLOSED),
    "a negative version": (head(METADATA, -1), CLOSED),
    "a version advertised but not supported": (head(PRODUCE, 2), CLOSED),
    "ApiVersions too new": (head(API_VERSIONS, 99, tags=b"\x00") + VERSIONS_V3, f"{ANSWERED} error 35"),
    "ApiVersions too new, without a body": (head(API_VERSIONS, 99, tags=b"\x00"), f"{ANSWERED} error 35"),
    "ApiVersions too new, header cut": (struct.pack(">hhih", API_VERSIONS, 99, 77, 50) + b"short", CLOSED),
    "ApiVersions of version -1": (head(API_VERSIONS, -1), f"{ANSWERED} error 35"),
    "ApiVersions": (head(API_VERSIONS, 3) + VERSIONS_V3, f"{ANSWERED} error 0"),
    "ApiVersions of odd software": (
        head(API_VERSIONS, 3)
        + encode(m.ApiVersionsRequest(client_software_name="?", client_software_version="1"), 3),
        f"{ANSWERED} error 42",
    ),
    "client id longer than the frame": (head(METADATA, 5, b"\x00\x32short"), CLOSED),
    "client id of length -1": (head(HEARTBEAT, 0, b"\xff\xff") + HEARTBEAT_V0, ANSWERED),
    "client id of length -2": (head(HEARTBEAT, 0, b"\xff\xfe") + HEARTBEAT_V0, ANSWERED),
    "unknown header tags": (head(HEARTBEAT, 4, tags=b"\x01\x05\x02ab") + HEARTBEAT_V4, ANSWERED),
    "header tags longer than the frame": (head(HEARTBEAT, 4, tags=b"\x01\x05\x7fab"), CLOSED),
    "header tags without end": (head(HEARTBEAT, 4, tags=b"\xff" * 10), CLOSED),
    "a body": (heartbeat(0, HEARTBEAT_V0), ANSWERED),
    "a body cut short": (heartbeat(0, HEARTBEAT_V0[:-1]), CLOSED),
    "no body": (heartbeat(0, b""), CLOSED),
    "bytes left over": (heartbeat(0, HEARTBEAT_V0 + b"left over"), ANSWERED),
    "a null in a non-nullable field": (heartbeat(0, b"\xff\xff" + HEARTBEAT_V0[3:]), CLOSED),
    "a compact null in a non-nullable field": (heartbeat(4, b"\x00" + HEARTBEAT_V4[2:]), CLOSED),
    "a string longer than the frame": (heartbeat(0, b"\x7f\xff" + HEARTBEAT_V0[2:]), CLOSED),
    "a compact string longer than the frame": (heartbeat(4, b"\x7f" + HEARTBEAT_V4[1:]), CLOSED),
    "a string of 4 GiB": (heartbeat(4, b"\xff\xff\xff\xff\x0f" + HEARTBEAT_V4[1:]), CLOSED),
    "a compact string of 32,767 bytes": (
        heartbeat(4, b"\x80\x80\x02" + b"g" * 0x7FFF + HEARTBEAT_V4[2:]),
        ANSWERED,
    ),
    "a compact string of 32,768 bytes": (
        heartbeat(4, b"\x81\x80\x02" + b"g" * 0x8000 + HEARTBEAT_V4[2:]),
        CLOSED,
    ),
    "a topic id where versions have none": (head(METADATA, 10) + METADATA_V10, f"{ANSWERED} error 42"),
    "a missing required name": (head(METADATA, 11) + METADATA_V11, f"{ANSWERED} error 42"),
    "a varint without end": (heartbeat(4, b"\xff" * 10), CLOSED),
    "a string that is not UTF-8": (heartbeat(0, b"\x00\x01\xff" + HEARTBEAT_V0[3:]), ANSWERED),
    "unknown tags": (heartbeat(4, HEARTBEAT_V4[:-1] + b"\x02\x05\x01a\x06\x00"), ANSWERED),
    "tags in descending order": (heartbeat(4, HEARTBEAT_V4[:-1] + b"\x02\x06\x01a\x05\x00"), ANSWERED),
    "a tag longer than the frame": (heartbeat(4, HEARTBEAT_V4[:-1] + b"\x01\x05\x7fab"), CLOSED),
    "an array of two billions": (head(METADATA, 5) + b"\x7f\xff\xff\xff" + b"\x00" * 9, CLOSED),
    "an array of minus two": (head(METADATA, 5) + b"\xff\xff\xff\xfe\x00", ANSWERED),
    "a compact array of two billions": (head(METADATA, 12) + b"\xff\xff\xff\xff\x07" + b"\x00" * 9, CLOSED),
}
"""Kafka's reaction to each frame, by the frame's name."""

SIZES = {"a negative size": -1, "the smallest size": -(2**31), "a size too large": 100 * 1024 * 1024 + 1}

STRICTER = {
    "a string that is not UTF-8": "Kafka decodes invalid bytes to U+FFFD, so two different names become one",
}
"""Frames on which the embedded broker closes the connection although Kafka responds, with the reason."""


async def outcome(host: str, port: int, data: bytes) -> str:
    """Send the bytes on a new connection; return what the broker does."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(data)
        async with asyncio.timeout(10):
            size = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(size, "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return CLOSED
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    assert frame[:4] == struct.pack(">i", 77)
    key, version = struct.unpack_from(">hh", data, 4)
    if key == API_VERSIONS:
        return f"{ANSWERED} error {struct.unpack_from('>h', frame, 4)[0]}"
    topics = decode_response(m.MetadataResponse, version, frame).topics if key == METADATA else []
    # an array of -2 asks for all topics, and other tests may have left some
    return " ".join([ANSWERED, *(f"error {topic.error_code}" for topic in topics if topic.error_code)])


async def outcomes(host: str, port: int) -> dict[str, str]:
    found = {
        name: await outcome(host, port, struct.pack(">i", len(f)) + f) for name, (f, _) in FRAMES.items()
    }
    for name, size in SIZES.items():
        found[name] = await outcome(host, port, struct.pack(">i", size) + b"x" * 20)
    return found


EXPECTED = {name: result for name, (_, result) in FRAMES.items()} | dict.fromkeys(SIZES, CLOSED)


@pytest.mark.asyncio(loop_factories=["real", "virtual"])
async def test_the_embedded_broker() -> None:
    async with EmbeddedCluster() as cluster:
        node = cluster.nodes[1]
        found = await outcomes(node.host, node.port)
    assert found == EXPECTED | dict.fromkeys(STRICTER, CLOSED)


@pytest.mark.real
async def test_apache_kafka(apache_kafka: RunningKafka) -> None:
    host, _, port = apache_kafka.bootstrap_servers.split(",")[0].rpartition(":")
    assert await outcomes(host, int(port)) == EXPECTED
