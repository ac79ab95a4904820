"""Large batches are compressed on threads; small ones, and those without compression, are not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from asyncgroup.errors import RequestTimedOut, UnsupportedVersionError
from asyncgroup.producer.batches.batch import COMPRESS_OFF_LOOP, ProducerBatch
from asyncgroup.producer.sending import compressor
from asyncgroup.wire.records import BatchBuilder
from tests.producer.support import TOPIC, produced, stored, writing

VALUE = b"0123456789" * 100
MANY = 10 * COMPRESS_OFF_LOOP // len(VALUE)


class Threads:
    """Counts the batches that are compressed on threads; each computation ends `delay` seconds after its begin."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.jobs: list[int] = []
        self.running = self.most = 0

    async def run(self, compress: Any, batches: Sequence[ProducerBatch]) -> None:
        self.jobs.append(len(batches))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.delay)
        finally:
            self.running -= 1
        compress(batches)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    found = Threads()
    monkeypatch.setattr(compressor, "run_off_loop", found.run)
    yield found
    assert found.running == 0


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number + VALUE for number in range(count)]


async def test_records_keep_their_order(threads: Threads) -> None:
    async with writing(compression_type="zstd", batch_size=2 * COMPRESS_OFF_LOOP) as (cluster, producer):
        threads.delay = 0.1
        for value in numbered(MANY):
            await producer.enqueue(TOPIC, value, partition=1)
        small = producer.send_nowait(TOPIC, b"small", partition=2)
        await producer.flush()
        assert stored(cluster, 1) == numbered(MANY)
        assert sum(threads.jobs) >= 4
        assert threads.most == 2
        assert small.result().offset == 0
        assert "0 batches waiting, 0 jobs" in repr(producer._inner.sender._compressor)


@pytest.mark.parametrize(("codec", "count"), [("none", MANY), ("zstd", 5)])
async def test_what_is_not_compressed_on_a_thread(threads: Threads, codec: Any, count: int) -> None:
    async with writing(compression_type=codec, linger=0.1) as (cluster, producer):
        for value in numbered(count):
            await producer.enqueue(TOPIC, value, partition=1)
        await producer.flush()
        assert stored(cluster, 1) == numbered(count)
    assert threads.jobs == []


async def test_a_batch_that_has_lingered_is_closed_before_it_is_compressed(threads: Threads) -> None:
    async with writing(compression_type="lz4", linger=0.5) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=1)
        threads.delay = 0.25
        for value in numbered(30):
            await producer.enqueue(TOPIC, value, partition=1)
        await asyncio.sleep(0.6)
        late = producer.send_nowait(TOPIC, b"late", partition=1)
        assert threads.jobs == [1]
        await producer.flush()
        assert stored(cluster, 1) == [b"warm up", *numbered(30), b"late"]
        assert len(produced(cluster)) == 3
        assert late.done()


async def test_an_error_of_the_codec_fails_only_its_batch(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: BatchBuilder) -> None:
        raise UnsupportedVersionError("no zstd")

    async with writing(compression_type="zstd") as (cluster, producer):
        with monkeypatch.context() as patch:
            patch.setattr(BatchBuilder, "compress", missing)
            failing = [producer.send_nowait(TOPIC, value, partition=1) for value in numbered(30)]
            results = await asyncio.gather(*failing, return_exceptions=True)
        assert {type(result) for result in results} == {UnsupportedVersionError}
        await producer.send(TOPIC, b"next", partition=1)
        assert stored(cluster) == [b"next"]
        assert threads.jobs == [1]


async def test_a_batch_may_expire_while_it_is_compressed(threads: Threads) -> None:
    async with writing(compression_type="zstd", delivery_timeout=40.0) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=1)
        threads.delay = 50.0
        expiring = [producer.send_nowait(TOPIC, value, partition=1) for value in numbered(30)]
        results = await asyncio.gather(*expiring, return_exceptions=True)
        assert {type(result) for result in results} == {RequestTimedOut}
        threads.delay = 0.0
        await producer.send(TOPIC, b"next", partition=1)
        await asyncio.sleep(20.0)
        assert stored(cluster) == [b"warm up", b"next"]


async def test_closing_waits_for_what_is_compressed(threads: Threads) -> None:
    async with writing(compression_type="zstd") as (cluster, producer):
        threads.delay = 1.0
        waiting = [producer.send_nowait(TOPIC, value, partition=1) for value in numbered(30)]
        await producer.aclose()
        assert stored(cluster, 1) == numbered(30)
        assert all(future.done() for future in waiting)
