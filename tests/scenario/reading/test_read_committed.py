"""Groups with isolation_level=read_committed: open transactions block a claim, aborted records are skipped.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

from asyncgroup import Claim, ErrorCode as E
from asyncgroup.broker.groups.shared.requests import CommitRequest, OffsetAndMetadata
from asyncgroup.model import TopicPartition
from tests.broker.batches import append
from tests.broker.internals import complete_delayed_operations, node_of, partition_in, transactions_of
from tests.broker.transactional import transactional
from tests.group.parts import consumer_of
from tests.scenario.support import (
    Gate,
    WorkHandler,
    committed,
    group_requests,
    member,
    orders,
    read_offsets,
    read_with,
    running,
)
from tests.stories.virtual import VirtualEnvironment

READ_COMMITTED = {"isolation_level": "read_committed"}


class Transactions:
    """A transactional producer inside the embedded cluster: every step takes effect at once."""

    def __init__(self, env: VirtualEnvironment, name: str = "tx", timeout: float = 600.0) -> None:
        self._cluster = env.cluster
        self._coordinator = transactions_of(env.cluster)
        self._name = name
        self._topic = env.topic
        error, self.producer = self._coordinator.init_producer_id(name, timeout)
        assert not error
        self._sequences: dict[int, int] = {}

    def write(self, partition: int, *values: bytes) -> None:
        """Append a batch to the transaction."""
        place = partition_in(self._cluster, self._topic, partition)
        tp = TopicPartition(self._topic, partition)
        assert not self._coordinator.add_partitions(self._name, self.producer, (tp,))
        first = self._sequences.get(partition, 0)
        self._sequences[partition] = first + len(values)
        data = transactional(*values, producer_id=self.producer.id, epoch=self.producer.epoch, sequence=first)
        append(place.log, data, place.leader_epoch)
        complete_delayed_operations(self._cluster, place)

    def add_offset(self, group_id: str, partition: int, offset: int) -> None:
        """Commit an offset of a group in the transaction."""
        place = self._coordinator.offsets_topic_partition(group_id)
        assert not self._coordinator.add_partitions(self._name, self.producer, (place,))
        tp = TopicPartition(self._topic, partition)
        request = CommitRequest(
            group_id=group_id, offsets={tp: OffsetAndMetadata(offset)}, producer_id=self.producer.id
        )
        answers: list[object] = []
        node = node_of(self._cluster, self._cluster.coordinator(group_id))
        node.coordinator.offsets.commit_transactional(request, answers.append)
        assert answers == [{tp: E.NONE}]

    def end(self, *, commit: bool) -> None:
        error, _ = self._coordinator.end(self._name, self.producer, commit=commit)
        assert not error


def records(handler: WorkHandler) -> list[str]:
    return [call.removeprefix("record ") for call in handler.calls if call.startswith("record")]


def log_end(env: VirtualEnvironment, partition: int) -> int:
    return env.cluster.partition(env.topic, partition).log_end_offset


async def until_committed(env: VirtualEnvironment, partition: int, offset: int) -> None:
    async with asyncio.timeout(30.0):
        while committed(env).get(partition) != offset:
            await asyncio.sleep(0.1)


async def test_an_open_transaction_blocks_a_claim_until_its_end(env: VirtualEnvironment):
    await env.admin.produce(orders(0), [b"before"] * 2)
    writer = Transactions(env)
    writer.write(0, b"lost", b"lost")
    await env.admin.produce(orders(0), [b"behind"])
    handler = WorkHandler(env)
    async with member(env, **READ_COMMITTED) as group, running(group.run("orders", handler)):
        await handler.until("done 0@1")
        await asyncio.sleep(60.0)
        assert records(handler) == ["0@0", "0@1"]
        claim = next(claim for claim in handler.sessions[0].claims if claim.partition == 0)
        assert (claim.high_watermark, consumer_of(claim).last_stable_offset) == (5, 2)
        assert (claim.position, claim.lag) == (2, 0)
        assert not claim.stalled
        writer.end(commit=False)
        await handler.until("done 0@4")
        assert records(handler) == ["0@0", "0@1", "0@4"]
        await until_committed(env, 0, log_end(env, 0))
        assert (log_end(env, 0), claim.lag) == (6, 0)


async def test_a_commit_releases_the_records(handler: WorkHandler, env: VirtualEnvironment):
    writer = Transactions(env)
    writer.write(0, b"a", b"b")
    writer.write(1, b"c")
    async with member(env, **READ_COMMITTED) as group, running(group.run("orders", handler)):
        await handler.until("claim 1@0")
        await asyncio.sleep(60.0)
        assert records(handler) == []
        writer.end(commit=True)
        await handler.until("done 0@1")
        await handler.until("done 1@0")
        await until_committed(env, 0, 3)
        await until_committed(env, 1, 2)
    assert committed(env) == {0: 3, 1: 2}


async def test_a_transaction_that_times_out_unblocks_the_claim(handler: WorkHandler, env: VirtualEnvironment):
    """The producer does not end it: the coordinator aborts it after the transaction timeout."""
    writer = Transactions(env, timeout=60.0)
    writer.write(0, b"lost")
    await env.admin.produce(orders(0), [b"behind"])
    started = asyncio.get_running_loop().time()
    async with member(env, **READ_COMMITTED) as group, running(group.run("orders", handler)):
        await handler.until("done 0@1")
        waited = asyncio.get_running_loop().time() - started
        assert 59.0 < waited < 61.0
        assert records(handler) == ["0@1"]


async def test_a_log_with_only_aborted_records_is_read_and_committed(env: VirtualEnvironment):
    """No record is delivered, but the group's lag becomes 0 (as with Java, which commits its position)."""
    writer = Transactions(env)
    for _ in range(3):
        writer.write(0, b"lost", b"lost")
        writer.end(commit=False)
    handler = WorkHandler(env)
    async with member(env, **READ_COMMITTED) as group, running(group.run("orders", handler)):
        await until_committed(env, 0, 9)
        writer.write(0, b"lost")
        writer.end(commit=False)
        await until_committed(env, 0, 11)
        assert records(handler) == []
    async with member(env, "bob", **READ_COMMITTED) as group, running(group.run("orders", handler)):
        await handler.until("claim 0@11")


async def test_commits_wait_for_the_record_in_front_of_a_marker(env: VirtualEnvironment):
    """Skipped offsets are committed only when everything before them is marked."""
    writer = Transactions(env)
    writer.write(0, b"a", b"b")
    writer.end(commit=True)
    writer.write(0, b"lost")
    writer.end(commit=False)
    gate = Gate(0, 1)
    handler = WorkHandler(env, gate)
    async with member(env, **READ_COMMITTED) as group, running(group.run("orders", handler)):
        await gate.reached.wait()
        await until_committed(env, 0, 1)
        await asyncio.sleep(10.0)
        assert committed(env)[0] == 1
        gate.open.set()
        await until_committed(env, 0, 5)


async def test_everything_is_read_by_default(env: VirtualEnvironment):
    writer = Transactions(env)
    writer.write(0, b"lost")
    writer.end(commit=False)
    writer.write(0, b"open")

    async def read(claim: Claim) -> None:
        assert await read_offsets(claim, 2) == [0, 2]
        assert claim.position == 3

    await read_with(env, read)


async def test_batches_of_committed_records(env: VirtualEnvironment):
    writer = Transactions(env)
    for commit in (True, False, True):
        writer.write(0, b"a", b"b")
        writer.end(commit=commit)

    async def read(claim: Claim) -> None:
        found: list[int] = []
        async for batch in claim.batches(max_records=3):
            found += [record.offset for record in batch]
            claim.mark(batch)
            if len(found) == 4:
                break
        assert found == [0, 1, 6, 7]
        assert claim.next_mark == 9

    await read_with(env, read, **READ_COMMITTED)


async def test_the_latest_offset_is_that_of_the_last_stable_record(env: VirtualEnvironment):
    await env.admin.produce(orders(0), [b"before"])
    writer = Transactions(env)
    writer.write(0, b"a")
    handler = WorkHandler(env)
    config = {**READ_COMMITTED, "auto_offset_reset": "latest"}
    async with member(env, **config) as group, running(group.run("orders", handler)):
        await handler.until("claim 0@1")
        writer.end(commit=True)
        await handler.until("done 0@1")


async def test_a_session_waits_for_offsets_of_an_open_transaction(env: VirtualEnvironment):
    """A member that starts before its end would handle records twice (KIP-447)."""
    await env.admin.produce(orders(0), [b"v"] * 5)
    writer = Transactions(env)
    writer.add_offset("g", 0, 4)
    handler = WorkHandler(env)
    async with member(env, **READ_COMMITTED) as group, running(group.run("orders", handler)):
        await asyncio.sleep(20.0)
        assert "assigned [1, 2, 3]" in handler.calls, "only its own partition waits"
        assert "claim 0@0" not in handler.calls
        assert f"OffsetFetch {E.UNSTABLE_OFFSET_COMMIT.name}" in " | ".join(group_requests(env))
        writer.end(commit=True)
        await handler.until("done 0@4")
        assert records(handler) == ["0@4"]


async def test_moved_leaders_keep_their_transactions(handler: WorkHandler, env: VirtualEnvironment):
    writer = Transactions(env)
    writer.write(0, b"lost")
    async with member(env, **READ_COMMITTED) as group, running(group.run("orders", handler)):
        await handler.until("claim 0@0")
        old = env.cluster.leader("orders", 0)
        env.cluster.move_leader("orders", 0, old % 3 + 1)
        writer.end(commit=False)
        await env.admin.produce(orders(0), [b"v"])
        await handler.until("done 0@2")
        assert records(handler) == ["0@2"]
