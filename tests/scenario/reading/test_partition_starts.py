"""Each partition starts when its own start offset is known: one that is offline, silent or unstable does not delay others.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from asyncgroup import (
    ConsumerGroup,
    ConsumeTransformProduce,
    ErrorCode,
    Producer,
    ProducerConfig,
    Session,
)
from asyncgroup.errors import OffsetOutOfRangeError
from asyncgroup.group.membership import ClaimChanges
from asyncgroup.group.sessions.start_lookups import FoundStart, StartLookups
from asyncgroup.model import CommittedOffset, GroupOffsets
from tests.group.scripted_membership import ScriptedMembership
from tests.scenario.support import Gate, SessionEndHook, WorkHandler, member, now, orders, running
from tests.scenario.three_protocols import in_each_protocol, made_for
from tests.scenario.transactions.transforming import OUT, Copy
from tests.stories.queue_members import opened
from tests.stories.virtual import VirtualEnvironment

WIDE = 6
"""Partitions of the topic `wide`, which have one replica each."""


class Handler(WorkHandler):
    """Notes where claims begin; `unstarted` has the assigned partitions without a claim at each `on_assigned`."""

    def __init__(self, env: VirtualEnvironment) -> None:
        super().__init__(env)
        self.unstarted: list[set[int]] = []

    async def on_assigned(self, session: Session, partitions: Any) -> None:
        await super().on_assigned(session, partitions)
        started = {claim.tp for claim in session.claims}
        self.unstarted.append({tp.partition for tp in session.partitions if tp not in started})


async def with_offline_node(env: VirtualEnvironment) -> tuple[int, list[int]]:
    """Create the topic `wide` with a record in each partition, stop a node; return it, and its partitions."""
    env.cluster.create_topic("wide", WIDE, 1)
    await env.produce(1, range(WIDE), "wide")
    node = env.cluster.leader("wide", WIDE - 1)
    offline = [p for p in range(WIDE) if env.cluster.leader("wide", p) == node]
    assert 0 < len(offline) < WIDE
    await env.cluster.stop_node(node)
    return node, offline


@in_each_protocol
async def test_offline_partitions_start_when_their_broker_is_back(env: VirtualEnvironment) -> None:
    """The other partitions are read at once, the group does not rebalance, and health names the missing partitions."""
    node, offline = await with_offline_node(env)
    healthy = [p for p in range(WIDE) if p not in offline]
    handler, ends = Handler(env), SessionEndHook()
    async with (
        member(env, hooks=(ends,), fetch_max_wait=5.0) as group,
        running(group.run("wide", handler)),
    ):
        began = now()
        for partition in healthy:
            await handler.until(f"done {partition}@0")
        assert now() - began < 5.0
        await asyncio.sleep(20.0)
        generation = env.cluster.group("g").generation
        (session,) = handler.sessions
        assert [tp.partition for tp in session.partitions] == list(range(WIDE))
        assert [claim.partition for claim in session.claims] == healthy
        health = group.health()
        assert health.state == "stable"
        (problem,) = health.problems
        assert problem.startswith(f"wide-{offline[0]}")
        assert "cannot start for 2" in problem
        assert "LEADER_NOT_AVAILABLE" in problem
        wide = {tp.partition: c.offset for tp, c in env.cluster.group("g").offsets.items()}
        assert wide == dict.fromkeys(healthy, 1), "nothing is committed for the others"
        await env.cluster.start_node(node)
        began = now()
        for partition in offline:
            await handler.until(f"done {partition}@0")
        assert now() - began < 5.0
        assert env.cluster.group("g").generation == generation
        assert ends.names == []
        assert handler.calls.count("setup") == 1
        assert [call for call in handler.calls if call.startswith("assigned")] == [
            f"assigned {healthy}",
            f"assigned {offline}",
        ]
        assert handler.unstarted == [set(offline), set()]
        await env.bell.until(lambda: group.health().is_healthy, "well again", env.limit)
        await group.aclose()
    assert handler.calls[-2:] == [f"revoked {list(range(WIDE))}", "cleanup"]


@in_each_protocol
async def test_records_reads_on_with_an_offline_partition(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("t", 2, 1)
    env.cluster.commit("g", {("t", 0): 0})
    env.cluster.produce("t", b"a", partition=0)
    await env.cluster.stop_node(env.cluster.leader("t", 1))
    async with member(env) as group:
        async for record in group.records("t"):
            assert record.value == b"a"
            break


@in_each_protocol
async def test_a_member_with_only_an_offline_partition(env: VirtualEnvironment) -> None:
    """The member stays in the group, its health differs from that of a member without partitions, and it ends in order."""
    env.cluster.create_topic("narrow", 1, 1)
    await env.cluster.stop_node(env.cluster.leader("narrow", 0))
    handler, ends = Handler(env), SessionEndHook()
    async with member(env, hooks=(ends,)) as group, running(group.run("narrow", handler)):
        await env.bell.until(lambda: group.health().state == "stable", "stable", env.limit)
        await asyncio.sleep(30.0)
        health = group.health()
        assert health.waits_for is not None
        assert health.waits_for.startswith("the start offset of narrow-0: 30.")
        assert len(health.problems) == 1
        generation = env.cluster.group("g").generation
        await asyncio.sleep(30.0)
        assert env.cluster.group("g").generation == generation
        await group.aclose()
    assert handler.calls == []
    assert env.cluster.group("g").offsets == {}


@pytest.mark.full
@in_each_protocol
async def test_offline_partitions_that_move_to_another_member(env: VirtualEnvironment) -> None:
    """Revoked before they have started: they never do, and their next owner begins where nothing was committed."""
    node, offline = await with_offline_node(env)
    first, second = Handler(env), Handler(env)
    async with (
        member(env, hooks=()) as ann,
        member(env, "bob") as bob,
        running(ann.run("wide", first)),
    ):
        await first.until(f"assigned {[p for p in range(WIDE) if p not in offline]}")
        async with running(bob.run("wide", second)):
            await env.bell.until(lambda: _count(bob) == _count(ann) == WIDE // 2, "halves", env.limit)
            await asyncio.sleep(10.0)
            owned = {p: ann if ("wide", p) in ann.session.partitions else bob for p in offline}
            await env.cluster.start_node(node)
            await env.bell.until(
                lambda: (
                    all(c.offset == 1 for c in env.cluster.group("g").offsets.values())
                    and len(env.cluster.group("g").offsets) == WIDE
                ),
                "all committed",
                env.limit,
            )
            for partition in offline:
                handler = first if owned[partition] is ann else second
                assert handler.calls.count(f"claim {partition}@0") == 1
                other = second if handler is first else first
                assert f"claim {partition}@0" not in other.calls
            await bob.aclose()


def _count(group: ConsumerGroup) -> int:
    return 0 if group.session is None else len(group.session.partitions)


@in_each_protocol
async def test_a_silent_leader_delays_only_its_partitions(env: VirtualEnvironment) -> None:
    """Other partitions start without waiting, and the leader's partitions as soon as the metadata names other leaders."""
    await env.produce(1, range(4))
    node = env.cluster.leader("orders", 3)
    silent = [p for p in range(4) if env.cluster.leader("orders", p) == node]
    held = env.cluster.faults.on("ListOffsets", node=node, times=None, client_id="ann").hold()
    handler = Handler(env)
    async with member(env) as group, running(group.run("orders", handler)):
        await held.wait_hit()
        began = now()
        for partition in set(range(4)).difference(silent):
            await handler.until(f"done {partition}@0")
        assert now() - began < 1.0
        await asyncio.sleep(8.0)
        (problem,) = group.health().problems
        assert f"orders-{silent[0]}" in problem
        assert "no response" in problem
        for partition in silent:
            env.cluster.move_leader("orders", partition, node % 3 + 1)
        began = now()
        for partition in silent:
            await handler.until(f"done {partition}@0")
        assert now() - began < 2.5, "long before the request times out"
        held.release()


# -- offsets of open transactions ----------------------------------------------------------------------------------------


@in_each_protocol
async def test_an_open_transaction_delays_only_its_partition(env: VirtualEnvironment) -> None:
    """However long it is open; the claim then begins at the offset that it commits."""
    await env.produce(3, range(4))
    config = ProducerConfig(transactional_id="t", transaction_timeout=600.0)
    handler, ends = Handler(env), SessionEndHook()
    async with Producer(env.bootstrap_servers, config) as producer:
        async with producer.transaction():
            await producer.send("orders", b"x", partition=2)
            await producer.send_offsets(GroupOffsets("g", {orders(1): CommittedOffset(2)}))
            async with (
                member(env, hooks=(ends,), fetch_max_wait=5.0) as group,
                running(group.run("orders", handler)),
            ):
                for partition in (0, 2, 3):
                    await handler.until(f"done {partition}@2")
                await asyncio.sleep(70.0)
                assert "UNSTABLE_OFFSET_COMMIT" in group.health().problems[0]
                assert ends.names == []
                await env.produce(1, [0])
                await handler.until("done 0@3")
                asked = len(env.cluster.history.of("OffsetFetch", client_id="ann"))
                assert asked < 70, "the pauses grow"
                await group.aclose()
    assert "claim 1@0" not in handler.calls
    async with member(env, "bob") as group, running(group.run("orders", again := Handler(env))):
        await again.until("done 1@2")
        assert "claim 1@2" in again.calls


@pytest.mark.full
async def test_a_claim_begins_where_the_transaction_ends(env: VirtualEnvironment) -> None:
    await env.produce(3, range(4))
    handler = Handler(env)
    async with (
        Producer(env.bootstrap_servers, ProducerConfig(transactional_id="t")) as producer,
        member(env) as group,
        contextlib.AsyncExitStack() as stack,
    ):
        async with producer.transaction():
            await producer.send("orders", b"x", partition=2)
            await producer.send_offsets(GroupOffsets("g", {orders(1): CommittedOffset(2)}))
            await stack.enter_async_context(running(group.run("orders", handler)))
            await handler.until("done 0@2")
            await asyncio.sleep(5.0)
            assert handler.unstarted == [{1}]
        await handler.until("done 1@2")
        assert "claim 1@2" in handler.calls
        assert handler.calls.count("assigned [1]") == 1


# -- revoked during the lookup -------------------------------------------------------------------------------------------


async def test_a_partition_that_was_revoked_during_its_lookup_is_not_reported(
    env: VirtualEnvironment,
) -> None:
    """With the policy `error` another member's partition would end the program (KAFKA-19781)."""
    for partition in range(3):
        env.cluster.commit("g", {("orders", partition): 0})
    membership = ScriptedMembership("orders", [0, 1, 2])
    handler = Handler(env)
    async with (
        member(env, membership=membership, auto_offset_reset="error") as group,
        running(group.run("orders", handler)) as run,
    ):
        await handler.until("assigned [0, 1, 2]")
        held = env.cluster.faults.on("OffsetFetch").hold()
        await membership.propose(0, 1, 2, 3)
        await held.wait_hit()
        assert await membership.propose(0, 1, 2) == ClaimChanges([], [])
        held.release()
        await asyncio.sleep(5.0)
        assert not run.done()
        membership.propose(0, 1, 2, 3)
        with pytest.raises(OffsetOutOfRangeError, match=r"no committed offset for orders-3$"):
            await run


@pytest.mark.parametrize("protocol", ["cooperative", pytest.param("consumer", marks=pytest.mark.full)])
async def test_a_partition_that_another_member_gets_during_its_lookup(protocol: str) -> None:
    """As above, with a real membership. Nobody has committed an offset of the topic that ann subscribes to later."""
    async with made_for(protocol, nodes=3) as env:
        env.cluster.create_topic("returns", 1)
        await env.produce(1, [0], "returns")
        for partition in range(4):
            env.cluster.commit("g", {("orders", partition): 0})
        gate, ends = Gate(0, 0), SessionEndHook()
        handler, other = Handler(env), WorkHandler(env, gate)
        async with (
            member(env, hooks=(ends,), auto_offset_reset="error") as ann,
            running(ann.run("orders", handler)) as run,
            member(env, "bob") as bob,
        ):
            await handler.until("assigned [0, 1, 2, 3]")
            held = env.cluster.faults.on("OffsetFetch", client_id="ann").hold()
            ann.set_topics(["orders", "returns"])
            await held.wait_hit()
            async with running(bob.run("returns", other)):
                await gate.reached.wait()  # it is bob's, who has committed nothing for it
                held.release()
                await asyncio.sleep(30.0)
                assert not run.done()
                assert "assigned [0]" not in handler.calls
                assert ends.names == []


async def test_an_error_for_a_revoked_partition_is_not_raised(env: VirtualEnvironment) -> None:
    membership = ScriptedMembership("orders", [0, 1, 2])
    handler = Handler(env)
    async with (
        member(env, membership=membership) as group,
        running(group.run("orders", handler)) as run,
    ):
        await handler.until("assigned [0, 1, 2]")
        held = env.cluster.faults.on("OffsetFetch").hold().error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        await membership.propose(0, 1, 2, 3)
        await held.wait_hit()
        await membership.propose(0, 1, 2)
        held.release()
        await asyncio.sleep(5.0)
        assert not run.done()


# -- what is built on claims ---------------------------------------------------------------------------------------------


@in_each_protocol
async def test_a_work_queue_with_an_offline_partition(env: VirtualEnvironment) -> None:
    node, offline = await with_offline_node(env)
    seen: set[int] = set()
    async with opened(env, topics="wide", initial_position="earliest") as queue:
        began = now()
        while len(seen) < WIDE - len(offline):
            delivery = await queue.receive()
            seen.add(delivery.record.partition)
            await delivery.ack()
        assert now() - began < 5.0
        assert seen.isdisjoint(offline)
        assert "cannot start" in str(queue.health())
        await env.cluster.start_node(node)
        while len(seen) < WIDE:
            delivery = await queue.receive()
            seen.add(delivery.record.partition)
            await delivery.ack()


@pytest.mark.full
async def test_transactions_go_on_with_an_offline_partition(env: VirtualEnvironment) -> None:
    """The output of the others is committed; the late partition joins the transactions of the session."""
    env.cluster.create_topic(OUT, WIDE)
    node, offline = await with_offline_node(env)
    handler = ConsumeTransformProduce(Copy(env))

    def done() -> set[int]:
        return {tp.partition for tp, at in env.cluster.group("g").offsets.items() if at.offset == 1}

    async with (
        member(env, isolation_level="read_committed") as group,
        running(group.run("wide", handler)),
    ):
        await env.bell.until(lambda: len(done()) == WIDE - len(offline), "the others", env.limit)
        assert done().isdisjoint(offline)
        await env.cluster.start_node(node)
        await env.bell.until(lambda: len(done()) == WIDE, "all", env.limit)
        await group.aclose()
    assert sorted(record.partition for record in env.cluster.records(OUT)) == list(range(WIDE))


@in_each_protocol
async def test_a_refusal_of_the_member_ends_no_claim(env: VirtualEnvironment) -> None:
    """It may come from a former coordinator: the heartbeats decide whether the member is lost."""
    handler, ends = Handler(env), SessionEndHook()
    env.cluster.faults.on("OffsetFetch", times=2).error(ErrorCode.UNKNOWN_MEMBER_ID)
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        assert ends.names == []


@in_each_protocol
async def test_a_broker_that_fails_for_one_topic_does_not_stop_the_others(env: VirtualEnvironment) -> None:
    """As in Java, each unexpected code is asked again; `run()` ended, and so it did at the next owner of the partition."""
    env.cluster.create_topic("bad", 1)
    await env.produce(1, [0], "bad")
    fault = env.cluster.faults.on("ListOffsets", topic="bad", times=None).error(
        ErrorCode.UNKNOWN_SERVER_ERROR
    )
    handler, ends = Handler(env), SessionEndHook()
    async with member(env, hooks=(ends,)) as group, running(group.run(["bad", "orders"], handler)) as run:
        for partition in range(4):
            await handler.until(f"claim {partition}@0")
        await asyncio.sleep(30.0)
        (problem,) = group.health().problems
        assert "bad-0 cannot start" in problem
        assert "UNKNOWN_SERVER_ERROR" in problem
        fault.cancel()
        await handler.until("done 0@0")
        assert not run.done()
        assert ends.names == []


async def test_a_fault_of_the_lookups_themselves_is_raised(
    env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nothing would start, without an error."""

    def fail(_self: StartLookups, _now: float) -> list[FoundStart]:
        raise LookupError("a bug")

    monkeypatch.setattr(StartLookups, "take", fail)
    async with member(env) as group, asyncio.timeout(30.0):
        with pytest.raises(LookupError, match="a bug"):
            await group.run("orders", Handler(env))
