"""Corrupt record batches: an error at every read until a seek, or skipped and reported with `on_corrupt_batch="skip"`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct

import pytest
from aiokafka.record.util import calc_crc32c

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import CorruptRecordsError, UnsupportedVersionError
from tests.broker.internals import log_of
from tests.consumer.brokers import caught_up, client, fetches, fill, now, read
from tests.consumer.support import batch, corrupt, feed, legacy, make_consumer, report_to, with_bad_content

SKIP = ConsumerConfig(on_corrupt_batch="skip")


async def all_there(consumer: PartitionConsumer, *, by_batches: bool) -> list[int]:
    """Return the offsets that can be read at once; CorruptRecordsError is raised."""
    found: list[int] = []
    if by_batches:
        batches = consumer.batches()
        while consumer._buffer:
            async with asyncio.timeout(1):
                found += [record.offset for record in await anext(batches)]
    else:
        while consumer._buffer:
            try:
                async with asyncio.timeout(1):
                    found.append((await anext(consumer)).offset)
            except TimeoutError:
                break  # the last batch was skipped
    return found


@pytest.mark.parametrize("by_batches", [False, True])
async def test_a_corrupt_batch_raises_at_every_read_until_a_seek_past_it(*, by_batches: bool) -> None:
    consumer = make_consumer()
    feed(consumer, batch(0, count=2), corrupt(batch(2, count=3)), batch(5, count=2))
    reading = consumer.batches() if by_batches else consumer
    if by_batches:
        assert [record.offset for record in await anext(consumer.batches())] == [0, 1]
    else:
        assert await read(consumer, 2) == [0, 1]
    for _ in range(3):
        with pytest.raises(CorruptRecordsError, match=r"orders-3 at offset 2: .*CRC"):
            await anext(reading)
        assert consumer.position == 2
    consumer.seek(5)
    feed(consumer, batch(5, count=2))
    assert await read(consumer, 2) == [5, 6]


@pytest.mark.parametrize("by_batches", [False, True])
@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("spoil", [corrupt, None])
async def test_a_corrupt_batch_is_skipped_and_reported_once(
    where: int, spoil, caplog: pytest.LogCaptureFixture, *, by_batches: bool
) -> None:
    consumer = make_consumer(config=SKIP)
    reported: list[Exception] = []
    report_to(consumer, reported.append)
    parts = [batch(0, count=2), batch(2, count=3), batch(5, count=2)]
    bases, counts = (0, 2, 5), (2, 3, 2)
    parts[where] = spoil(parts[where]) if spoil else with_bad_content(bases[where], counts[where])
    feed(consumer, *parts, high_watermark=7)
    with caplog.at_level(logging.WARNING, "asyncgroup"):
        found = await all_there(consumer, by_batches=by_batches) if not (by_batches and where == 2) else None
        if found is None:
            found = [record.offset for record in await anext(consumer.batches())]
    bad = list(range(bases[where], bases[where] + counts[where]))
    assert found == [offset for offset in range(7) if offset not in bad]
    (error,) = reported
    text = f"orders-3: offsets {bad[0]} to {bad[-1]} are skipped"
    assert text in str(error)
    assert [r.getMessage() for r in caplog.records if "are skipped" in r.getMessage()] == [str(error)]
    assert consumer._inner.fetch_offset == 7


async def test_a_corrupt_old_message_is_skipped_and_a_compressed_one_if_the_next_offset_is_known() -> None:
    """The header of a compressed message has its last offset only."""
    consumer = make_consumer(config=SKIP)
    reported: list[Exception] = []
    report_to(consumer, reported.append)
    compressed = corrupt(legacy([1, 2, 3], compressed=True))
    feed(consumer, corrupt(legacy([0])), compressed, legacy([4]), batch(5), high_watermark=8)
    assert await read(consumer, 2) == [4, 5]
    assert ["offsets 0 to 0 are" in str(reported[0]), "offsets 1 to 3 are" in str(reported[1])] == [True] * 2
    consumer.seek(1)
    feed(consumer, compressed, legacy([4, 5, 6], compressed=True), high_watermark=8)
    with pytest.raises(CorruptRecordsError, match="orders-3 at offset 3"):
        await anext(consumer)


async def test_a_compressed_old_message_that_looks_uncompressed_is_reported_with_all_its_offsets() -> None:
    consumer = make_consumer(config=SKIP)
    reported: list[Exception] = []
    report_to(consumer, reported.append)
    damaged = bytearray(legacy([1, 2, 3], compressed=True))
    damaged[17] ^= 1  # the codec
    feed(consumer, legacy([0]), bytes(damaged), batch(4), high_watermark=8)
    assert await read(consumer, 2) == [0, 4]
    assert "offsets 1 to 3 are skipped" in str(reported[0])


async def test_a_seek_into_a_corrupt_batch_reports_only_the_offsets_after_it() -> None:
    consumer = make_consumer(4, config=SKIP)
    reported: list[Exception] = []
    report_to(consumer, reported.append)
    feed(consumer, corrupt(batch(2, count=5)), batch(7), high_watermark=8)
    assert await read(consumer, 1) == [7]
    assert "offsets 4 to 6 are skipped" in str(reported[0])


@pytest.mark.parametrize(("last", "hwm"), [(900, 8), (5, 8), (900, 1 << 40)])
async def test_a_corrupt_batch_without_a_known_end_is_never_skipped(last: int, hwm: int) -> None:
    """With a wrong checksum the last offset may be wrong too, and good records after it might be skipped."""
    consumer = make_consumer(config=SKIP)
    data = bytearray(batch(0, count=3))
    struct.pack_into(">i", data, 23, last)
    feed(consumer, bytes(data), high_watermark=hwm)
    for _ in range(2):
        with pytest.raises(CorruptRecordsError, match="orders-3 at offset 0"):
            await anext(consumer)
    consumer.seek(3)
    feed(consumer, batch(3, count=1), high_watermark=hwm)
    assert await read(consumer, 1) == [3]


async def test_a_corrupt_compacted_batch_ends_where_the_next_one_begins() -> None:
    consumer = make_consumer(config=SKIP)
    feed(consumer, corrupt(batch(0, [0, 3], last=4)), batch(5), high_watermark=6)
    assert await read(consumer, 1) == [5]


async def test_an_unsupported_codec_is_not_corruption() -> None:
    consumer = make_consumer(config=SKIP)
    data = bytearray(batch(0, count=3))
    data[22] |= 7
    struct.pack_into(">I", data, 17, calc_crc32c(memoryview(data)[21:]))
    feed(consumer, bytes(data), high_watermark=3)
    for _ in range(2):
        with pytest.raises(UnsupportedVersionError, match="codec"):
            await anext(consumer)


# -- with a broker -----------------------------------------------------------------------------------------------------


def spoil(brokers: EmbeddedCluster, index: int, at: int, value: int) -> None:
    """Overwrite a byte of a batch in the log of orders-0."""
    kept = log_of(brokers, "orders", 0).segments.batch_index.batches[index]
    kept.chunk.data[kept.position + at] = value


async def test_corrupt_batches_are_skipped_and_reported(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=5, records=3)
    spoil(brokers, 1, 70, 0xEE)
    spoil(brokers, 4, 70, 0xEE)
    async with client(brokers, on_corrupt_batch="skip") as reader:
        (consumer,) = reader.read("orders", 0)
        errors = consumer.errors()
        assert await read(consumer, 9) == [0, 1, 2, *range(6, 12)]
        task = asyncio.ensure_future(read(consumer, 1))
        await asyncio.sleep(3)
        fill(brokers, "orders", 0, batches=1)
        assert await task == [15]
        said = [str(await anext(errors)) for _ in range(2)]
        assert ["offsets 3 to 5" in said[0], "offsets 12 to 14" in said[1]] == [True, True]
        assert len(reader.errors) == 2
        assert len(fetches(brokers)) < 15, "the corrupt batch is not fetched again and again"


@pytest.mark.parametrize("on_corrupt_batch", ["error", "skip"])
async def test_bytes_without_batches_raise_after_the_good_batches(
    brokers: EmbeddedCluster, on_corrupt_batch: str
) -> None:
    """The end of such a batch is not known, so it is not skipped; it is fetched again, in case it was damaged on the network."""
    fill(brokers, "orders", 0, batches=3, records=2)
    spoil(brokers, 1, 16, 9)
    async with client(brokers, on_corrupt_batch=on_corrupt_batch) as reader:
        (consumer,) = reader.read("orders", 0)
        await asyncio.sleep(2)
        assert len(fetches(brokers)) <= 2, "not again before the error was raised"
        assert await read(consumer, 2) == [0, 1]
        for _ in range(3):
            with pytest.raises(CorruptRecordsError, match="partition orders-0: batch at offset 2"):
                await asyncio.wait_for(anext(consumer), 5)
        await asyncio.sleep(0.2)
        spoil(brokers, 1, 16, 2)
        start = now()
        with pytest.raises(CorruptRecordsError):
            await read(consumer, 1)  # from a fetch before the repair
        assert await read(consumer, 4) == [2, 3, 4, 5]
        assert now() - start < 1
        await caught_up(consumer)


@pytest.mark.parametrize("by_batch", [False, True])
async def test_bytes_without_batches_and_a_slow_reader(brokers: EmbeddedCluster, by_batch: bool) -> None:
    """Found by chance: when the error was raised to a stalled reader, nothing was fetched any more."""
    fill(brokers, "orders", 0, batches=3, records=2)
    spoil(brokers, 1, 16, 9)
    async with client(brokers, max_processing_time=1.0) as reader:
        (consumer,) = reader.read("orders", 0)
        batches = consumer.batches()
        assert await read(consumer, 2) == [0, 1]
        for _ in range(3):
            await asyncio.sleep(5)
            assert consumer.stalled
            with pytest.raises(CorruptRecordsError, match="partition orders-0: batch at offset 2"):
                await asyncio.wait_for(anext(batches if by_batch else consumer), 5)
            assert not consumer.stalled
        spoil(brokers, 1, 16, 2)
        with contextlib.suppress(CorruptRecordsError):  # from a fetch in flight
            await asyncio.wait_for(anext(consumer), 5)
            consumer.seek(2)
        async with asyncio.timeout(5):
            assert await read(consumer, 4) == [2, 3, 4, 5]


async def test_a_reader_may_seek_past_bytes_without_batches(brokers: EmbeddedCluster) -> None:
    fill(brokers, "orders", 0, batches=3, records=2)
    spoil(brokers, 1, 16, 9)
    async with client(brokers) as reader:
        (consumer,) = reader.read("orders", 0)
        assert await read(consumer, 2) == [0, 1]
        with pytest.raises(CorruptRecordsError):
            await anext(consumer)
        consumer.seek(4)
        assert await read(consumer, 2) == [4, 5]


# -- batches above the decompression limit -----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("by_batches", [False, True])
async def test_a_batch_above_the_decompression_limit_raises_with_its_sizes(
    codec: str, *, by_batches: bool
) -> None:
    """A few thousand bytes decompress to two million; `max_response_size` limits both sizes."""
    consumer = make_consumer(config=ConsumerConfig(max_response_size=1_000_000))
    bomb = batch(2, codec=codec, value=bytes(2_000_000))
    feed(consumer, batch(0, count=2), bomb, batch(3, count=2))
    words = rf"orders-3 at offset 2: {len(bomb) - 61} bytes of {codec} data decompress to more than the limit of 1000000 bytes"
    batches = consumer.batches()
    if by_batches:
        assert [record.offset for record in await anext(batches)] == [0, 1]
    else:
        assert await read(consumer, 2) == [0, 1]
    for _ in range(2):
        with pytest.raises(CorruptRecordsError, match=words):
            await anext(batches if by_batches else consumer)
        assert consumer.position == 2


async def test_a_batch_above_the_decompression_limit_can_be_skipped() -> None:
    skipping = ConsumerConfig(max_response_size=1_000_000, on_corrupt_batch="skip")
    consumer = make_consumer(config=skipping)
    reported: list[Exception] = []
    report_to(consumer, reported.append)
    bomb = batch(2, codec="zstd", value=bytes(2_000_000))
    feed(consumer, batch(0, count=2), bomb, batch(3, count=2), high_watermark=5)
    assert await read(consumer, 4) == [0, 1, 3, 4]
    (error,) = reported
    assert "offsets 2 to 2 are skipped" in str(error)
    assert "bytes of zstd data decompress to more than the limit of 1000000 bytes" in str(error)
