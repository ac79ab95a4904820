"""The summaries of commits that `asyncgroup broker -v` logs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncgroup import Cluster
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cli.commit_log import CommitSummary, log_commits, log_timestamps
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from tests.broker.client import Client, connect


def commit(group: str, offsets: dict[tuple[str, int], int]) -> m.OffsetCommitRequest:
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition
    return m.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[
            topic(name=name, partitions=[part(number, offset)]) for (name, number), offset in offsets.items()
        ],
    )


async def test_commits_are_summarized_by_group(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncgroup.cli")
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("t", 9)
        cluster.create_topic("u", 1)
        async with log_commits(cluster, 5.0):
            await find_coordinator(client, "one", "two")
            for offset in range(10):
                await client.ask(commit("one", {("t", 0): offset, ("u", 0): 1}), 9)
            await asyncio.sleep(4.9)
            assert caplog.messages == []
            await asyncio.sleep(0.5)
            assert caplog.messages == ["group one: 10 commits; t-0 at 9, u-0 at 1"]
            cluster.faults.on("OffsetCommit").error(ErrorCode.REBALANCE_IN_PROGRESS)
            await client.ask(commit("two", {("t", 1): 5, ("t", 2): 5}), 9)
            await client.ask(commit("two", {("t", number): 7 for number in range(9)}), 9)
        named = ", ".join(f"t-{number} at 7" for number in range(6))
        assert caplog.messages[1:] == [
            f"group two: 2 commits; {named}, 3 more; 2 refused: REBALANCE_IN_PROGRESS"
        ]
        assert len(cluster.history) == 0


async def test_line_ends_in_a_group_id_are_escaped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncgroup.cli")
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.create_topic("t", 1)
        async with log_commits(cluster, 5.0):
            await find_coordinator(client, "g\n\x1b[2J")
            await client.ask(commit("g\n\x1b[2J", {("t", 0): 1}), 9)
            await asyncio.sleep(6)
    assert caplog.messages == ["group g\\n\\x1b[2J: 1 commit; t-0 at 1"]


async def find_coordinator(client: Client, *groups: str) -> None:
    """Send FindCoordinator, as every client does first."""
    for group in groups:
        await client.ask(m.FindCoordinatorRequest(key=group, key_type=0), 3)


async def test_commits_with_topic_ids_are_logged_by_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncgroup.cli")
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", 1)
        async with log_commits(cluster), Cluster(cluster.bootstrap_servers) as client:
            request = commit("g", {("", 0): 3})
            request.topics[0].topic_id = cluster.topic("t").id
            await client.coordinators.request("g", request)
    assert caplog.messages[-1] == "group g: 1 commit; t-0 at 3"


def test_a_single_commit() -> None:
    assert (
        CommitSummary(offsets={TopicPartition("t", 0): 4}, commits=1).line("g")
        == "group g: 1 commit; t-0 at 4"
    )


async def test_the_broker_logs_changes_of_topics_and_leaders(caplog: pytest.LogCaptureFixture) -> None:
    """One line for a moved leader, one for all leaders of a stopped node, none when the cluster stops."""
    caplog.set_level(logging.INFO, "asyncgroup.broker.metadata.controller")
    async with EmbeddedCluster(3) as cluster:
        cluster.create_topic("t", 6)
        cluster.move_leader("t", 0, 2)
        cluster.create_partitions("t", 7)
        await cluster.stop_node(2)
        cluster.delete_topic("t")
    assert caplog.messages[:5] == [
        "topic t: created with 6 partitions",
        "partition t-0: leader 1 -> 2",
        "topic t: now has 7 partitions",
        "node 2 stopped: 3 partitions get new leaders",
        "topic t: deleted",
    ]
    assert not any(message.startswith("partition") for message in caplog.messages[5:])


def test_the_formatter_escapes_line_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.NullHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    log_timestamps()
    record = logging.LogRecord(
        "x", logging.INFO, "", 0, "group %s: gone", ("a\n12:00:00.000 ü\x1b[2J",), None
    )
    assert handler.format(record).endswith(" group a\\n12:00:00.000 ü\\x1b[2J: gone")


async def test_the_broker_logs_static_members_that_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "asyncgroup.broker")
    join = m.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6000,
        rebalance_timeout_ms=6000,
        group_instance_id="till-1",
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol("range", b"")],
    )
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        await find_coordinator(client, "g")
        first = await client.ask(join)
        sync = m.SyncGroupRequest(
            group_id="g", generation_id=1, member_id=first.member_id, group_instance_id="till-1"
        )
        await client.ask(sync, 4)
        again = await client.ask(join)
        assert again.generation_id == 1
    assert (
        f"group g: static member till-1 rejoined with the new member id {again.member_id}" in caplog.messages
    )
