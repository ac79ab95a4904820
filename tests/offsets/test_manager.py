"""OffsetManager with the embedded broker in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import Cluster, ConsumerConfig, Record, TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.handlers import api_versions
from asyncgroup.broker.handlers.registry import version_ranges
from asyncgroup.errors import (
    BrokerError,
    ClosedError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
    NoBrokersError,
)
from asyncgroup.offsets import OffsetManager
from asyncgroup.testing import Network
from asyncgroup.wire import messages as m
from tests.stories.virtual import now

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
COMMIT = "OffsetCommit"


@contextlib.asynccontextmanager
async def broker(**options: Any) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(2, host="10.0.0.1", seed=1, **options) as cluster:
        cluster.create_topic("t", 3)
        yield cluster


def manager(cluster: EmbeddedCluster, hooks: tuple[object, ...] = (), **config: Any) -> OffsetManager:
    return OffsetManager(
        cluster.bootstrap_servers, "g", ConsumerConfig(client_id="me", **config), hooks=hooks
    )


def committed(cluster: EmbeddedCluster, tp: TopicPartition = T0) -> tuple[int, str, int] | None:
    """Return the committed offset that the coordinator holds."""
    found = cluster.group("g").offsets.get(tp)
    return None if found is None else (found.offset, found.metadata, found.leader_epoch)


# -- managing ----------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """The brokers with the default options."""
    async with broker() as cluster:
        yield cluster


async def test_the_next_manager_begins_at_the_committed_offset(cluster: EmbeddedCluster) -> None:
    async with manager(cluster, auto_commit=False) as offsets:
        marks = await offsets.manage("t", 0)
        assert (marks.next_offset, marks.metadata, marks.leader_epoch) == (-1, "", -1)
        marks.mark_offset(5, "five", 2)
        marks.mark_offset(4, "four")
        await offsets.commit()
        assert committed(cluster) == (5, "five", 2)
        assert repr(offsets) == "<OffsetManager open: <Committer 'g': 1 partitions, 0 to commit>>"
    async with manager(cluster, auto_commit=False) as offsets:
        marks = await offsets.manage("t", 0)
        assert (marks.next_offset, marks.metadata, marks.leader_epoch) == (5, "five", 2)
        marks.reset_offset(3)
        marks.reset_offset(4)
        await offsets.commit()
        assert committed(cluster) == (3, "", -1)
    assert {e.version for e in cluster.history.of(COMMIT, "OffsetFetch")} == {10}


async def test_many_partitions_are_looked_up_in_one_request() -> None:
    async with broker() as cluster, manager(cluster) as offsets:
        managed = await offsets.manage_all([T1, ("t", 0)])
        assert list(managed) == [T1, T0]
        assert len(cluster.history.of("OffsetFetch")) == 1
        assert offsets.of("t", 1) is managed[T1]


async def test_a_partition_cannot_be_managed_twice() -> None:
    async with broker() as cluster, manager(cluster) as offsets:
        both = [asyncio.ensure_future(offsets.manage("t", 0)) for _ in range(2)]
        first, second = await asyncio.gather(*both, return_exceptions=True)
        assert offsets.of("t", 0) is first
        assert isinstance(second, ConfigError)
        with pytest.raises(ConfigError, match="a partition that is not managed yet"):
            await offsets.manage_all(T0)
        with pytest.raises(ConfigError, match="one of the partitions owned: t-0"):
            offsets.of("t", 1)
        assert list(await offsets.manage_all([T1, T1])) == [T1], "one that is named twice counts once"


async def test_an_unknown_partition_cannot_be_managed() -> None:
    async with broker() as cluster, manager(cluster, allow_auto_topic_creation=False) as offsets:
        with pytest.raises(BrokerError, match="partition t-3: UNKNOWN_TOPIC_OR_PARTITION"):
            await offsets.manage_all([T0, ("t", 3)])
        with pytest.raises(BrokerError, match="topic 'nope': UNKNOWN_TOPIC_OR_PARTITION"):
            await offsets.manage("nope", 0)
        with pytest.raises(ConfigError, match="topic="):
            await offsets.manage("a/b", 0)
        await offsets.manage("t", 0)


async def test_released_partitions_are_committed_and_can_be_managed_again() -> None:
    async with broker() as cluster, manager(cluster, auto_commit_interval=1000.0) as offsets:
        first = await offsets.manage("t", 0)
        first.mark_offset(5)
        await offsets.release("t", 0)
        assert committed(cluster) == (5, "", -1)
        first.mark_offset(9)
        second = await offsets.manage("t", 0)
        assert second.next_offset == 5
        cluster.faults.on(COMMIT).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        second.mark_offset(6)
        with pytest.raises(CommitFailedError, match="t-0"):
            await offsets.release("t", 0)
        assert (await offsets.manage("t", 0)).next_offset == 5
        (await offsets.manage("t", 1)).mark_offset(7, "x" * 5000)
        (await offsets.manage("t", 2)).mark_offset(7)
        await offsets.release("t", 2)
        assert committed(cluster, TopicPartition("t", 2)) == (7, "", -1), (
            "the failure concerns another partition"
        )
    async with broker() as cluster, manager(cluster, auto_commit=False) as offsets:
        (await offsets.manage("t", 0)).mark_offset(5)
        await offsets.release("t", 0)
        assert cluster.history.of(COMMIT) == []
        with pytest.raises(ConfigError):
            await offsets.release("t", 0)


async def test_marks_of_records_have_their_leader_epoch() -> None:
    async with broker() as cluster, manager(cluster, auto_commit=False) as offsets:
        marks = await offsets.manage("t", 0)
        marks.mark_record(Record("t", 0, 41, leader_epoch=6), "done")
        await offsets.commit()
        assert committed(cluster) == (42, "done", 6)
        marks.mark_offset(43)
        await offsets.commit()
        assert committed(cluster) == (43, "", -1), "a mark without an epoch is committed without one"
        assert await offsets.fetch([T0, ("t", 1)]) == {T0: (43, "", -1)}


# -- automatic commits -------------------------------------------------------------------------------------------------


async def test_new_marks_are_committed_at_the_interval() -> None:
    async with broker() as cluster, manager(cluster, auto_commit_interval=2.0) as offsets:
        begin = now()
        marks = await offsets.manage("t", 0)
        for offset in range(1, 100):
            marks.mark_offset(offset)
            await asyncio.sleep(0.1)
        commits = cluster.history.of(COMMIT)
        assert [round(e.time - begin) for e in commits] == [2, 4, 6, 8]
        await asyncio.sleep(10)
        assert len(cluster.history.of(COMMIT)) == 5, "no request without new marks"


async def test_the_last_marks_are_committed_at_close(cluster: EmbeddedCluster) -> None:
    async with manager(cluster, auto_commit_interval=1000.0) as offsets:
        (await offsets.manage("t", 0)).mark_offset(5)
    assert committed(cluster) == (5, "", -1)
    await offsets.aclose()
    assert len(cluster.history.of(COMMIT)) == 1


async def test_nothing_is_committed_at_close_without_auto_commit(cluster: EmbeddedCluster) -> None:
    async with manager(cluster, auto_commit=False) as offsets:
        (await offsets.manage("t", 0)).mark_offset(5)
        await asyncio.sleep(10)
    assert cluster.history.of(COMMIT) == []


@pytest.mark.parametrize("tries", [0, 3])
async def test_the_last_commit_is_retried_commit_retry_max_times(
    cluster: EmbeddedCluster, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.faults.on(COMMIT, times=None).error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    async with manager(cluster, auto_commit_interval=1000.0, commit_retry_max=tries) as offsets:
        (await offsets.manage("t", 0)).mark_offset(5)
    assert len(cluster.history.of(COMMIT)) == 1 + tries
    assert "t-0: commit of t-0 at 5 by group 'g': COORDINATOR_LOAD_IN_PROGRESS" in caplog.text


async def test_a_late_unanswered_commit_is_overwritten_at_close(network: Network) -> None:
    """Requests are ordered only within a connection: the older commit is processed after the newer one."""
    async with broker() as cluster:
        async with manager(cluster, auto_commit_interval=0.5, request_timeout=1.0) as offsets:
            marks = await offsets.manage("t", 0)
            marks.mark_offset(5)
            network.set_latency(3.0, "10.0.0.1")
            await asyncio.sleep(1.0)  # the commit of 5 is in flight
            network.set_latency(0.0, "10.0.0.1")
            marks.mark_offset(7)
            await asyncio.sleep(1.5)
            assert committed(cluster) == (7, "", -1)
            await asyncio.sleep(2.0)
            assert committed(cluster) == (5, "", -1), "overwritten by the unanswered request"
        assert committed(cluster) == (7, "", -1)


async def test_a_last_commit_without_a_response_ends_at_close_timeout(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.faults.on(COMMIT, times=None).delay(1000.0)
    async with manager(cluster, auto_commit_interval=1000.0, close_timeout=3.0) as offsets:
        (await offsets.manage("t", 0)).mark_offset(5)
        begin = now()
    assert 3.0 <= now() - begin < 3.1
    assert "the last commit took too long" in caplog.text


async def test_failed_automatic_commits_are_reported_and_continue(caplog: pytest.LogCaptureFixture) -> None:
    reported: list[set[TopicPartition]] = []

    class Hook:
        def on_commit(self, _group: str, _offsets: Any, errors: dict | None) -> None:
            reported.append(set(errors or ()))

    async with broker() as cluster:
        fault = cluster.faults.on(COMMIT, times=2).error(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        async with manager(cluster, (Hook(),)) as offsets:
            (await offsets.manage("t", 0)).mark_offset(5)
            await asyncio.sleep(3.5)
            assert fault.hits == 2
            assert committed(cluster) == (5, "", -1)
    assert reported == [{T0}, {T0}, set()]
    assert caplog.text.count("GROUP_AUTHORIZATION_FAILED") == 2


async def test_a_deleted_topic_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """sarama retries such a commit without end (its issues #1095, #793)."""
    async with broker() as cluster, manager(cluster, allow_auto_topic_creation=False) as offsets:
        cluster.create_topic("other", 1)
        marks, other = await offsets.manage("t", 0), await offsets.manage("other", 0)
        marks.mark_offset(5)
        cluster.delete_topic("t")
        await asyncio.sleep(10)
        assert len(cluster.history.of(COMMIT)) == 4
        for offset in range(1, 5):
            other.mark_offset(offset)
            await asyncio.sleep(1)
        assert committed(cluster, TopicPartition("other", 0)) == (4, "", -1)
        assert len(caplog.messages) == 1
        assert "t-0: commit of t-0 at 5 by group 'g': UNKNOWN_TOPIC_ID" in caplog.text
        with pytest.raises(CommitFailedError, match="UNKNOWN_TOPIC_ID"):
            await offsets.commit()


async def test_marks_are_not_committed_to_a_recreated_topic() -> None:
    async with broker() as cluster, manager(cluster, auto_commit=False) as offsets:
        marks = await offsets.manage("t", 0)
        marks.mark_offset(500)
        cluster.delete_topic("t")
        cluster.create_topic("t", 3)
        with pytest.raises(CommitFailedError, match="deleted and recreated") as raised:
            await offsets.commit()
        assert set(raised.value.errors) == {T0}
        assert committed(cluster) is None
        await offsets.release("t", 0)
        recreated = await offsets.manage("t", 0)
        assert recreated.next_offset == -1
        recreated.mark_offset(1)
        await offsets.commit()
        assert committed(cluster) == (1, "", -1)


async def test_a_group_refuses_commits_while_it_has_members() -> None:
    async with broker() as cluster, manager(cluster, auto_commit=False) as offsets:
        marks = await offsets.manage("t", 0)
        marks.mark_offset(5)
        cluster.faults.on(COMMIT).error(ErrorCode.UNKNOWN_MEMBER_ID)
        with pytest.raises(CommitFailedError, match="UNKNOWN_MEMBER_ID"):
            await offsets.commit()
        await offsets.commit()
        assert committed(cluster) == (5, "", -1)


async def test_commits_follow_a_coordinator_that_moves() -> None:
    async with broker() as cluster, manager(cluster, auto_commit=False) as offsets:
        marks = await offsets.manage("t", 0)
        for offset, node in ((1, 1), (2, 2), (3, 1)):
            cluster.move_coordinator("g", node)
            marks.mark_offset(offset)
            await offsets.commit()
            assert committed(cluster) == (offset, "", -1)


# -- stable offsets ----------------------------------------------------------------------------------------------------


async def test_managing_waits_for_open_transactions() -> None:
    async with broker() as cluster, manager(cluster) as offsets:
        fault = cluster.faults.on("OffsetFetch", times=10).error(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        await offsets.manage("t", 0)
        assert fault.hits == 10, "retried more often than other errors"
        assert all(e.request.require_stable for e in cluster.history.of("OffsetFetch"))
        await offsets.fetch([T1])
        assert not cluster.history.of("OffsetFetch")[-1].request.require_stable


async def test_managing_waits_at_most_a_minute_for_open_transactions() -> None:
    async with broker() as cluster, manager(cluster) as offsets:
        cluster.faults.on("OffsetFetch", times=None).error(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        begin = now()
        with pytest.raises(BrokerError, match="UNSTABLE_OFFSET_COMMIT"):
            await offsets.manage("t", 0)
        assert 60.0 <= now() - begin <= 63.0
        assert len(cluster.history.of("OffsetFetch")) < 50, "the backoff grows"


# -- lifecycle ---------------------------------------------------------------------------------------------------------


async def test_a_shared_cluster_stays_open() -> None:
    async with broker() as cluster, Cluster(cluster.bootstrap_servers) as shared:
        alone = OffsetManager(shared, "g")
        assert await alone.fetch([T0]) == {}, "fetch needs only an open Cluster"
        async with OffsetManager(shared, "g") as offsets:
            (await offsets.manage("t", 0)).mark_offset(5)
        assert shared.is_open
        assert committed(cluster) == (5, "", -1)
        assert "t" not in shared._inner._topics, "its metadata is not tracked any more"
        with pytest.raises(ConfigError, match="hooks"):
            OffsetManager(shared, "g", hooks=[object()])


async def test_calls_before_opening_and_after_closing(cluster: EmbeddedCluster) -> None:
    offsets = manager(cluster)
    for call in (offsets.commit(), offsets.manage("t", 0), offsets.release("t", 0)):
        with pytest.raises(ClosedError, match="'g' is not open"):
            await call
    async with offsets:
        marks = await offsets.manage("t", 0)
    marks.mark_offset(7)
    for call in (offsets.commit(), offsets.manage("t", 0)):
        with pytest.raises(ClosedError):
            await call
    with pytest.raises(ClosedError):
        await offsets.__aenter__()
    assert committed(cluster) is None


async def test_a_canceled_enter_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker() as cluster:
        offsets = manager(cluster)

        async def start() -> None:
            raise asyncio.CancelledError

        monkeypatch.setattr(offsets._tasks, "start", start)
        with pytest.raises(asyncio.CancelledError):
            await offsets.__aenter__()
        assert not offsets.cluster.is_open


async def test_closing_without_opening() -> None:
    await OffsetManager("10.0.0.9:9092", "g").aclose()


async def test_no_broker_answers() -> None:
    offsets = OffsetManager("10.0.0.9:9092", "g", ConsumerConfig(connect_timeout=1.0))
    with pytest.raises(NoBrokersError):
        await offsets.__aenter__()
    with pytest.raises(ConfigError, match="group_id"):
        OffsetManager("10.0.0.9:9092", " ")
    with pytest.raises(ConfigError, match="config"):
        OffsetManager("10.0.0.9:9092", "g", "auto_commit")  # type: ignore[arg-type]


async def test_a_canceled_close_is_completed(cluster: EmbeddedCluster) -> None:
    cluster.faults.on(COMMIT).delay(5.0)
    offsets = await manager(cluster, auto_commit_interval=1000.0).__aenter__()
    (await offsets.manage("t", 0)).mark_offset(5)
    closing = asyncio.ensure_future(offsets.aclose())
    await asyncio.sleep(1)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert committed(cluster) == (5, "", -1)
    assert not offsets.cluster.is_open


@pytest.mark.parametrize("high", [4, 5, 6, 9])
async def test_older_brokers(
    high: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OffsetCommit has the retention time up to version 4, leader epochs from 6 on, and topic ids from 10 on."""
    advertised = [
        m.ApiVersionsResponse.ApiVersion(
            api.api_key, api.min_version, high if api.api_key in (8, 9) else api.max_version
        )
        for api in version_ranges()
    ]
    monkeypatch.setattr(api_versions, "version_ranges", lambda: copy.deepcopy(advertised))
    async with broker() as cluster:
        async with manager(cluster, auto_commit=False, offset_retention=3600.0) as offsets:
            marks = await offsets.manage("t", 0)
            marks.mark_offset(5, "five", 3)
            await offsets.commit()
            marks.mark_offset(6)
            await offsets.commit()
            assert (await offsets.fetch([T0]))[T0].offset == 6
        first = cluster.history.of(COMMIT)[0]
        assert first.version == high
        assert first.request.retention_time_ms == (3_600_000 if high <= 4 else -1)
        (part,) = first.request.topics[0].partitions
        assert part.committed_leader_epoch == (3 if high >= 6 else -1)
        assert caplog.text.count("offset_retention=3600.0 has no effect") == (0 if high <= 4 else 1)
