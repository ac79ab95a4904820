"""Coordinator writes that are in the log, but not replicated.

They are answered and take effect when they are replicated, and the next coordinator finds them in any case.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster, OffsetAndMetadata
from asyncgroup.broker.groups.classic.classic_group import ClassicGroupState
from asyncgroup.broker.groups.store.offset_store import COMMIT_TIMEOUT
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from tests.broker.client import Client, Disconnected, connect
from tests.broker.harness import GROUP, Harness
from tests.broker.internals import offsets_partition_of
from tests.broker.offsets_requests import T0, TOPIC, commit, fetched, group_records
from tests.broker.requests import assigned, commit_request, join, member, sync_request
from tests.broker.transactional import init_producer, txn_offset_commit

T1 = TopicPartition("t", 1)


def held(**config) -> Harness:
    """Return a harness whose followers are stopped."""
    harness = Harness(**config)
    harness.hold_followers()
    return harness


def after_writes(harness: Harness) -> list[ErrorCode]:
    """Return a list that gets the result of `after_writes`."""
    answers: list[ErrorCode] = []
    harness.coordinator.after_writes(GROUP, answers.append)
    return answers


# -- one coordinator -------------------------------------------------------------------------------------------


def test_a_commit_is_answered_and_visible_when_it_is_replicated():
    harness = held()
    first, second = harness.send_commit(5), harness.send_commit(6, partition=1)
    assert (first, second, harness.committed()) == ([], [], {})
    assert harness.log.log.end_offset == 2
    harness.log.log.follower_end_offset = 1
    harness.coordinator.on_high_watermark_updated(0)
    assert (first, second, harness.committed()) == ([ErrorCode.NONE], [], {T0: 5})
    harness.release_followers()
    assert (second, harness.committed()) == ([ErrorCode.NONE], {T0: 5, T1: 6})
    assert harness.timers.keys == set()


def test_a_commit_that_timed_out_takes_effect_when_it_is_replicated():
    harness = held()
    answers = harness.send_commit(5)
    harness.advance(COMMIT_TIMEOUT)
    assert answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert harness.committed() == {}
    harness.release_followers()
    assert (len(answers), harness.committed()) == (1, {T0: 5})


def test_the_next_coordinator_finds_an_unreplicated_commit():
    harness = held()
    answers = harness.send_commit(5)
    harness.move()
    assert answers == [ErrorCode.NOT_COORDINATOR]
    assert harness.committed() == {T0: 5}
    answers = harness.send_commit(6)
    harness.crash()
    assert (answers, harness.committed()) == ([], {T0: 6})


def test_a_group_is_stable_when_its_assignment_is_replicated(harness):
    one = harness.new_id()
    harness.join(one)
    harness.advance(0.0)
    harness.hold_followers()
    answers = harness.sync(one, {one: b"A"})
    assert (answers, harness.group.state) == ([], ClassicGroupState.COMPLETING_REBALANCE)
    harness.release_followers()
    assert answers[0].assignment == b"A"
    assert harness.group.state is ClassicGroupState.STABLE


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_takes_effect_after_the_commits_before_it(committed):
    harness = held()
    answers = harness.send_commit(5, producer_id=7, producer_epoch=0)
    harness.log.end_transaction(harness.coordinator, 7, commit=committed)
    later = harness.send_commit(6, producer_id=7, producer_epoch=0, partition=1)
    assert (answers, later) == ([], [])
    harness.release_followers()
    assert (answers, later) == ([ErrorCode.NONE], [ErrorCode.NONE])
    assert harness.committed() == ({T0: 5} if committed else {})
    assert set(harness.coordinator.offsets.unstable_partitions(GROUP)) == {T1}


def test_deletions_include_unreplicated_commits(harness):
    harness.commit(1)
    harness.hold_followers()
    commits = [harness.send_commit(2, partition=1), harness.send_commit(3, topic="u")]
    harness.coordinator.remove_topic("u")
    deleted = harness.delete()
    harness.release_followers()
    assert [*commits, deleted] == [[ErrorCode.NONE]] * 3
    assert harness.committed() == {}
    harness.move()
    assert (harness.committed(), dict(harness.coordinator.groups)) == ({}, {})


def test_a_commit_after_a_deletion_stays(harness):
    harness.commit(1)
    harness.hold_followers()
    harness.delete()
    harness.send_commit(2)
    harness.release_followers()
    assert harness.committed() == {T0: 2}
    harness.move()
    assert harness.committed() == {T0: 2}


def test_after_writes_waits_for_earlier_writes_only():
    harness = Harness(offsets_append_delay=1.0)
    assert after_writes(harness) == [ErrorCode.NONE]
    harness.send_commit(1)
    harness.advance(0.5)
    answers = after_writes(harness)
    later = harness.send_commit(2)
    harness.advance(0.5)
    assert (answers, later) == ([ErrorCode.NONE], [])
    harness.advance(0.5)
    assert later == [ErrorCode.NONE]
    harness.send_commit(3)
    answers = after_writes(harness)
    harness.move()
    assert answers == [ErrorCode.NOT_COORDINATOR]
    assert after_writes(harness) == [ErrorCode.NONE]
    harness.coordinator.unload(0)
    assert after_writes(harness) == [ErrorCode.NOT_COORDINATOR]


def test_after_writes_behind_a_commit_that_missed_its_transaction():
    harness = Harness(offsets_append_delay=1.0)
    harness.send_commit(1, producer_id=7, producer_epoch=0)
    answers = after_writes(harness)
    later = harness.send_commit(2, partition=1)
    harness.log.end_transaction(harness.coordinator, 7, commit=True)
    assert answers == [ErrorCode.NONE]
    harness.advance(1.0)
    assert later == [ErrorCode.NONE]


def test_an_empty_write_is_answered_after_earlier_writes():
    harness = held()
    harness.send_commit(1)
    answers = harness.send_commit(1, metadata="m" * 5000)
    waiting = after_writes(harness)
    assert answers == waiting == []
    assert repr(harness.store._partitions[0]) == "<LoadedPartition 0 0 queued, 3 not replicated>"
    harness.advance(COMMIT_TIMEOUT)
    assert waiting == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    harness.release_followers()
    assert len(answers) == len(waiting) == 1


# -- a cluster -------------------------------------------------------------------------------------------------


def offsets_partition(cluster: EmbeddedCluster) -> int:
    return offsets_partition_of(cluster, "g")


def offset_of(cluster: EmbeddedCluster) -> int:
    (kept,) = cluster.group("g").offsets.values()
    assert isinstance(kept, OffsetAndMetadata)
    return kept.offset


async def is_answered(client: Client, request, sent) -> bool:
    try:
        await client.receive(request, *sent)
    except Disconnected:
        return False
    return True


@pytest.mark.parametrize("dies", [True, False])
async def test_a_node_that_stops_or_resigns_between_append_and_response(dies):
    """The commit is stored although the client got no response."""
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t", replication_factor=2)
        old = cluster.coordinator("g")
        async with connect(cluster, old) as client:
            await commit(client, cluster, {0: 5})
            cluster.hold_followers(TOPIC, offsets_partition(cluster))
            request = commit_request(cluster, 9, {0: 6})
            sent = client.send(request, 9)
            await asyncio.sleep(1.0)
            assert offset_of(cluster) == 5
            assert len(group_records(cluster)) == 2
            if dies:
                await cluster.stop_node(old)
                assert not await is_answered(client, request, sent)
            else:
                cluster.move_coordinator("g", 3 - old)
                answer = await client.receive(request, *sent)
                assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        assert offset_of(cluster) == 6


async def test_a_node_that_stops_between_the_append_of_an_assignment_and_its_response():
    """The next coordinator has the generation; the member gets its assignment from it."""
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t", replication_factor=2)
        old = cluster.coordinator("g")
        async with connect(cluster, old) as client:
            joined = await join(client)
            cluster.hold_followers(TOPIC, offsets_partition(cluster))
            request = sync_request(joined, plan={joined.member_id: assigned(0)})
            sent = client.send(request)
            await asyncio.sleep(1.0)
            assert cluster.group("g").state == "CompletingRebalance"
            await cluster.stop_node(old)
            assert not await is_answered(client, request, sent)
        view = cluster.group("g")
        assert (view.state, view.generation, set(view.members)) == ("Stable", 1, {joined.member_id})
        async with connect(cluster, 3 - old) as client:
            assert bytes((await client.ask(sync_request(joined))).assignment) == assigned(0)


async def test_parked_responses_are_sent_when_the_followers_catch_up():
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t", replication_factor=2)
        async with connect(cluster, cluster.coordinator("g")) as client:
            joined = await member(client, 0)
            fields = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
            cluster.hold_followers(TOPIC, offsets_partition(cluster))
            assert await commit(client, cluster, {0: 5}, **fields) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
            leave = m.LeaveGroupRequest("g", members=[m.LeaveGroupRequest.MemberIdentity(joined.member_id)])
            sent = client.send(leave)
            await asyncio.sleep(1.0)
            assert cluster.history.of("LeaveGroup")[-1].response is None
            cluster.release_followers(TOPIC, offsets_partition(cluster))
            assert (await client.receive(leave, *sent)).error_code == 0
            assert await fetched(client) == {T0: 5}


async def test_require_stable_waits_for_pending_writes():
    """Otherwise a transactional commit that is not in the log yet would be missed (KIP-447)."""
    async with EmbeddedCluster(offsets_append_delay=1.0) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        await commit(client, cluster, {0: 5})
        producer = await init_producer(client)
        async with connect(cluster) as other:
            transactional = txn_offset_commit(producer, {0: 6})
            sent = client.send(transactional, 5)
            await asyncio.sleep(0.5)
            assert await fetched(other) == {T0: 5}
            requested = m.OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=None)
            request = m.OffsetFetchRequest(groups=[requested, requested], require_stable=True)
            groups = (await other.ask(request, 9)).groups
            found = {p.error_code for group in groups for p in group.topics[0].partitions}
            assert found == {ErrorCode.UNSTABLE_OFFSET_COMMIT}
            await client.receive(transactional, *sent)
            empty = m.OffsetFetchRequest(groups=[], require_stable=True)
            assert (await other.ask(empty, 9)).groups == []
