"""Groups whose last commits were made by other programs: their metadata is ignored, and no record is lost.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import base64
import struct

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.offsets.commit_metadata import CommitMetadata, encode_metadata
from asyncgroup.offsets.window_encoding import encode_window
from asyncgroup.wire import messages as m
from asyncgroup.workqueue import Delivery, Mode
from tests.scenario.support import WorkHandler, running
from tests.stories.queue_members import acked, send, stored, window_of, working
from tests.stories.virtual import VirtualEnvironment

TP = TopicPartition("orders", 0)
BASE = 2


async def commit(env: VirtualEnvironment, metadata: str, offset: int = BASE) -> None:
    """Commit an offset with this metadata, as a consumer without a group's membership."""
    await env.admin.committed("g", [TP])  # creates __consumer_offsets
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(
        name="orders",
        topic_id=env.cluster.topic("orders").id,
        partitions=[part(partition_index=0, committed_offset=offset, committed_metadata=metadata)],
    )
    request = m.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic]
    )
    response = await env.admin.cluster.network.request(env.cluster.coordinator("g"), request)
    assert response.topics[0].partitions[0].error_code == 0


def ours(base: int, *runs: tuple[int, int]) -> str:
    """Return the metadata of a work queue."""
    return encode_metadata(
        TP, base, CommitMetadata(window=encode_window(AckWindow(base, runs), base, 1000).text)
    )


PARALLEL = base64.b64encode(b"n" + struct.pack(">hh", 1, 3)).decode()
"""Confluent's parallel-consumer: the first record is incomplete, the next three are completed."""

FOREIGN = {
    "none": "",
    "text": "checkpoint 17",
    "Kafka Streams": base64.b64encode(b"\x02" + struct.pack(">q", 1_700_000_000_000)).decode(),
    "Kafka Streams 1": base64.b64encode(b"\x01" + struct.pack(">q", 2)).decode(),
    "parallel-consumer": PARALLEL,
    "JSON": '{"offset": 2, "w": "abc"}',
    "the bridge": "foreachBatch/1:7:query",
    "umlauts": "täglich ✓",
    "of another offset": ours(1, (2, 4)),
    "cut off": ours(BASE, (3, 5))[:-2],
    "changed": ours(BASE, (3, 5)).replace("w=", "w=!"),
    "a longer prefix": "x" + ours(BASE, (3, 5)),
    "a newer version": ours(BASE, (3, 5)).replace("asyncgroup/1:", "asyncgroup/2:"),
    "long": "x" * 4096,
    "control characters": "\x00\x1b[31m\n",
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_all_records_from_the_committed_offset_on_are_delivered(
    env: VirtualEnvironment, kind: str, caplog: pytest.LogCaptureFixture
):
    await send(env, *[b"%d" % number for number in range(6)])
    await commit(env, FOREIGN[kind])
    async with working(env, "ann") as ann:
        await ann.until_count("end", 4)
        assert ann.of("begin") == [f"0@{offset}#1" for offset in range(2, 6)]
    assert await acked(env) == list(range(6))
    warnings = [
        each for each in caplog.records if each.name == "asyncgroup.offsets" and each.levelname == "WARNING"
    ]
    assert len(warnings) == (kind != "none")
    assert all("\x1b" not in each.getMessage() for each in warnings)


async def test_our_own_window(env: VirtualEnvironment):
    """The other formats are tested against this one, for which they must not be taken."""
    await send(env, *[b"%d" % number for number in range(6)])
    await commit(env, ours(BASE, (3, 5)))
    async with working(env, "ann") as ann:
        await ann.until_count("end", 2)
        assert ann.of("begin") == ["0@2#1", "0@5#1"]
    assert await acked(env) == list(range(6))


@pytest.mark.parametrize("mode", list(Mode))
async def test_migrated_from_parallel_consumer(env: VirtualEnvironment, mode: Mode):
    await send(env, *[b"%d" % number for number in range(7)])
    await commit(env, PARALLEL)
    async with working(env, "ann", migrate_from="parallel-consumer", mode=mode) as ann:
        await ann.until_count("end", 2)
        assert ann.of("begin") == ["0@2#1", "0@6#1"]
    assert await acked(env) == list(range(7))


@pytest.mark.parametrize("kind", [kind for kind in FOREIGN if kind != "parallel-consumer"])
async def test_other_metadata_is_not_taken_for_that_of_parallel_consumer(env: VirtualEnvironment, kind: str):
    await send(env, *[b"%d" % number for number in range(6)])
    await commit(env, FOREIGN[kind])
    async with working(env, "ann", migrate_from="parallel-consumer") as ann:
        await ann.until_count("end", 4)
        assert ann.of("begin") == [f"0@{offset}#1" for offset in range(2, 6)]


async def test_the_log_is_truncated_while_the_queue_is_away(env: VirtualEnvironment):
    """Acknowledgements in the lost part of the log do not count for the records that are there now."""

    async def fails(delivery: Delivery) -> None:
        if delivery.record.offset == 1:
            raise ValueError("later")

    for number in range(5):
        await send(env, b"old %d" % number)
    async with working(env, "ann", fails) as ann:
        await ann.until_count("end", 4)
    assert (await window_of(env)).runs == [(2, 5)]
    env.cluster.truncate("orders", 0, 3, env.cluster.leader("orders", 0) % 3 + 1)
    for number in (3, 4, 5):
        await send(env, b"new %d" % number)
    async with working(env, "bob") as bob:
        await bob.until("end 0@1#2", "end 0@3#1", "end 0@4#1", "end 0@5#1")
        assert len(bob.of("begin")) == 4
        assert bob.deliveries["0@3#1"].value == b"new 3"
    assert await acked(env) == [0, 1, 2, 3, 4, 5]


async def test_a_consumer_group_takes_over_from_a_queue_and_back(env: VirtualEnvironment):
    """A plain group member begins at the base, and delivers what was acknowledged above it again; a queue begins after it."""

    async def fails(delivery: Delivery) -> None:
        if delivery.record.offset == 1:
            raise ValueError("later")

    await send(env, *[b"%d" % number for number in range(4)])
    async with working(env, "ann", fails) as ann:
        await ann.until_count("end", 3)
    window = await window_of(env)
    assert (window.base, window.runs, window.attempts) == (1, [(2, 4)], {1: 1})
    handler = WorkHandler(env)
    config = ConsumerConfig(**env.config("bob"))
    async with (
        ConsumerGroup(env.bootstrap_servers, "g", config) as group,
        running(group.run("orders", handler)),
    ):
        await handler.until("done 0@3")
        assert "record 0@1" in handler.calls
    found = await stored(env)
    assert found is not None
    assert found.committed.offset == 4
    await send(env, b"4")
    async with working(env, "cat") as cat:
        await cat.until("end 0@4#1")
        assert cat.of("begin") == ["0@4#1"]


async def test_a_commit_by_hand_while_the_queue_is_away(env: VirtualEnvironment):
    """An offset that was set back delivers again from there on."""
    await send(env, *[b"%d" % number for number in range(4)])
    async with working(env, "ann") as ann:
        await ann.until_count("end", 4)
    env.cluster.commit("g", {("orders", 0): 1})
    async with working(env, "bob") as bob:
        await bob.until_count("end", 3)
        assert bob.of("begin") == ["0@1#1", "0@2#1", "0@3#1"]
