"""Malformed responses: the client closes the connection, retries at another broker, and never hangs."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable

import pytest

from asyncgroup import (
    Claim,
    Cluster,
    ConsumerConfig,
    ConsumerGroup,
    Handler,
    Producer,
    ProducerConfig,
    Session,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.net.connection import ServerConnection
from asyncgroup.errors import AsyncGroupError, MalformedResponse
from asyncgroup.wire import messages as m
from tests.memory_use import memory_under
from tests.profiles import soak, thinned

TOPIC = "orders"
PARTITIONS = 6
RECORDS = 300
Corrupt = Callable[[bytes, random.Random], bytes]


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def garbage(frame: bytes, rng: random.Random) -> bytes:
    """The correct correlation id, followed by random bytes of the correct length."""
    return frame[:8] + rng.randbytes(len(frame) - 8)


def cut_inside(frame: bytes, rng: random.Random) -> bytes:
    """A complete frame with only the beginning of the response."""
    return framed(frame[4 : rng.randint(8, max(8, len(frame) - 1))])


def longer(frame: bytes, rng: random.Random) -> bytes:
    """Extra bytes after the response."""
    return framed(frame[4:] + rng.randbytes(rng.randint(1, 40)))


def huge(frame: bytes, rng: random.Random) -> bytes:
    """A frame size beyond the limit."""
    return struct.pack(">i", rng.choice([2**31 - 1, 200 * 1024 * 1024])) + frame[4:]


def negative(frame: bytes, rng: random.Random) -> bytes:
    return struct.pack(">i", -rng.randint(1, 2**31)) + frame[4:]


def unasked(frame: bytes, rng: random.Random) -> bytes:
    """A response with the correlation id of no request."""
    return frame[:4] + rng.randbytes(4) + frame[8:]


def empty(_frame: bytes, _rng: random.Random) -> bytes:
    return framed(b"")


def counts(frame: bytes, rng: random.Random) -> bytes:
    """The largest numbers at positions where counts and lengths usually are."""
    return frame[:8] + rng.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07"]) * (len(frame) // 5)


def another_protocol(_frame: bytes, _rng: random.Random) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"


SEEDS = [
    10,
    32,
    *thinned([1, 2, 3]),
    *soak(range(100, 400)),
]
"""10 and 32 are regression tests: a broker with a negative id was taken for an unknown bootstrap address."""

KINDS: list[Corrupt] = [
    garbage,
    cut_inside,
    longer,
    huge,
    negative,
    unasked,
    empty,
    counts,
    another_protocol,
]


class ResponseCorruptor:
    """Corrupts one response in `every` of the nodes `nodes`, while it is `active`."""

    def __init__(self, seed: int, corruption: Corrupt, nodes: set[int], every: int = 3) -> None:
        self.rng = random.Random(seed)
        self.corruption = corruption
        self.nodes = nodes
        self.every = every
        self.active = True
        self.corrupted = 0

    def __call__(self, node: int, frame: bytes) -> bytes:
        if not self.active or node not in self.nodes or self.rng.randrange(self.every):
            return frame
        self.corrupted += 1
        return self.corruption(frame, self.rng)


@pytest.fixture
def install_corruptor(monkeypatch: pytest.MonkeyPatch) -> Callable[[ResponseCorruptor], None]:
    """Put a `ResponseCorruptor` between the nodes and the network."""
    write = ServerConnection._write

    def install(corruptor: ResponseCorruptor) -> None:
        def corrupted(self: ServerConnection, pieces: list[bytes]) -> None:
            write(self, [corruptor(self._listener.node_id, b"".join(pieces))])

        monkeypatch.setattr(ServerConnection, "_write", corrupted)

    return install


class Reader(Handler):
    """Collects what it reads, by partition."""

    def __init__(self) -> None:
        self.seen: dict[int, list[int]] = {}
        self.count = asyncio.Event()

    async def consume_claim(self, _session: Session, claim: Claim) -> None:
        async for record in claim:
            self.seen.setdefault(record.partition, []).append(record.offset)
            claim.mark(record)
            if sum(len(set(offsets)) for offsets in self.seen.values()) == RECORDS:
                self.count.set()


def config(**keys: object) -> ConsumerConfig:
    return ConsumerConfig(client_id="reader", auto_offset_reset="earliest", auto_commit_interval=0.5, **keys)  # type: ignore[arg-type]


async def write_all(cluster: EmbeddedCluster, lost: bool = False) -> None:
    """Write the records; with corrupted responses a record may be written twice, or fail."""
    settings = ProducerConfig(client_id="writer", request_timeout=5.0)
    async with Producer(cluster.bootstrap_servers, settings) as producer:
        for number in range(RECORDS):
            try:
                await producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
            except AsyncGroupError:
                assert lost


@pytest.mark.parametrize("seed", [1, *soak([2])])
@pytest.mark.parametrize("corruption", thinned(KINDS, every=3), ids=lambda kind: kind.__name__)
async def test_everything_is_read_although_a_third_of_the_responses_is_garbage(
    corruption: Corrupt, seed: int, install_corruptor: Callable[[ResponseCorruptor], None]
) -> None:
    """One node of three corrupts responses for a while; no record is lost or out of order, and reading continues."""
    async with EmbeddedCluster(3, seed=seed) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        await write_all(cluster)
        corruptor = ResponseCorruptor(seed, corruption, {1 + seed % 3})
        install_corruptor(corruptor)
        reader = Reader()
        async with ConsumerGroup(cluster.bootstrap_servers, "g", config()) as group:
            running = asyncio.create_task(group.run(TOPIC, reader))
            await asyncio.wait([running], timeout=20)
            corruptor.active = False
            async with asyncio.timeout(120):
                await reader.count.wait()
            assert not running.done()
            # few errors compared to all requests: connections are retried with pauses
            assert 3 < corruptor.corrupted < 2000
            running.cancel()
            await asyncio.wait([running])
        for offsets in reader.seen.values():
            assert sorted(set(offsets)) == list(range(RECORDS // PARTITIONS))
        assert sum(cluster.group("g").offsets[key].offset for key in cluster.group("g").offsets) == RECORDS


@pytest.mark.parametrize("corruption", KINDS, ids=lambda kind: kind.__name__)
async def test_a_cluster_with_only_garbage_responses_is_an_error_in_time(
    corruption: Corrupt, install_corruptor: Callable[[ResponseCorruptor], None]
) -> None:
    async with EmbeddedCluster(2, seed=1) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        install_corruptor(ResponseCorruptor(1, corruption, {1, 2}, every=1))
        async with asyncio.timeout(600):
            with pytest.raises(AsyncGroupError):
                async with ConsumerGroup(cluster.bootstrap_servers, "g", config()) as group:
                    await group.run(TOPIC, Reader())
            with pytest.raises(AsyncGroupError):
                async with Producer(cluster.bootstrap_servers) as producer:
                    await producer.send(TOPIC, b"x")


@pytest.mark.parametrize("seed", SEEDS)
async def test_flipped_bits_never_hang_the_client(
    seed: int, install_corruptor: Callable[[ResponseCorruptor], None]
) -> None:
    """Responses that still decode may have any content: only asyncgroup errors are raised, and close() ends in time."""

    def tipped(frame: bytes, rng: random.Random) -> bytes:
        body = bytearray(frame[8:])
        for _ in range(rng.randint(1, 3)):
            if body:
                body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        return frame[:8] + bytes(body)

    async with EmbeddedCluster(3, seed=seed, history_limit=0) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        await write_all(cluster)
        corruptor = ResponseCorruptor(seed, tipped, {1, 2, 3}, every=4)
        install_corruptor(corruptor)
        async with asyncio.timeout(400):
            for _ in range(3):
                try:
                    async with ConsumerGroup(cluster.bootstrap_servers, "g", config()) as group:
                        async with asyncio.timeout(60):
                            await group.run(TOPIC, Reader())
                except (AsyncGroupError, TimeoutError):
                    continue
        assert corruptor.corrupted
        corruptor.active = False
        reader = Reader()
        async with ConsumerGroup(cluster.bootstrap_servers, "another", config()) as group:
            running = asyncio.create_task(group.run(TOPIC, reader))
            async with asyncio.timeout(60):
                await reader.count.wait()
            running.cancel()
            await asyncio.wait([running])


async def test_a_frame_of_the_maximum_size_uses_no_more_memory(
    install_corruptor: Callable[[ResponseCorruptor], None],
) -> None:
    async with EmbeddedCluster(seed=1) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)

        def claims(frame: bytes, _rng: random.Random) -> bytes:
            return struct.pack(">i", 3_000_000) + frame[4:]

        install_corruptor(ResponseCorruptor(1, claims, {1}, every=1))
        settings = config(max_response_size=3_000_000, request_timeout=5.0, connect_timeout=5.0)
        with memory_under(20_000_000), pytest.raises(AsyncGroupError):
            async with ConsumerGroup(cluster.bootstrap_servers, "g", settings) as group:
                await group.run(TOPIC, Reader())


async def test_the_error_names_the_node_and_what_was_wrong(
    install_corruptor: Callable[[ResponseCorruptor], None],
) -> None:
    async with EmbeddedCluster(seed=1) as cluster:
        cluster.create_topic(TOPIC, 1)
        async with Cluster(cluster.bootstrap_servers) as client:
            await client.topics([TOPIC])
            install_corruptor(ResponseCorruptor(1, longer, {1}, every=1))
            with pytest.raises(
                MalformedResponse, match=r"node 1 \(127.0.0.1:\d+\): .*Response v\d+: .*left over"
            ):
                await client.request(1, m.ListGroupsRequest())
