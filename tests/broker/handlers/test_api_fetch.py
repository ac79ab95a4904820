"""Fetch over the wire: long polls, size limits, errors, sessions."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.handlers.fetch import PartitionReader
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from tests.broker.batches import batch, offsets
from tests.broker.client import connect
from tests.broker.requests import fetch, now, partitions_of, put


@pytest.mark.parametrize("version", range(4, 19))
async def test_fetch(cluster, client, version):
    cluster.create_topic("t", 2)
    await put(client, cluster, batch(b"a", b"b"), batch(b"c"))
    answer = await client.ask(fetch(cluster, 0, 1, version=version), version)
    assert answer.error_code == 0
    found = partitions_of(answer)
    assert {p: offsets(data.records) for p, data in found.items()} == {0: [(0, 1)], 1: [(0, 0)]}
    assert {p: data.high_watermark for p, data in found.items()} == {0: 2, 1: 1}
    assert {data.last_stable_offset for data in found.values()} == {2, 1}
    assert {data.aborted_transactions is None for data in found.values()} == {True}
    answer = await client.ask(fetch(cluster, 0, version=version, isolation_level=1), version)
    assert partitions_of(answer)[0].aborted_transactions == []


async def test_a_fetch_waits_for_max_wait(cluster, client):
    cluster.create_topic("t")
    answer = await client.ask(fetch(cluster, 0, max_wait_ms=500))
    assert now() == 0.5
    assert partitions_of(answer)[0].records == b""
    await client.ask(fetch(cluster, 0, max_wait_ms=0))
    assert now() == 0.5


async def test_records_complete_a_parked_fetch():
    async with EmbeddedCluster() as cluster, connect(cluster) as reader, connect(cluster) as writer:
        cluster.create_topic("t", 3)
        request = fetch(cluster, 0, 1, 2, max_wait_ms=60_000)
        sent = reader.send(request)
        await asyncio.sleep(1)
        await put(writer, cluster, batch(b"a"), first=2)
        answer = await reader.receive(request, *sent)
        assert now() == 1.0
        assert {p: len(data.records) > 0 for p, data in partitions_of(answer).items()} == {
            0: False,
            1: False,
            2: True,
        }


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ValueError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (KafkaStorageError("the disk is gone"), ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
@pytest.mark.parametrize("place", ["readable_bytes", "read"])
async def test_a_parked_fetch_that_fails_does_not_fail_the_produce_request_that_completes_it(
    raised, code, place, monkeypatch
):
    async with EmbeddedCluster() as cluster, connect(cluster) as reader, connect(cluster) as writer:
        cluster.create_topic("t")
        request = fetch(cluster, 0, max_wait_ms=60_000)
        sent = reader.send(request)
        await asyncio.sleep(1)

        def fail(*_args, **_kwargs):
            raise raised

        monkeypatch.setattr(PartitionReader, place, fail)
        (written,) = await put(writer, cluster, batch(b"a"))
        assert written.error_code == 0
        assert (await reader.receive(request, *sent)).error_code == code
        assert now() == 1.0
        assert len(cluster.records("t")) == 1


async def test_min_bytes_counts_all_partitions_and_requests():
    async with EmbeddedCluster() as cluster, connect(cluster) as reader, connect(cluster) as writer:
        cluster.create_topic("t", 2)
        size = len(batch(b"a"))
        request = fetch(cluster, 0, 1, max_wait_ms=60_000, min_bytes=3 * size)
        sent = reader.send(request)
        for second, partition in enumerate((0, 1, 0), 1):
            await asyncio.sleep(1)
            await put(writer, cluster, batch(b"a"), first=partition)
            assert now() == second
        answer = await reader.receive(request, *sent)
        assert now() == 3.0
        assert sum(len(data.records) for data in partitions_of(answer).values()) == 3 * size


async def test_the_limits_of_a_fetch(cluster, client):
    cluster.create_topic("t", 3)
    for _ in range(4):
        await put(client, cluster, *[batch(b"x" * 100)] * 3)
    size = len(batch(b"x" * 100))

    async def counts(**limits) -> list[int]:
        found = partitions_of(await client.ask(fetch(cluster, 0, 1, 2, **limits)))
        return [len(offsets(found[p].records)) for p in range(3)]

    assert await counts() == [4, 4, 4]
    assert await counts(partition_max_bytes=2 * size) == [2, 2, 2]
    assert await counts(max_bytes=5 * size) == [4, 1, 0]
    assert await counts(max_bytes=1) == [1, 0, 0]
    assert await counts(partition_max_bytes=1) == [1, 0, 0]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"offset": -1}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"offset": 3}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"offset": 2}, ErrorCode.NONE),
        ({"epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 1}, ErrorCode.NONE),
        ({"epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"last_epoch": 7}, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
async def test_partition_errors_are_returned_at_once(fields, error):
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 1)
        await put(client, cluster, batch(b"a", b"b"))
        found = partitions_of(await client.ask(fetch(cluster, 0, max_wait_ms=5000, **fields)))[0]
        assert found.error_code == error
        if error:
            assert now() == 0.0
            assert (found.high_watermark, found.log_start_offset, found.records) == (-1, -1, b"")


async def test_unknown_partitions_do_not_end_the_wait_of_the_others(cluster, client):
    cluster.create_topic("t")
    answer = await client.ask(fetch(cluster, 0, 5, max_wait_ms=500))
    assert now() == 0.5
    assert partitions_of(answer)[5].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = fetch(cluster, 0)
    request.topics[0].topic_id = uuid.UUID(int=1)
    answer = await client.ask(request)
    assert now() == 0.5  # returned at once: no existing partition to wait for
    assert partitions_of(answer)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_followers_serve_consumers_from_version_11():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as one, connect(cluster, 2) as two:
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 2)
        await put(two, cluster, batch(b"a"))
        old = partitions_of(await one.ask(fetch(cluster, 0, version=10), 10))[0]
        assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        new = partitions_of(await one.ask(fetch(cluster, 0, version=11), 11))[0]
        assert (new.error_code, offsets(new.records)) == (0, [(0, 0)])


async def test_a_node_without_a_replica_returns_the_current_leader():
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t", 1, 1)
        leader = cluster.leader("t", 0)
        async with connect(cluster, 3 - leader) as client:
            answer = await client.ask(fetch(cluster, 0, version=16), 16)
            found = partitions_of(answer)[0]
            assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert found.current_leader.leader_id == leader
            assert [endpoint.node_id for endpoint in answer.node_endpoints] == [leader]


async def test_a_new_leader_or_deleted_topic_completes_a_parked_fetch():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 1)
        request = fetch(cluster, 0, epoch=1, max_wait_ms=60_000)
        sent = client.send(request)
        await asyncio.sleep(1)
        cluster.move_leader("t", 0, 2)
        found = partitions_of(await client.receive(request, *sent))[0]
        assert (now(), found.error_code) == (1.0, ErrorCode.FENCED_LEADER_EPOCH)
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (2, 2)

        request = fetch(cluster, 0, max_wait_ms=60_000)
        sent = client.send(request)
        await asyncio.sleep(1)
        cluster.delete_topic("t")
        found = partitions_of(await client.receive(request, *sent))[0]
        assert (now(), found.error_code) == (2.0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def test_a_diverging_reader_gets_the_diverging_epoch():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as one, connect(cluster, 2) as two:
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 1)
        await put(one, cluster, batch(b"a", b"b"))
        cluster.move_leader("t", 0, 2)
        await put(two, cluster, batch(b"c"))
        found = partitions_of(await two.ask(fetch(cluster, 0, offset=3, last_epoch=1, max_wait_ms=5000)))[0]
        assert (found.error_code, found.records) == (0, b"")
        assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (1, 2)
        assert now() == 0.0
        found = partitions_of(await two.ask(fetch(cluster, 0, offset=2, last_epoch=1)))[0]
        assert (offsets(found.records), found.diverging_epoch.epoch) == ([(2, 2)], -1)


async def test_a_parked_reader_gets_the_diverging_epoch():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 1)
        await put(client, cluster, batch(b"a"), batch(b"b"))
        await put(client, cluster, batch(b"c"))
        request = fetch(cluster, 0, offset=2, last_epoch=1, max_wait_ms=60_000)
        sent = client.send(request)
        await asyncio.sleep(1)
        cluster.truncate("t", 0, 1)
        found = partitions_of(await client.receive(request, *sent))[0]
        assert (now(), found.error_code, found.records) == (1.0, 0, b"")
        assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (1, 1)


@pytest.mark.parametrize("version", [4, 11, 18])
async def test_a_fetch_with_a_replica_id_must_come_from_a_follower(version):
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", 1, 2)
        leader = cluster.leader("t", 0)
        follower = next(one for one in cluster.partition("t", 0).replicas if one != leader)
        (stranger,) = {1, 2, 3} - {leader, follower}
        async with connect(cluster, leader) as client, connect(cluster, follower) as other:
            await put(client, cluster, batch(b"a"))
            cluster.hold_followers("t", 0)
            await put(client, cluster, batch(b"b"), acks=1)
            results = {}
            for replica in (-1, follower, leader, stranger):
                state = m.FetchRequest.ReplicaState(replica)
                who = {"replica_id": replica} if version < 15 else {"replica_state": state}
                answer = await client.ask(
                    fetch(cluster, 0, version=version, isolation_level=1, **who), version
                )
                found = partitions_of(answer)[0]
                results[replica] = (found.error_code, len(offsets(found.records)))
                assert answer.node_endpoints == []
            refused = (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
            # A follower reads beyond the high watermark.
            assert results == {-1: (0, 1), follower: (0, 2), leader: refused, stranger: refused}
            who = {"replica_id": follower} if version < 15 else {"replica_state": state}
            found = partitions_of(await other.ask(fetch(cluster, 0, version=version, **who), version))[0]
            assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_aborted_transactions_of_partitions_with_errors(cluster, client):
    cluster.create_topic("t")
    answer = await client.ask(fetch(cluster, 0, offset=9, isolation_level=1))
    found = partitions_of(answer)[0]
    assert (found.error_code, found.aborted_transactions) == (ErrorCode.OFFSET_OUT_OF_RANGE, None)
    found = partitions_of(await client.ask(fetch(cluster, 5, isolation_level=0)))[5]
    assert (found.error_code, found.aborted_transactions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])


# -- fetch sessions over the wire ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [7, 12, 13, 18])
async def test_an_incremental_session(cluster, client, version):
    cluster.create_topic("t", 3)

    async def ask(*partitions: int, **fields) -> m.FetchResponse:
        return await client.ask(fetch(cluster, *partitions, version=version, **fields), version)

    first = await ask(0, 1, 2, session_epoch=0, max_wait_ms=0)
    assert first.session_id > 0
    assert set(partitions_of(first)) == {0, 1, 2}
    session = first.session_id
    await put(client, cluster, batch(b"a"), first=1)
    second = await ask(session_id=session, session_epoch=1)
    assert (second.session_id, set(partitions_of(second))) == (session, {1})
    third = await ask(1, session_id=session, session_epoch=2, offset=1)
    assert (now(), third.responses) == (0.5, [])
    wrong = await ask(session_id=session, session_epoch=9)
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    await ask(session_id=session, session_epoch=-1)
    gone = await ask(session_id=session, session_epoch=4)
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_session_with_a_deleted_and_recreated_topic(cluster, client):
    cluster.create_topic("t")
    first = await client.ask(fetch(cluster, 0, session_epoch=0, max_wait_ms=0))
    stranger = fetch(cluster, 0, session_epoch=-1)
    cluster.delete_topic("t")
    errors = []
    for epoch in (1, 2):
        request = m.FetchRequest(session_id=first.session_id, session_epoch=epoch)
        errors.append(partitions_of(await client.ask(request))[0].error_code)
        if epoch == 1:
            cluster.create_topic("t")
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INCONSISTENT_TOPIC_ID]
    found = partitions_of(await client.ask(stranger))
    assert found[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
