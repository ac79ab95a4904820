"""A cluster on disk: restarts, the data directory, storage errors. `broker/log/test_segment_files.py` tests the files themselves."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.errors import Refused
from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.wire import messages as m
from tests.broker.batches import append, batch, offsets, sequenced
from tests.broker.client import connect
from tests.broker.internals import controller_of, data_of, log_of, partition_in
from tests.broker.offsets_requests import T0, commit, fetched
from tests.broker.requests import (
    commit_request,
    errors,
    fetch,
    join,
    member,
    partitions_of,
    put,
    sync_request,
)

DAY = 86_400_000


def on_disk(path: Path, nodes: int = 1, **options) -> EmbeddedCluster:
    return EmbeddedCluster(nodes, data_dir=path, **options)


# -- restarts ------------------------------------------------------------------------------------------------


async def test_topics_records_and_epochs_survive_a_restart(tmp_path):
    configs = {"retention.ms": "-1", "max.message.bytes": "5000"}
    async with on_disk(tmp_path, 3) as cluster, connect(cluster) as client:
        cluster.create_topic("t", 2, 1, configs=configs)
        cluster.move_leader("t", 1, 1)
        cluster.move_leader("t", 0, 1)
        await put(client, cluster, batch(b"a", b"b"), batch(b"c"))
        cluster.create_partitions("t", 3)
        cluster_id = controller_of(cluster).cluster_id
        before = cluster.topic("t")
        leaders = [p.leader for p in before.partitions]
        epoch = cluster.partition("t", 0).leader_epoch
    async with on_disk(tmp_path, 3) as cluster, connect(cluster) as client:
        after = cluster.topic("t")
        assert (after.id, after.configs, len(after.partitions)) == (before.id, configs, 3)
        assert [p.replicas for p in after.partitions] == [p.replicas for p in before.partitions]
        assert [p.leader for p in after.partitions] == leaders
        assert controller_of(cluster).cluster_id == cluster_id
        assert cluster.partition("t", 0).leader_epoch > epoch
        assert [record.value for record in cluster.records("t")] == [b"a", b"b", b"c"]
        assert [(p.base_offset, p.error_code) for p in await put(client, cluster, batch(b"d"))] == [(2, 0)]
        found = partitions_of(await client.ask(fetch(cluster, 0)))[0]
        assert offsets(found.records) == [(0, 1), (2, 2)]
        new = cluster.partition("t", 0).leader_epoch
        assert log_of(cluster, "t", 0).end_offset_for_epoch(epoch) == (epoch, 2)
        assert log_of(cluster, "t", 0).end_offset_for_epoch(new) == (new, 3)
        too_large = await put(client, cluster, batch(b"x" * 6000))
        assert too_large[0].error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_an_idempotent_producer_continues_after_a_restart(tmp_path):
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        for number in range(4):
            await put(client, cluster, sequenced(number))
        first = await client.ask(m.InitProducerIdRequest(None, 0))
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        again = await put(client, cluster, sequenced(2))
        assert (again[0].error_code, again[0].base_offset) == (0, 2), "a duplicate, with its offset"
        assert (await put(client, cluster, sequenced(6)))[
            0
        ].error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await put(client, cluster, sequenced(4)))[0].base_offset == 4
        second = await client.ask(m.InitProducerIdRequest(None, 0))
        assert second.producer_id > first.producer_id


async def test_deleted_records_and_topics_stay_deleted(tmp_path):
    async with on_disk(tmp_path) as cluster:
        for name in ("gone", "t"):
            cluster.create_topic(name)
            for _ in range(5):
                append(log_of(cluster, name, 0), batch(b"a"), 0)
        log_of(cluster, "t", 0).delete_records(3)
        cluster.delete_topic("gone")
        cluster.create_topic("gone")
        append(log_of(cluster, "gone", 0), batch(b"new"), 0)
        cluster.create_topic("empty", 2)
        append(log_of(cluster, "empty", 1), batch(b"a"), 0)
        log_of(cluster, "empty", 1).delete_old_segments(2 * DAY, DAY, -1)
    async with on_disk(tmp_path) as cluster:
        log = log_of(cluster, "t", 0)
        assert (log.start_offset, log.end_offset) == (3, 5)
        assert [record.offset for record in cluster.records("t")] == [3, 4]
        assert [record.value for record in cluster.records("gone")] == [b"new"]
        log = log_of(cluster, "empty", 1)
        assert (log.start_offset, log.end_offset) == (1, 1)
        cluster.delete_topic("gone")
    async with on_disk(tmp_path) as cluster:
        assert sorted(controller_of(cluster).topics) == ["empty", "t"]
        assert len(list((tmp_path / "topics").iterdir())) <= 2


async def test_groups_survive_a_restart(tmp_path):
    async with on_disk(tmp_path, 2) as cluster:
        cluster.create_topic("t")
        append(log_of(cluster, "t", 0), batch(b"a"), 0)
        async with connect(cluster, cluster.coordinator("g")) as client:
            joined = await member(client, 0)
            assert errors(
                await client.ask(
                    commit_request(
                        cluster, 10, {0: 1}, generation_id_or_member_epoch=1, member_id=joined.member_id
                    )
                )
            ) == [0]
        generation = cluster.group("g").generation
    async with on_disk(tmp_path, 2) as cluster:
        group = cluster.group("g")
        assert group.generation == generation
        assert [committed.offset for committed in group.offsets.values()] == [1]
        assert list(group.members) == [joined.member_id]


async def test_a_truncation_survives_a_restart(tmp_path):
    async with on_disk(tmp_path) as cluster:
        cluster.create_topic("t", configs={"internal.segment.bytes": "100"})
        for number in range(6):
            append(log_of(cluster, "t", 0), batch(b"%d" % number), 0)
        cluster.truncate("t", 0, 2)
        partition = partition_in(cluster, "t", 0)
        append(partition.log, batch(b"new"), partition.leader_epoch)
        epochs = list(partition.log.epochs)
    async with on_disk(tmp_path) as cluster:
        assert [record.value for record in cluster.records("t")] == [b"0", b"1", b"new"]
        assert log_of(cluster, "t", 0).epochs[: len(epochs)] == epochs


async def test_a_compacted_topic_stays_compacted(tmp_path):
    async with on_disk(tmp_path) as cluster:
        cluster.create_topic("t", configs={"internal.segment.bytes": "200"})
        for number in range(20):
            append(log_of(cluster, "t", 0), batch(b"%d" % number), 0)
        cluster.compact("t")
        files = len(list(tmp_path.glob("topics/t.*/0/*.log")))
        assert files == 2
        size = log_of(cluster, "t", 0).size
    async with on_disk(tmp_path) as cluster:
        log = log_of(cluster, "t", 0)
        assert [(record.offset, record.value) for record in read_records(log)] == [(19, b"19")]
        assert (log.end_offset, log.size) == (20, size)
        assert append(log, batch(b"x"), 0).base_offset == 20


async def test_ids_do_not_repeat_after_a_restart_with_the_same_seed(tmp_path):
    ids = []
    for life in range(3):
        async with on_disk(tmp_path, seed=1) as cluster, connect(cluster, cluster.coordinator("g")) as client:
            cluster.create_topic("t")
            ids.append(cluster.topic("t").id)
            joined = await member(client, life)
            ids.append(joined.member_id)
            cluster.delete_topic("t")
    assert len(set(ids)) == 6


@pytest.mark.parametrize("name", ["t", "__consumer_offsets"])
async def test_files_that_could_not_be_deleted_do_not_affect_a_new_topic_of_that_name(
    tmp_path, monkeypatch, name
):
    """The old log start offset is still in the metadata, and old segments in the directory of the same topic id."""
    async with on_disk(tmp_path) as cluster:
        cluster.create_topic(name)
        partition = partition_in(cluster, name, 3 % len(cluster.topic(name).partitions))
        for number in range(4):
            append(partition.log, batch(b"of the old one %d" % number), 0)
            partition.log.roll()
        partition.log.delete_records(3)
        controller_of(cluster).journal.metadata.delete("topic", name)  # the last successful write
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", broken)
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
            cluster.delete_topic(name)
        cluster.create_topic(name)
        partition = partition_in(cluster, name, partition.index)
        append(partition.log, batch(b"acknowledged"), 0)
        kept = [(record.offset, record.value) for record in cluster.records(name)]
        assert kept == [(0, b"acknowledged")]
    async with on_disk(tmp_path) as cluster:
        assert [(record.offset, record.value) for record in cluster.records(name)] == kept


# -- the directory ------------------------------------------------------------------------------------------


async def test_a_relative_directory_survives_a_change_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    async with on_disk(Path("data")) as cluster, connect(cluster) as client:
        monkeypatch.chdir("elsewhere")
        cluster.create_topic("t", 2)
        await put(client, cluster, batch(b"kept"))
    assert not list(Path().iterdir())
    monkeypatch.chdir(tmp_path)
    async with on_disk(Path("data")) as cluster:
        assert [record.value for record in cluster.records("t")] == [b"kept"]


async def test_a_directory_can_be_used_by_one_cluster_at_a_time(tmp_path):
    async with on_disk(tmp_path):
        with pytest.raises(UsageError, match=f"{tmp_path} is in use by another cluster"):
            async with on_disk(tmp_path):
                pass
    async with on_disk(tmp_path):
        pass


async def test_a_cluster_needs_all_nodes_with_replicas(tmp_path):
    async with on_disk(tmp_path, 3) as cluster:
        cluster.create_topic("t", 3, 1)
    with pytest.raises(ConfigError, match="nodes=2"):
        async with on_disk(tmp_path, 2):
            pass
    async with on_disk(tmp_path, 4) as cluster:
        assert [p.leader for p in cluster.topic("t").partitions] == [1, 2, 3]


# -- storage errors -----------------------------------------------------------------------------------------


def broken(*_):
    raise OSError(errno.EIO, "Input/output error")


async def test_failed_writes_are_not_acknowledged(tmp_path, monkeypatch):
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        await put(client, cluster, sequenced(0))
        write = os.pwritev

        def full(descriptor, parts, position):
            write(descriptor, [b"".join(parts)[:20]], position)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwritev", full)
        (result,) = await put(client, cluster, sequenced(1))
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        for change in (
            lambda: cluster.create_topic("u"),
            lambda: cluster.create_partitions("t", 2),
            lambda: log_of(cluster, "t", 0).delete_records(1),
        ):
            with pytest.raises(Refused) as caught:
                change()
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (cluster.partition("t", 0).log_end_offset, len(cluster.topic("t").partitions)) == (1, 1)
        monkeypatch.setattr(os, "pwritev", write)
        (result,) = await put(client, cluster, sequenced(1))
        assert (result.error_code, result.base_offset) == (0, 1)
        cluster.create_topic("later")
    async with on_disk(tmp_path) as cluster:
        assert [record.value for record in cluster.records("t")] == [b"s0", b"s1"]
        assert (sorted(controller_of(cluster).topics), cluster.partition("t", 0).log_start_offset) == (
            ["later", "t"],
            0,
        )


async def test_a_short_write_is_a_failed_write(tmp_path, monkeypatch):
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        write = os.pwritev
        monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: write(fd, [b"".join(parts)[:30]], at))
        (result,) = await put(client, cluster, batch(b"a"))
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        monkeypatch.setattr(os, "pwritev", write)
        (path,) = tmp_path.glob("topics/t.*/0/*.log")
        assert path.stat().st_size == 0


async def test_failed_writes_of_groups_and_offsets(tmp_path, monkeypatch):
    async with on_disk(tmp_path) as cluster, connect(cluster, cluster.coordinator("g")) as client:
        cluster.create_topic("t")
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", broken)
            request = m.FindCoordinatorRequest(coordinator_keys=["g"])
            (found,) = (await client.ask(request)).coordinators
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await commit(client, cluster, {0: 1}) == {0}
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", broken)
            assert await commit(client, cluster, {0: 2}) == {ErrorCode.NOT_COORDINATOR}
            assert await fetched(client) == {T0: 1}
            joined = await join(client)
            synced = await client.ask(sync_request(joined, plan={joined.member_id: b""}))
            assert synced.error_code == ErrorCode.NOT_COORDINATOR
        assert await fetched(client) == {T0: 1}
        assert await commit(client, cluster, {0: 3}) == {ErrorCode.UNKNOWN_MEMBER_ID}, (
            "the group has a member now"
        )
    async with on_disk(tmp_path) as cluster, connect(cluster, cluster.coordinator("g")) as client:
        assert await fetched(client) == {T0: 1}
        assert not cluster.group("g").members


async def test_reading_a_missing_or_truncated_file(tmp_path):
    async with on_disk(tmp_path) as cluster, connect(cluster) as client:
        cluster.create_topic("t", configs={"internal.segment.bytes": "100"})
        for _ in range(2):
            await put(client, cluster, batch(b"a" * 20))
        first, second = sorted(tmp_path.glob("topics/t.*/0/*.log"))
        with first.open("ab") as file:
            file.truncate(50)
        second.unlink()
        data_of(cluster).files.close_file(second)
        for offset in range(2):
            found = partitions_of(await client.ask(fetch(cluster, 0, offset=offset)))[0]
            assert (found.error_code, found.records) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
        requested = m.ListOffsetsRequest.ListOffsetsPartition(0, -1, 1000)
        request = m.ListOffsetsRequest(topics=[m.ListOffsetsRequest.ListOffsetsTopic("t", [requested])])
        answer = (await client.ask(request)).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not second.exists()


async def test_with_fsync_every_write_is_synced(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(fsync(descriptor)))
    async with on_disk(tmp_path, fsync=True) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        before = len(synced)
        assert before
        await put(client, cluster, batch(b"a"))
        assert len(synced) > before
