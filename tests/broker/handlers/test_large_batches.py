"""Produced batches that are checked on a thread: the loop is not blocked, and changes during the check apply."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.handlers import produce as produce_handler
from asyncgroup.error_codes import ErrorCode
from asyncgroup.off_loop import run_off_loop
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import batch, with_crc
from tests.broker.client import Disconnected, connect
from tests.broker.internals import controller_of, topic_of
from tests.broker.requests import produce, put

LARGE = batch(bytes(3 << 20), codec="gzip")
"""A batch of three kilobytes that decompresses to three megabytes."""


def many(count: int, **fields) -> bytes:
    builder = BatchBuilder(size_limit=1 << 30, **fields)
    for _ in range(count):
        assert builder.append(1000, b"k", b"")
    return builder.build()


@pytest.fixture
def during_check(monkeypatch):
    """Register coroutine functions, each of which is run during the check of one batch."""
    waiting, seen = [], []

    async def run(function, *args):
        seen.append(function)
        if waiting:
            await waiting.pop(0)()
        return await run_off_loop(function, *args)

    def happens(*actions) -> list:
        waiting.extend(actions)
        return seen

    monkeypatch.setattr(produce_handler, "run_off_loop", run)
    return happens


@pytest.mark.real
async def test_decompression_bombs_do_not_block_the_loop():
    bomb = batch(bytes(80 << 20), codec="gzip")
    gaps = []

    async def beat(client) -> None:
        while True:
            began = time.perf_counter()
            await client.ask(m.HeartbeatRequest(group_id="g", member_id="m"))
            gaps.append(time.perf_counter() - began)
            await asyncio.sleep(0.005)

    async with EmbeddedCluster() as cluster, connect(cluster) as client, connect(cluster) as other:
        cluster.create_topic("t", 3)
        beating = asyncio.create_task(beat(other))
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        results = await put(client, cluster, bomb, bomb, bomb)
        taken = time.perf_counter() - began
        beating.cancel()
        assert [result.error_code for result in results] == [0, 0, 0]
        assert max(gaps) < taken / 4
        assert len(gaps) > 10
        assert [cluster.partition("t", index).log_end_offset for index in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("acks", [-1, 0, 1])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_large_batches_are_appended_like_others(cluster, client, codec, acks, during_check):
    seen = during_check()
    cluster.create_topic("t", 2)
    value = bytes(3 << 20)
    request = produce(cluster, batch(value, codec=codec), batch(b"small"), acks=acks)
    sent = client.send(request)
    if acks:
        (topic,) = (await client.receive(request, *sent)).responses
        assert [one.error_code for one in topic.partition_responses] == [0, 0]
    after = produce(cluster, batch(b"after"))
    await client.ask(after)
    assert [record.value for record in cluster.records("t")] == [value, b"after", b"small"]
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("configs", "data"),
    [
        ({"cleanup.policy": "compact"}, many(20_000)),
        ({"message.timestamp.before.max.ms": str(2**62)}, many(20_000)),
        ({"compression.type": "zstd"}, many(20_000)),
    ],
)
async def test_large_batches_whose_records_are_checked_are_appended_like_others(configs, data, during_check):
    seen = during_check()
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("t", configs=configs)
        (result,) = await put(client, cluster, data)
        assert (result.error_code, len(seen)) == (0, 1)
        (result,) = await put(client, cluster, many(10))
        assert (result.error_code, len(seen)) == (0, 1)
        assert len(cluster.records("t")) == 20_010


async def test_errors_of_large_batches_are_the_same(cluster, client, during_check):
    seen = during_check()
    broken = with_crc(LARGE, len(LARGE) - 200, b"nonsense" * 10)
    cluster.create_topic("t", 3)
    cluster.create_topic("compacted", configs={"cleanup.policy": "compact"})
    results = await put(client, cluster, broken, LARGE[:-1] + b"!", LARGE)
    codes = [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]
    assert [result.error_code for result in results] == codes
    builder = BatchBuilder("gzip", 1 << 30)
    builder.append(1000, None, bytes(3 << 20))
    (result,) = await put(client, cluster, builder.build(), topic="compacted")
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert [one.batch_index for one in result.record_errors] == [0]
    client.send(produce(cluster, broken, acks=0))
    with pytest.raises(Disconnected):
        await client.receive_frame()
    assert len(seen) == 5


async def test_a_batch_refused_for_other_reasons_is_not_decompressed(during_check):
    seen = during_check()
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("t", 1, 1, configs={"max.message.bytes": "1000"})
        cluster.move_leader("t", 0, 1)
        (result,) = await put(client, cluster, LARGE)
        assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE
        cluster.move_leader("t", 0, 2)
        (result,) = await put(client, cluster, LARGE)
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert seen == []


async def test_a_leader_that_moves_during_the_check_appends_nothing(during_check):
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("t", 1, 2)
        cluster.move_leader("t", 0, 1)

        async def move() -> None:
            cluster.move_leader("t", 0, 2)

        during_check(move)
        (result,) = await put(client, cluster, LARGE)
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert cluster.records("t") == []


async def test_configs_changed_during_the_check_apply(cluster, client, during_check):
    cluster.create_topic("t")

    async def configure() -> None:
        controller_of(cluster).configure_topic(topic_of(cluster, "t"), {"max.message.bytes": "100"})

    seen = during_check(configure)
    (result,) = await put(client, cluster, LARGE)
    assert (result.error_code, len(seen)) == (ErrorCode.MESSAGE_TOO_LARGE, 1)


@pytest.mark.parametrize("ends", ["client", "node", "cluster"])
async def test_a_client_may_disconnect_during_the_check_but_a_stopped_node_appends_nothing(
    ends, during_check
):
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t")
        checking = asyncio.Event()

        async def wait() -> None:
            checking.set()
            await asyncio.sleep(10)

        during_check(wait)
        async with connect(cluster) as client:
            client.send(produce(cluster, LARGE, acks=0))
            await checking.wait()
        if ends == "node":
            await cluster.stop_node(1)
        if ends != "cluster":
            await asyncio.sleep(20)
            assert len(cluster.records("t")) == (1 if ends == "client" else 0)
    if ends == "cluster":
        assert asyncio.get_running_loop().time() < 1
        assert cluster.records("t") == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
