"""Offsets of groups inside transactions, over the wire."""

from __future__ import annotations

import pytest

from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from tests.broker.client import Client
from tests.broker.requests import commit_request, join, member
from tests.broker.transactional import (
    end_transaction,
    init_producer,
    partition_errors,
    txn_offset_commit,
)


async def committed(client: Client, version: int, *, stable: bool, everything: bool = False):
    """Return (offset, error) of the group's partition 0."""
    request = m.OffsetFetchRequest
    if version >= 8:
        topics = None if everything else [request.OffsetFetchRequestTopics("t", partition_indexes=[0])]
        group = request.OffsetFetchRequestGroup("g", topics=topics)
        answer = await client.ask(request(groups=[group], require_stable=stable), version)
        found = answer.groups[0].topics
    else:
        topics = None if everything else [request.OffsetFetchRequestTopic("t", [0])]
        found = (await client.ask(request("g", topics, require_stable=stable), version)).topics
    return [(p.committed_offset, p.error_code) for topic in found for p in topic.partitions]


@pytest.mark.parametrize("version", range(6))
async def test_offsets_in_a_transaction_in_every_version(cluster, client, version):
    cluster.create_topic("t")
    producer = await init_producer(client)
    await client.ask(commit_request(cluster, 9, {0: 3}), 9)
    if version < 5:
        error = ErrorCode.INVALID_TXN_STATE if version < 4 else ErrorCode.TRANSACTION_ABORTABLE
        answer = await client.ask(txn_offset_commit(producer, {0: 8}), version)
        assert partition_errors(answer) == [error]
        added = await client.ask(m.AddOffsetsToTxnRequest("tx", *producer, "g"), min(version, 4))
        assert added.error_code == 0
    for offset in (7, 8):
        answer = await client.ask(txn_offset_commit(producer, {0: offset}), version)
        assert partition_errors(answer) == [0]
    unstable = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    for asked in (7, 8, 9):
        assert await committed(client, asked, stable=True) == [unstable]
        assert await committed(client, asked, stable=True, everything=True) == [unstable]
        assert await committed(client, asked, stable=False) == [(3, 0)]
    assert await committed(client, 2, stable=False) == [(3, 0)]
    await end_transaction(client, producer, 5 if version == 5 else 3)
    assert await committed(client, 9, stable=True) == [(8, 0)]


async def test_offsets_of_an_aborted_transaction_are_dropped(cluster, client):
    cluster.create_topic("t")
    producer = await init_producer(client)
    assert partition_errors(await client.ask(txn_offset_commit(producer, {0: 8}), 5)) == [0]
    assert await committed(client, 9, stable=True) == [(-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)]
    await end_transaction(client, producer, 5, commit=False)
    assert await committed(client, 9, stable=True) == [(-1, 0)]


async def test_member_checks_of_txn_offset_commit(cluster, client):
    """From version 3 on the request names a member, which must belong to the group (KIP-447)."""
    cluster.create_topic("t")
    producer = await init_producer(client)

    async def errors(version: int = 5, group: str = "g", **who) -> list[int]:
        request = txn_offset_commit(producer, {0: 1}, group=group, **who)
        return partition_errors(await client.ask(request, version))

    assert await errors(generation_id=3, member_id="?") == [ErrorCode.ILLEGAL_GENERATION]
    joined = await member(client, 0)
    who = {"member_id": joined.member_id, "generation_id": joined.generation_id}
    assert await errors(**who) == [0]
    assert await errors(**who | {"generation_id": 7}) == [ErrorCode.ILLEGAL_GENERATION]
    assert await errors(**who | {"member_id": "?"}) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert await errors() == [0]  # older versions have no member fields
    rejoined = await join(client, member_id=joined.member_id)
    assert await errors(**who) == [ErrorCode.ILLEGAL_GENERATION]
    # between join and sync, where OffsetCommit would return REBALANCE_IN_PROGRESS
    assert await errors(**who | {"generation_id": rejoined.generation_id}) == [0]
    assert await errors(group="") == [ErrorCode.INVALID_GROUP_ID]


async def test_offsets_of_unknown_partitions(cluster, client):
    cluster.create_topic("t")
    producer = await init_producer(client)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = await client.ask(txn_offset_commit(producer, {0: 1, 5: 2}))
    assert partition_errors(answer) == [0, unknown]
    answer = await client.ask(txn_offset_commit(producer, {0: 1}, topic="nowhere"))
    assert partition_errors(answer) == [unknown]
    long = txn_offset_commit(producer, {0: 1})
    long.topics[0].partitions[0].committed_metadata = "x" * 4097
    assert partition_errors(await client.ask(long)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
