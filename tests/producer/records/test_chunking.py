"""Values above the limit are written in chunks: what is in the log, memory, failures, cancellation."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import (
    BrokerError,
    ClosedError,
    DeliveryFailedError,
    ErrorCode,
    InvalidRecordError,
    QueueFull,
)
from asyncgroup.model import Record, TopicPartition
from asyncgroup.producer.batches.batch import BATCH_OVERHEAD, record_size
from asyncgroup.wire.chunks import CHUNK_HEADERS, read_chunk_info
from tests.producer.support import TOPIC, now, produced, stored, writing

MIB = 1 << 20
KIB = 1024
VALUE = random.Random(1).randbytes(10 * KIB)


def small(**more: object) -> dict[str, object]:
    """Return settings with chunks of up to 1 KiB."""
    return {"chunking": True, "max_chunk_size": KIB, **more}


def chunks_of(cluster: EmbeddedCluster, partition: int | None = None, topic: str = TOPIC) -> dict[str, list[Record]]:  # fmt: skip
    """Return the chunks in the log by value, each in the log's order."""
    found: dict[str, list[Record]] = {}
    for record in cluster.records(topic, partition):
        if (info := read_chunk_info(record.headers)) is not None:
            found.setdefault(info.uuid, []).append(record)
    return found


def joined(records: list[Record]) -> bytes:
    """Return the value of complete chunks."""
    infos = [read_chunk_info(record.headers) for record in records]
    assert [info and info.chunk_id for info in infos] == list(range(len(records)))
    assert {info and (info.chunk_count, info.total_size) for info in infos} == {
        (len(records), sum(len(record.value or b"") for record in records))
    }
    return b"".join(record.value or b"" for record in records)


# --- what is written -----------------------------------------------------------------------------------------------


async def test_ten_mebibytes_over_a_limit_of_one() -> None:
    value = random.Random(1).randbytes(10 * MIB)
    async with writing(chunking=True) as (cluster, producer):
        metadata = await producer.send(TOPIC, value, key=b"k", headers=[("trace", b"1")], timestamp=7)
        (records,) = chunks_of(cluster).values()
        assert joined(records) == value
        assert len(records) == 11
        last = records[-1]
        assert metadata == (TOPIC, last.partition, last.offset, 7)
        assert metadata.first_offset == records[0].offset == 0
        assert {(record.partition, record.key, record.timestamp) for record in records} == {
            (last.partition, b"k", 7)
        }
        assert {tuple(record.headers[len(CHUNK_HEADERS) :]) for record in records} == {(("trace", b"1"),)}
        # as large as possible, but no larger
        sizes = [record_size(record.value, record.key, record.headers) for record in records]
        assert MIB - 200 < max(sizes) <= MIB - BATCH_OVERHEAD
        # smaller records are sent whole, to the same partition for the same key
        metadata = await producer.send(TOPIC, b"small", key=b"k")
        assert (metadata.partition, metadata.first_offset) == (last.partition, metadata.offset)


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_chunks_have_no_other_record_in_their_batch(codec: str) -> None:
    async with writing(nodes=1, partitions=1, linger=5.0, **small(), compression_type=codec) as (cluster, producer):  # fmt: skip
        started = now()
        await asyncio.gather(
            producer.send(TOPIC, VALUE), *(producer.send(TOPIC, b"%d" % number) for number in range(5))
        )
        assert now() - started < 1.0  # without lingering
        records = cluster.records(TOPIC)
        assert len(records) == 11 + 5 + 1
        assert sum(len(exchange.request.topic_data) for exchange in produced(cluster)) == len(records)


async def test_the_size_of_a_chunk_is_limited_whatever_the_key_and_headers_take() -> None:
    async with writing(**small()) as (cluster, producer):
        for length in (0, 1, 100, 150):
            await producer.send(TOPIC, VALUE, key=b"k" * length, headers=[("h" * length, b"v")])
        for records in chunks_of(cluster).values():
            assert joined(records) == VALUE
            assert max(record_size(each.value, each.key, each.headers) for each in records) <= KIB


@pytest.mark.full
async def test_random_bytes_fit_into_a_request_when_compression_enlarges_them() -> None:
    value = random.Random(1).randbytes(3 * MIB)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        async with writing(nodes=1, partitions=1, chunking=True, compression_type=codec) as (
            cluster,
            producer,
        ):
            await producer.send(TOPIC, value)  # else MESSAGE_TOO_LARGE
            assert [joined(records) for records in chunks_of(cluster).values()] == [value]


@pytest.mark.parametrize("size", [KIB - 21, KIB - 20])
async def test_a_record_is_split_from_the_first_byte_above_the_limit(size: int) -> None:
    async with writing(**small()) as (cluster, producer):
        metadata = await producer.send(TOPIC, b"v" * size)
        assert (metadata.offset - metadata.first_offset, bool(chunks_of(cluster))) == (
            (0, False) if size + 21 <= KIB else (1, True)
        )


async def test_a_value_has_one_partition_without_a_key_and_before_the_topic_is_known() -> None:
    async with writing(**small()) as (cluster, producer):
        futures = [producer.send_nowait(TOPIC, VALUE) for _ in range(5)]
        after = producer.send_nowait(TOPIC, b"after", partition=3)
        metadata = await asyncio.gather(*futures)
        assert len({each.partition for each in metadata}) > 1
        for each in metadata:
            assert VALUE in map(joined, chunks_of(cluster, each.partition).values())
        assert len(chunks_of(cluster)) == 5
        assert (await after).partition == 3


async def test_the_partitioner_is_called_once_for_a_value() -> None:
    calls: list[bytes | None] = []

    def partitioner(key: bytes | None, partitions: int) -> int:
        calls.append(key)
        return len(calls) % partitions

    async with writing(**small(), partitioner=partitioner) as (cluster, producer):
        for key in (b"a", b"b"):  # the topic is unknown, then known
            await producer.send(TOPIC, VALUE, key=key)
        assert calls == [b"a", b"b"]
        assert [joined(records) for records in chunks_of(cluster).values()] == [VALUE, VALUE]


async def test_a_partition_that_is_given() -> None:
    async with writing(**small()) as (cluster, producer):
        await producer.enqueue(TOPIC, VALUE, partition=4)
        await producer.flush()
        assert [joined(records) for records in chunks_of(cluster, 4).values()] == [VALUE]
        with pytest.raises(
            InvalidRecordError,
            match="partition=6 is not allowed: orders-6 does not exist, the topic has 6 partitions",
        ):
            await producer.send(TOPIC, VALUE, partition=6)
        assert producer._inner.memory.used == 0


async def test_values_of_several_callers_are_interleaved() -> None:
    values = [random.Random(seed).randbytes(5 * KIB) for seed in range(4)]
    async with writing(nodes=1, partitions=1, **small(buffer_bytes=2 * KIB)) as (cluster, producer):
        await asyncio.gather(*(producer.send(TOPIC, value) for value in values))
        found = chunks_of(cluster)
        assert sorted(map(joined, found.values())) == sorted(values)
        assert len({uuid.split("-")[0] for uuid in found}) == 1
        order = [record.headers[0][1] for record in cluster.records(TOPIC)]
        assert sum(one != other for one, other in itertools.pairwise(order)) > len(values)


async def test_no_acknowledgements() -> None:
    async with writing(**small(acks=0)) as (_, producer):
        metadata = await producer.send(TOPIC, VALUE, partition=1)
        assert (metadata.partition, metadata.offset, metadata.first_offset) == (1, -1, -1)


# --- memory --------------------------------------------------------------------------------------------------------


async def test_a_value_larger_than_the_buffer() -> None:
    async with writing(**small(buffer_bytes=3 * KIB)) as (cluster, producer):
        most = 0

        def look(_: object) -> None:
            nonlocal most
            most = max(most, producer._inner.memory.used)

        cluster.faults.on("Produce", times=None).observe(look)
        await producer.send(TOPIC, VALUE)
        await producer.enqueue(TOPIC, VALUE)
        await producer.flush()
        assert [joined(records) for records in chunks_of(cluster).values()] == [VALUE, VALUE]
        assert 0 < most <= 3 * KIB
        assert producer._inner.memory.used == 0


async def test_send_nowait_needs_room_for_all_chunks() -> None:
    async with writing(**small(buffer_bytes=15 * KIB)) as (cluster, producer):
        first = producer.send_nowait(TOPIC, VALUE)
        with pytest.raises(QueueFull, match=r"no room for 1[0-9]{4} bytes"):
            producer.send_nowait(TOPIC, VALUE)
        await first
        await producer.send_nowait(TOPIC, VALUE * 2)  # larger than the buffer, which is empty
        assert len(chunks_of(cluster)) == 2
        assert producer._inner.memory.used == 0


# --- failures ------------------------------------------------------------------------------------------------------


async def test_one_chunk_fails_the_value_once() -> None:
    async with writing(nodes=1, partitions=1, **small()) as (cluster, producer):
        await producer.send(TOPIC, b"warm up")
        cluster.faults.on("Produce", nth=3).error(ErrorCode.INVALID_RECORD)
        with pytest.raises(BrokerError, match="INVALID_RECORD") as caught:
            await producer.send(TOPIC, VALUE)
        assert caught.value.__notes__ == ["chunk 3 of 12 of a record of 10261 bytes"]
        await producer.flush()
        (records,) = chunks_of(cluster).values()
        assert len(records) < 12
        await producer.send(TOPIC, VALUE)
        assert VALUE in (joined(records) for records in list(chunks_of(cluster).values())[1:])


async def test_a_chunk_that_is_too_large_for_the_topic_names_the_setting() -> None:
    async with writing(nodes=1, partitions=1, **small()) as (cluster, producer):
        cluster.faults.on("Produce").error(ErrorCode.MESSAGE_TOO_LARGE)
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE") as caught:
            await producer.send(TOPIC, VALUE)
        assert caught.value.__notes__[1] == "set max_chunk_size below max.message.bytes of the topic"


async def test_no_chunk_is_written_after_one_has_failed() -> None:
    async with writing(nodes=1, partitions=1, **small(buffer_bytes=KIB)) as (cluster, producer):
        cluster.faults.on("Produce", nth=2).error(ErrorCode.INVALID_RECORD)
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            await producer.send(TOPIC, VALUE)
        await producer.flush()
        assert len(cluster.records(TOPIC)) <= 2


async def test_a_value_lost_by_enqueue_is_one_lost_record() -> None:
    async with writing(nodes=1, partitions=1, **small()) as (cluster, producer):
        await producer.send(TOPIC, b"warm up")
        cluster.faults.on("Produce", times=5).error(ErrorCode.INVALID_RECORD)
        await producer.enqueue(TOPIC, VALUE)
        with pytest.raises(DeliveryFailedError, match="1 record not delivered") as caught:
            await producer.flush()
        assert list(caught.value.failed) == [TopicPartition(TOPIC, 0)]


async def test_a_cancelled_send_leaves_an_incomplete_value_and_no_memory() -> None:
    async with writing(nodes=1, partitions=1, **small(buffer_bytes=KIB)) as (cluster, producer):
        fault = cluster.faults.on("Produce", nth=3).hold()
        sending = asyncio.create_task(producer.send(TOPIC, VALUE))
        await asyncio.sleep(1.0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        fault.release()
        await producer.flush()
        (records,) = chunks_of(cluster).values()
        assert len(records) == 3
        assert producer._inner.memory.used == 0
        await producer.send(TOPIC, VALUE)
        assert joined(list(chunks_of(cluster).values())[1]) == VALUE


async def test_a_producer_that_is_closed_between_two_chunks() -> None:
    async with writing(nodes=1, partitions=1, **small(buffer_bytes=KIB)) as (cluster, producer):
        fault = cluster.faults.on("Produce", nth=3).delay(1.0)
        sending = asyncio.create_task(producer.send(TOPIC, VALUE))
        await asyncio.sleep(0.5)
        assert fault.hits == 1
        await producer.aclose()
        with pytest.raises(ClosedError):
            await sending
        assert stored(cluster) != []
        with pytest.raises(ClosedError):
            await producer.send(TOPIC, VALUE)
        with pytest.raises(ClosedError):
            producer.send_nowait(TOPIC, VALUE)
        assert producer._inner.memory.used == 0


async def test_chunks_survive_lost_responses_in_order() -> None:
    async with writing(nodes=1, partitions=1, **small(retry_backoff=0.1)) as (cluster, producer):
        for nth in (2, 5, 9):
            cluster.faults.on("Produce", nth=nth).disconnect("after")
        await producer.send(TOPIC, VALUE)
        (records,) = chunks_of(cluster).values()
        assert joined(records) == VALUE


# --- arguments -----------------------------------------------------------------------------------------------------


async def test_key_and_headers_must_leave_room() -> None:
    async with writing(**small()) as (_, producer):
        with pytest.raises(
            InvalidRecordError,
            match=r"size=10861 is not allowed: a record that can be split: .* leave 2[0-9]{2}, at least",
        ):
            await producer.send(TOPIC, VALUE, key=b"k" * 600)
        with pytest.raises(InvalidRecordError, match="can be split"):
            await producer.send(TOPIC, None, key=b"k" * 1024)


async def test_without_chunking_a_large_value_is_refused() -> None:
    async with writing() as (_, producer):
        for write in (producer.send, producer.enqueue):
            with pytest.raises(InvalidRecordError, match=r"size=.* at most max_request_size=1048576"):
                await write(TOPIC, b"v" * MIB)
        with pytest.raises(InvalidRecordError, match="size="):
            producer.send_nowait(TOPIC, b"v" * MIB)
