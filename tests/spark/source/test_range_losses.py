"""Ranges whose records are missing or cannot be read; in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError, CorruptRecordsError, ErrorCode
from asyncgroup.spark.source.errors import DataLossError, SourceError
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import append
from tests.broker.internals import controller_of, log_of, partition_in
from tests.spark.source.reading import TOPIC, by_partition, fill, now, part, topic_ids, worker

pytestmark = pytest.mark.virtual(max_virtual_time=86_400)

LOSS = r"\[KAFKA_DATA_LOSS\.COULD_NOT_READ_OFFSET_RANGE\]"


def delete_before(brokers: EmbeddedCluster, offset: int) -> None:
    log_of(brokers, TOPIC, 0).delete_records(offset)


async def test_the_log_starts_after_the_start_of_the_range(
    brokers: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(brokers, 100)
    delete_before(brokers, 35)
    async with worker(brokers) as one:
        with pytest.raises(DataLossError, match=LOSS + r".*orders-0.*\[20, 35\)"):
            await one.offsets(part(20, 50))
    async with worker(brokers, fail_on_data_loss=False) as one:
        with caplog.at_level(logging.WARNING, "asyncgroup.spark"):
            assert await one.offsets(part(20, 50)) == list(range(35, 50))
            assert await one.offsets(part(20, 30)) == []
    assert caplog.text.count("COULD_NOT_READ_OFFSET_RANGE") == 2
    assert now() < 5


async def test_records_are_deleted_while_they_are_read(brokers: EmbeddedCluster) -> None:
    fill(brokers, 300, size=300)

    def delete(step: int) -> None:
        if step == 1:
            delete_before(brokers, 250)

    async with worker(brokers, fail_on_data_loss=False, fetch_bytes=20_000) as one:
        found = await one.offsets(part(0, 300), between=delete)
    assert found[-50:] == list(range(250, 300))
    assert found[:-50] == list(range(len(found) - 50)), "records that are already fetched are not lost"
    assert 50 < len(found) < 250


async def test_a_start_after_the_end_of_the_log_does_not_reset_the_offset(brokers: EmbeddedCluster) -> None:
    fill(brokers, 10)
    async with worker(brokers) as one:
        with pytest.raises(DataLossError, match=LOSS + r".*\[20, 30\).*\[0, 10\)"):
            await one.offsets(part(20, 30))
    async with worker(brokers, fail_on_data_loss=False) as one:
        assert await one.offsets(part(20, 30)) == []
    assert now() < 5


async def test_the_log_ends_before_the_range(brokers: EmbeddedCluster) -> None:
    """A new leader's high watermark may only be late: after a while the leader is asked for the end of its log."""
    fill(brokers, 10)
    async with worker(brokers, poll_timeout=30.0) as one:
        with pytest.raises(DataLossError, match=LOSS + r".*\[10, 12\).*ends at offset 10"):
            await one.offsets(part(5, 12))
    async with worker(brokers, poll_timeout=30.0, fail_on_data_loss=False) as one:
        assert await one.offsets(part(5, 12)) == [5, 6, 7, 8, 9]
    assert now() == pytest.approx(20, abs=3)


async def test_a_late_high_watermark_is_waited_for(brokers: EmbeddedCluster) -> None:
    fill(brokers, 10)
    brokers.hold_followers(TOPIC, 0)
    fill(brokers, 10)

    async def release() -> None:
        await asyncio.sleep(15)
        brokers.release_followers(TOPIC, 0)

    releasing = asyncio.create_task(release())
    fill(brokers, 20, partition=2)
    async with worker(brokers) as one:
        rows = by_partition(await one.rows(part(5, 20), part(0, 20, 2)))
    assert rows == {0: list(range(5, 20)), 2: list(range(20))}
    await releasing


async def test_errors_while_the_start_of_the_log_is_looked_up(brokers: EmbeddedCluster) -> None:
    fill(brokers, 100)
    delete_before(brokers, 35)
    brokers.faults.on("ListOffsets", times=3).error("NOT_LEADER_OR_FOLLOWER")
    async with worker(brokers, fail_on_data_loss=False) as one:
        assert await one.offsets(part(20, 50)) == list(range(35, 50))
    assert now() < 5


def truncated(brokers: EmbeddedCluster, **options: Any) -> Callable[[int], None]:
    """Return what truncates the log and fills it again when the first records have been read."""

    def truncate(step: int) -> None:
        if step == 1:
            brokers.truncate(TOPIC, 0, 40, **options)
            fill(brokers, 400, size=300)

    return truncate


def recreated(brokers: EmbeddedCluster) -> Callable[[int], None]:
    """Return what recreates the topic, with other keys, when the first records have been read."""

    def recreate(step: int) -> None:
        if step == 1:
            brokers.delete_topic(TOPIC)
            brokers.create_topic(TOPIC, 4)
            fill(brokers, 400, size=300, first_key=1000)

    return recreate


@pytest.mark.parametrize("fail", [True, False])
async def test_a_new_leader_that_lacks_records_which_were_read(brokers: EmbeddedCluster, fail: bool) -> None:
    """It is asked for the end of the last epoch before it is fetched from, as every consumer does (KIP-320)."""
    fill(brokers, 300, size=300)

    cut = truncated(brokers, leader=2)
    async with worker(brokers, fetch_bytes=20_000, fail_on_data_loss=fail) as one:
        if fail:
            with pytest.raises(DataLossError, match=LOSS + ".*the log was truncated at offset 40"):
                await one.offsets(part(0, 300), between=cut)
        else:
            assert await one.offsets(part(0, 300), between=cut) == list(range(300))
    assert [exchange.node_id for exchange in brokers.history.of("OffsetForLeaderEpoch")] == [2]


async def test_a_truncated_log(brokers: EmbeddedCluster) -> None:
    """Records after the truncation are others: with failOnDataLoss they must not be read as those of the range."""
    fill(brokers, 300, size=300)

    async with worker(brokers, fetch_bytes=20_000) as one:
        with pytest.raises(DataLossError, match=LOSS + ".*the log was truncated"):
            await one.offsets(part(0, 300), between=truncated(brokers))


async def test_a_truncated_log_is_read_further_without_fail_on_data_loss(brokers: EmbeddedCluster) -> None:
    fill(brokers, 300, size=300)

    async with worker(brokers, fetch_bytes=20_000, fail_on_data_loss=False) as one:
        assert await one.offsets(part(0, 300), between=truncated(brokers)) == list(range(300))


async def test_a_deleted_topic(brokers: EmbeddedCluster) -> None:
    fill(brokers, 10)
    async with worker(brokers) as one, worker(brokers, fail_on_data_loss=False) as careless:
        assert await one.offsets(part(0, 5)) == await careless.offsets(part(0, 5)) == [0, 1, 2, 3, 4]
        await asyncio.sleep(100)  # records fetched ahead expire
        brokers.delete_topic(TOPIC)
        with pytest.raises(DataLossError, match=LOSS + ".*partition does not exist"):
            await one.offsets(part(5, 10))
        assert await careless.offsets(part(5, 10)) == []
        assert await careless.rows(part(5, 10), part(5, 6, 1)) == []
    assert TOPIC not in controller_of(brokers).topics, "a metadata request must not recreate the topic"
    assert now() < 160


async def test_a_deleted_topic_with_a_short_poll_timeout(brokers: EmbeddedCluster) -> None:
    fill(brokers, 10)
    async with worker(brokers, fail_on_data_loss=False, poll_timeout=3.0) as one:
        assert await one.offsets(part(0, 10)) == list(range(10))
        brokers.delete_topic(TOPIC)
        assert await one.offsets(part(2, 5)) == []
    assert now() < 5


async def test_a_topic_recreated_while_it_is_read(brokers: EmbeddedCluster) -> None:
    fill(brokers, 300, size=300)

    async with worker(brokers, fetch_bytes=20_000) as one:
        with pytest.raises(DataLossError, match=LOSS + ".*recreated"):
            await one.offsets(part(0, 300), between=recreated(brokers))


async def test_nothing_is_read_of_a_recreated_topic_in_place_of_the_old_one(brokers: EmbeddedCluster) -> None:
    """The driver plans to read the new topic from its start: records read here would be duplicates."""
    fill(brokers, 300, size=300)

    async with worker(brokers, fetch_bytes=20_000, fail_on_data_loss=False) as one:
        rows = await one.rows(part(0, 300), between=recreated(brokers))
    assert 0 < len(rows) < 300
    assert [(row["offset"], row["key"]) for row in rows] == [(n, b"k%d" % n) for n in range(len(rows))]


@pytest.mark.parametrize("aware", [True, False], ids=["in its metadata", "nowhere yet"])
async def test_a_topic_recreated_after_the_plan(brokers: EmbeddedCluster, aware: bool) -> None:
    """Whether the worker's metadata has the old topic, the new one, or none: it reads only the topic of the plan."""
    fill(brokers, 100)
    async with worker(brokers) as strict, worker(brokers, fail_on_data_loss=False) as lenient:
        strict.topic_ids = lenient.topic_ids = topic_ids(brokers)
        if aware:
            for one in (strict, lenient):
                assert await one.offsets(part(0, 10)) == list(range(10))
        brokers.delete_topic(TOPIC)
        brokers.create_topic(TOPIC, 4)
        fill(brokers, 100)
        with pytest.raises(DataLossError, match=LOSS + r".*\[20, 30\).*recreated"):
            await strict.offsets(part(20, 30))
        assert await lenient.offsets(part(20, 30)) == []
        strict.topic_ids = topic_ids(brokers)
        assert await strict.offsets(part(20, 30)) == list(range(20, 30))
    assert now() < 60


async def test_records_fetched_ahead_are_not_used_for_a_recreated_topic(brokers: EmbeddedCluster) -> None:
    fill(brokers, 10)
    async with worker(brokers) as one:
        one.topic_ids = topic_ids(brokers)
        assert await one.offsets(part(0, 5)) == [0, 1, 2, 3, 4]
        brokers.delete_topic(TOPIC)
        brokers.create_topic(TOPIC, 4)
        fill(brokers, 10, first_key=1000)
        one.topic_ids = topic_ids(brokers)
        assert [row["key"] for row in await one.rows(part(5, 8))] == [b"k1005", b"k1006", b"k1007"]
    assert now() < 5


def jump(response: object) -> None:
    """Change a response as if the records before offset 30 were deleted."""
    for topic in response.responses:  # type: ignore[attr-defined]
        for data in topic.partitions:
            if data.records:
                data.log_start_offset = 30
                batches = list(iter_batches(data.records))
                data.records = b"".join(bytes(one.data) for one in batches[3:])


async def test_records_deleted_between_the_lookup_and_the_fetch_response(brokers: EmbeddedCluster) -> None:
    """The log start offset has increased, and the response's first record is after the fetch offset."""
    fill(brokers, 100)

    async def read(*, fail: bool) -> list[int]:
        brokers.faults.on("Fetch").mutate(jump)
        async with worker(brokers, fail_on_data_loss=fail) as one:
            return await one.offsets(part(0, 100))

    with pytest.raises(DataLossError, match=LOSS + r".*\[0, 30\).*starts at offset 30"):
        await read(fail=True)
    assert await read(fail=False) == list(range(30, 100))


async def test_a_loss_is_raised_that_comes_with_the_last_records_after_a_wait(
    brokers: EmbeddedCluster,
) -> None:
    """Responses that come after the wait for other partitions are applied, and checked, by the next one."""
    for number in (0, 1):
        fill(brokers, 100, partition=number)
    brokers.faults.on("Fetch", node=2).delay(1).mutate(jump)
    async with worker(brokers) as one:
        one.pause = 2.0
        with pytest.raises(DataLossError, match=LOSS + r".*orders-1.*\[0, 30\)"):
            await one.rows(part(0, 100), part(0, 100, 1))


async def test_a_topic_recreated_between_tasks_is_no_loss(brokers: EmbeddedCluster) -> None:
    """A worker's metadata may be older than the batch's plan: another topic id alone does not mean a deleted topic."""
    fill(brokers, 10)
    async with worker(brokers) as one:
        assert await one.offsets(part(0, 10)) == list(range(10))
        brokers.delete_topic(TOPIC)
        brokers.create_topic(TOPIC, 4)
        fill(brokers, 5)
        assert await one.offsets(part(0, 5)) == list(range(5))
    assert now() < 5


# --- corrupt batches --------------------------------------------------------------------------------------------------


def damage(response: object, offset: int = 30) -> None:
    """Invert a byte of the batch at `offset`."""
    for topic in response.responses:  # type: ignore[attr-defined]
        for data in topic.partitions:
            records = bytearray(data.records or b"")
            at = records.find(b"%d ...." % offset)
            if at >= 0:
                records[at] ^= 0xFF
                data.records = bytes(records)


async def test_a_batch_corrupted_in_transit_is_fetched_again(
    brokers: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(brokers, 100)
    brokers.faults.on("Fetch").mutate(damage)
    async with worker(brokers) as one:
        assert await one.offsets(part(0, 100)) == list(range(100))
    assert "fetched again" in caplog.text


async def test_a_batch_corrupted_in_transit_while_the_next_fetch_is_in_flight(
    brokers: EmbeddedCluster,
) -> None:
    """The in-flight fetch is for records after the corrupt batch: using its response would skip records."""
    fill(brokers, 600, size=300)
    brokers.faults.on("Fetch").mutate(damage)
    async with worker(brokers, fetch_bytes=20_000) as one:
        assert await one.offsets(part(0, 600)) == list(range(600))


async def test_a_corrupt_batch(brokers: EmbeddedCluster) -> None:
    fill(brokers, 100)
    brokers.faults.on("Fetch", times=None).mutate(damage)
    async with worker(brokers) as one:
        with pytest.raises(CorruptRecordsError, match="orders-0 at offset 30"):
            await one.offsets(part(0, 100))
        assert await one.offsets(part(40, 100)) == list(range(40, 100))
    async with worker(brokers, config={"on_corrupt_batch": "skip"}) as one:
        assert await one.offsets(part(0, 100)) == [*range(30), *range(40, 100)]


async def test_a_timestamp_out_of_range(brokers: EmbeddedCluster) -> None:
    place = partition_in(brokers, TOPIC, 0)
    builder = BatchBuilder()
    for time in (1, 1 << 61):
        assert builder.append(time, None, b"v")
    append(place.log, builder.build(), place.leader_epoch)
    async with worker(brokers) as one:
        with pytest.raises(SourceError, match=r"\[KAFKA_MALFORMED_RECORD_TIMESTAMP\].*orders-0 at offset 1"):
            await one.offsets(part(0, 2))
        assert await one.offsets(part(0, 1)) == [0]


async def test_error_codes_are_mapped_to_actions(brokers: EmbeddedCluster) -> None:
    """An unknown code that is not retriable fails the task, without endless retries."""
    fill(brokers, 10)
    brokers.faults.on("Fetch").error(ErrorCode.INVALID_REQUEST)
    async with worker(brokers) as one:
        with pytest.raises(BrokerError, match="INVALID_REQUEST"):
            await one.offsets(part(0, 10))


async def test_an_abandoned_reader_does_not_affect_the_next_one(brokers: EmbeddedCluster) -> None:
    fill(brokers, 1000, size=300)
    async with worker(brokers, fetch_bytes=20_000) as one:
        batches = one.batches(part(0, 1000))
        with pytest.raises(RuntimeError, match="enough"):
            await one.offsets(part(0, 1000), between=enough)
        await batches.aclose()
        assert await one.offsets(part(7, 700)) == list(range(7, 700))
        assert one.home.users == 0


def enough(step: int) -> None:
    if step == 2:
        raise RuntimeError("enough")
