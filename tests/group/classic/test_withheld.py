"""Partitions that a cooperative leader withheld get an owner, also if no member begins the rebalance that assigns them.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import ConsumerGroup, Session
from asyncgroup.group.assignors import (
    Assignment,
    CooperativeStickyAssignor,
    MemberSubscription,
    StickyAssignor,
)
from asyncgroup.group.assignors.cooperative import withheld_partitions
from asyncgroup.group.classic.cooperative_stay import WithheldPartitions
from asyncgroup.group.classic.join_requests import JoinProtocols
from asyncgroup.group.membership import JOIN_GRACE
from asyncgroup.model import TopicPartition as TP
from tests.scenario.support import WorkHandler, member, now, running
from tests.stories.virtual import VirtualEnvironment

REBALANCE_TIMEOUT, HEARTBEAT = 6.0, 0.5
WAIT = REBALANCE_TIMEOUT + JOIN_GRACE + HEARTBEAT
"""Seconds after its assignment at which a leader joins again."""

COOPERATIVE: dict[str, Any] = {
    "assignors": "cooperative-sticky",
    "heartbeat_interval": HEARTBEAT,
    "rebalance_timeout": REBALANCE_TIMEOUT,
    "close_timeout": 10.0,
}
STATIC: dict[str, Any] = {**COOPERATIVE, "group_instance_id": "place-b"}


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(nodes=1, partitions=2) as environment:
        environment.cluster.create_topic("others", 1)
        yield environment


class Revoking(WorkHandler):
    """Waits in `on_revoked` until `revoked` is set."""

    def __init__(self, env: VirtualEnvironment) -> None:
        super().__init__(env)
        self.revoked = asyncio.Event()

    async def on_revoked(self, session: Session, partitions: Any) -> None:
        await super().on_revoked(session, partitions)
        await self.revoked.wait()


@dataclass
class Handover:
    """The leader ann reads another topic, bob has to give up orders-1, and cyd is to get it."""

    env: VirtualEnvironment
    ann: ConsumerGroup
    bob: ConsumerGroup
    by_ann: Revoking
    by_bob: Revoking
    by_cyd: WorkHandler
    began_at: float = field(default_factory=now)

    @property
    def generation(self) -> int:
        return self.env.cluster.group(self.env.group_id).generation

    @property
    def leader_joins(self) -> list[Any]:
        """The leader's JoinGroup requests since the first assignment that withheld the partition."""
        joins = self.env.cluster.history.of("JoinGroup", client_id="ann")
        return [each.request for each in joins if each.time > self.began_at]

    async def close_bob(self) -> None:
        """Close bob's group during the revocation, so that he does not join again."""
        closing = asyncio.ensure_future(self.bob.aclose())
        await asyncio.sleep(0.1)
        self.by_bob.revoked.set()
        await closing


@contextlib.asynccontextmanager
async def neighbor(env: VirtualEnvironment, by_bob: Revoking) -> AsyncIterator[None]:
    """Add orders-2 and a member that gets it from bob."""
    by_dan = WorkHandler(env)
    by_bob.revoked.set()
    env.cluster.create_partitions("orders", 3)
    await by_bob.until("claim 2@0")
    async with member(env, "dan", host="10.2.0.4", **COOPERATIVE) as dan, running(dan.run("orders", by_dan)):
        await by_dan.until("claim 2@0")
        by_bob.revoked.clear()
        yield


@contextlib.asynccontextmanager
async def handover(
    env: VirtualEnvironment,
    ann: dict[str, Any] = COOPERATIVE,
    bob: dict[str, Any] = STATIC,
    *,
    has_neighbor: bool = False,
) -> AsyncIterator[Handover]:
    """Start the members up to the revocation of orders-1."""
    by_ann, by_bob, by_cyd = Revoking(env), Revoking(env), WorkHandler(env)
    by_ann.revoked.set()
    async with (
        member(env, "ann", host="10.2.0.1", **ann) as leader,
        running(leader.run("others", by_ann)),
    ):
        await by_ann.until("claim 0@0")
        async with (
            member(env, "bob", host="10.2.0.2", **bob) as owner,
            running(owner.run("orders", by_bob)),
        ):
            await by_bob.until("claim 1@0")
            async with (
                neighbor(env, by_bob) if has_neighbor else contextlib.nullcontext(),
                member(env, "cyd", host="10.2.0.3", **COOPERATIVE) as joiner,
                running(joiner.run("orders", by_cyd)),
            ):
                await by_bob.until("revoked [1]")
                try:
                    yield Handover(env, leader, owner, by_ann, by_bob, by_cyd)
                finally:
                    by_ann.revoked.set()
                    by_bob.revoked.set()


# -- the owner does not join again -------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignors", ["cooperative-sticky", ("cooperative-sticky", "range")], ids=str)
async def test_a_static_owner_that_is_restarted_before_it_joins_again(
    env: VirtualEnvironment, assignors: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by the simulation (seed 4003779): the partition never got an owner."""
    async with handover(env, {**COOPERATIVE, "assignors": assignors}) as story:
        generation = story.generation
        await story.close_bob()
        again = WorkHandler(env)
        async with member(env, "bob", host="10.2.0.2", **STATIC) as bob, running(bob.run("orders", again)):
            await again.until("claim 0@0")
            assert story.generation == generation, "KIP-345: a restart costs no rebalance"
            assert now() < story.began_at + 1
            await asyncio.sleep(story.began_at + WAIT - 0.5 - now())
            assert story.generation == generation
            assert "claim 1@0" not in story.by_cyd.calls + again.calls
            await story.by_cyd.until("claim 1@0")
            assert now() < story.began_at + WAIT + 2 * HEARTBEAT
            assert again.calls.count("claim 0@0") == 1, "what does not move goes on"
            await asyncio.sleep(5 * WAIT)
            assert story.generation == generation + 1
            reasons = [join.reason for join in story.leader_joins]
    if assignors == "cooperative-sticky":  # else its session ends
        assert reasons == ["no member owns orders-1, and no rebalance has followed"]
    assert len(reasons) == 1
    (warning,) = [record.message for record in caplog.records if "no member owns" in record.message]
    assert warning == (
        "group g: no member owns orders-1: the former owner has not joined again within 11.5 s; beginning a rebalance"
    )


async def test_a_static_leader_that_is_restarted_as_well(env: VirtualEnvironment) -> None:
    """The leader finds the partition without an owner in the assignment that it keeps (KIP-814), not by the count."""
    static_leader = {**COOPERATIVE, "group_instance_id": "place-a"}
    async with handover(env, static_leader, has_neighbor=True) as story:
        generation = story.generation
        await story.close_bob()
        await story.ann.aclose()
        by_ann, by_bob = WorkHandler(env), WorkHandler(env)
        async with (
            member(env, "ann", host="10.2.0.1", **static_leader) as ann,
            running(ann.run("others", by_ann)),
            member(env, "bob", host="10.2.0.2", **STATIC) as bob,
            running(bob.run("orders", by_bob)),
        ):
            await by_ann.until("claim 0@0")
            returned_at = now()
            await by_bob.until("claim 0@0")
            assert story.generation == generation, "KIP-814: a restart of the leader costs no rebalance"
            await story.by_cyd.until("claim 1@0")
            assert now() - returned_at == pytest.approx(WAIT, abs=2 * HEARTBEAT)
            await asyncio.sleep(5 * WAIT)
            assert story.generation == generation + 1


async def test_a_static_owner_that_is_down(env: VirtualEnvironment) -> None:
    """As in any rebalance, the coordinator removes it when it sends no SyncGroup within the rebalance timeout (KAFKA-12890)."""
    async with handover(env, bob={**STATIC, "session_timeout": 150.0}) as story:
        env.network.blackhole("10.2.0.2")
        env.network.cut("10.2.0.2")
        await story.by_cyd.until("claim 0@0")
        await story.by_cyd.until("claim 1@0")
        assert now() - story.began_at == pytest.approx(WAIT + 2 * REBALANCE_TIMEOUT, abs=1)
        assert len(story.leader_joins) == 2


# -- no other rebalances -----------------------------------------------------------------------------------------------


async def test_a_handover_has_two_generations(env: VirtualEnvironment) -> None:
    async with handover(env) as story:
        generation = story.generation
        await asyncio.sleep(REBALANCE_TIMEOUT / 2)
        story.by_bob.revoked.set()
        await story.by_cyd.until("claim 1@0")
        await asyncio.sleep(10 * WAIT)
        assert story.generation == generation + 1
        assert len(story.leader_joins) == 1


async def test_a_slow_owner_joins_in_the_rebalance_of_the_leader(env: VirtualEnvironment) -> None:
    """Its `rebalance_timeout` is longer than the leader's."""
    async with handover(env, bob={**STATIC, "rebalance_timeout": 4 * WAIT}) as story:
        generation = story.generation
        await asyncio.sleep(1.5 * WAIT)
        assert len(story.leader_joins) == 1
        assert story.generation == generation, "the coordinator waits for the owner"
        story.by_bob.revoked.set()
        await story.by_cyd.until("claim 1@0")
        await asyncio.sleep(10 * WAIT)
        assert story.generation == generation + 1
        assert len(story.leader_joins) == 1


async def test_a_leader_whose_session_ends_begins_no_rebalance(env: VirtualEnvironment) -> None:
    async with handover(env, bob={**STATIC, "rebalance_timeout": 4 * WAIT}) as story:
        await asyncio.sleep(WAIT / 2)
        story.by_ann.revoked.clear()
        closing = asyncio.ensure_future(story.ann.aclose())
        await story.by_ann.until("revoked [0]")
        await asyncio.sleep(WAIT * 0.7)
        assert not closing.done()
        assert story.leader_joins == []
        story.by_ann.revoked.set()
        await closing


# -- which partitions, and when ----------------------------------------------------------------------------------------

OWNERS = [
    MemberSubscription("a", ("t",), owned=(TP("t", 0), TP("t", 1), TP("gone", 0)), generation_id=3),
    MemberSubscription("b", ("t",), owned=(TP("t", 2), TP("t", 9)), generation_id=3),
    MemberSubscription("c", ("t",)),
]
COUNTS = {"t": 4}


async def test_what_is_owned_and_not_assigned_is_withheld() -> None:
    """Not a partition that no longer exists, and not one that no member owned."""
    plan = {"a": Assignment((TP("t", 0),)), "b": Assignment(), "c": Assignment()}
    assert withheld_partitions(OWNERS, plan, COUNTS) == {TP("t", 1), TP("t", 2)}
    plan["c"] = Assignment((TP("t", 1), TP("t", 2)))
    assert withheld_partitions(OWNERS, plan, COUNTS) == frozenset()


async def test_only_cooperative_assignors_withhold() -> None:
    protocols = JoinProtocols("g", [CooperativeStickyAssignor(), StickyAssignor()], None)
    plan = {"a": Assignment(), "b": Assignment(), "c": Assignment()}
    assert protocols.withheld("cooperative-sticky", OWNERS, plan, COUNTS) == {TP("t", n) for n in range(3)}
    assert protocols.withheld("sticky", OWNERS, plan, COUNTS) == frozenset()


class Rejoins:
    """Counts calls, with their times."""

    def __init__(self, *, accepts: bool = True) -> None:
        self.times: list[float] = []
        self.accepts = accepts

    def __call__(self, _reason: str) -> bool:
        self.times.append(now())
        return self.accepts


async def overdue_after(withheld: WithheldPartitions) -> float | None:
    """Return the seconds after which the leader joins again; None if it does not within ten minutes."""
    rejoin, synced_at = Rejoins(), now()
    await asyncio.sleep(1)
    with withheld.watched(synced_at, rejoin):
        await asyncio.sleep(600)
    assert len(rejoin.times) <= 1
    return rejoin.times[0] - synced_at if rejoin.times else None


async def test_the_wait_doubles_while_a_partition_is_withheld_again() -> None:
    withheld = WithheldPartitions("g", REBALANCE_TIMEOUT, HEARTBEAT)
    generations: list[tuple[set[TP], float | None]] = [
        (set(), None),
        ({TP("t", 0), TP("t", 1)}, WAIT),
        ({TP("t", 1)}, 2 * WAIT),
        ({TP("t", 1), TP("t", 2)}, 4 * WAIT),
        ({TP("t", 3)}, WAIT),
        (set(), None),
        ({TP("t", 3)}, WAIT),
    ]
    for partitions, seconds in generations:
        withheld.replace(frozenset(partitions))
        assert await overdue_after(withheld) == (None if seconds is None else pytest.approx(seconds))


async def test_a_generation_that_ends_in_time_begins_no_rebalance() -> None:
    withheld, rejoin = WithheldPartitions("g", REBALANCE_TIMEOUT, HEARTBEAT), Rejoins()
    withheld.replace(frozenset([TP("t", 0)]))
    with withheld.watched(None, rejoin):
        await asyncio.sleep(WAIT - 0.1)
    await asyncio.sleep(WAIT)
    assert rejoin.times == []


async def test_nothing_is_logged_if_the_member_joins_again_already(caplog: pytest.LogCaptureFixture) -> None:
    withheld, rejoin = WithheldPartitions("g", REBALANCE_TIMEOUT, HEARTBEAT), Rejoins(accepts=False)
    withheld.replace(frozenset([TP("t", 0)]))
    with withheld.watched(None, rejoin):
        await asyncio.sleep(WAIT + 1)
    assert len(rejoin.times) == 1
    assert not caplog.records


async def test_a_warning_names_ten_partitions(caplog: pytest.LogCaptureFixture) -> None:
    withheld = WithheldPartitions("g", REBALANCE_TIMEOUT, HEARTBEAT)
    withheld.replace(frozenset(TP("t", number) for number in range(12)))
    await overdue_after(withheld)
    assert "t-8, t-9 and 2 more: the former owner" in caplog.text
