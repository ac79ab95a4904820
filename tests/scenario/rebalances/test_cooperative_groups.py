"""Cooperative groups: a member that joins or leaves stops only the partitions that move.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import Claim, Session
from asyncgroup.errors import BrokerError, ErrorCode, RevokeTimeout, TopicsChanged
from asyncgroup.group.classic.heartbeat_schedule import EARLY_HEARTBEATS
from asyncgroup.group.consumer_group import ConsumerGroup
from tests.scenario.support import WorkHandler, committed, member, now, running, working
from tests.stories.traffic import PARTITIONS, STEP, Handled, Reader, partitions_of, traffic
from tests.stories.virtual import VirtualEnvironment

HEARTBEAT = 0.5
COOPERATIVE: dict[str, Any] = {"assignors": ("cooperative-sticky",), "heartbeat_interval": HEARTBEAT}


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(nodes=1, partitions=PARTITIONS) as environment:
        yield environment


async def test_a_member_joins_and_another_leaves(env: VirtualEnvironment) -> None:
    handled: Handled = {number: [] for number in range(PARTITIONS)}
    ann, bob = Reader(env, "ann", handled), Reader(env, "bob", handled)
    async with member(env, "ann", **COOPERATIVE) as first, traffic(env), running(first.run("orders", ann)):
        await env.bell.until(lambda: all(handled.values()), "records of all partitions", env.limit)
        session = first.session
        assert session is not None
        generation = session.generation_id
        joined_at = now()
        async with member(env, "bob", **COOPERATIVE) as second, running(second.run("orders", bob)):
            await env.bell.until(
                lambda: len(partitions_of(second)) == 3 and len(partitions_of(first)) == 3,
                "halves",
                env.limit,
            )
            moved = partitions_of(second)
            settled_at = now()
            await asyncio.sleep(5)
            assert first.session is session, "the session goes on"
            assert session.generation_id > generation
            assert {name for number in moved for at, name, _ in handled[number] if at > settled_at + 1} == {
                "bob"
            }
            await second.aclose()
        await env.bell.until(lambda: len(partitions_of(first)) == PARTITIONS, "all again", env.limit)
        await asyncio.sleep(5)
        assert first.session is session
        left_at = now()
        await first.aclose()
    for number, records in handled.items():
        assert [offset for _, _, offset in records] == list(range(len(records))), (
            "each record once and in order"
        )
        assert committed(env)[number] == len(records)
        gaps = [after - before for (before, *_), (after, *_) in pairwise(records)]
        limit = 3 * STEP if number not in moved else 2 * HEARTBEAT + 1.0
        assert max(gaps) < limit, (number, number in moved)
    assert settled_at - joined_at < 2 * HEARTBEAT + 1.0
    assert left_at - settled_at < 15
    assert ann.calls.count("setup") == bob.calls.count("setup") == 1
    assert f"revoked {moved}" in ann.calls
    assert f"assigned {moved}" in ann.calls, "bob's, when bob has left"
    assert ann.calls[-1] == "cleanup"


async def test_a_partition_that_moves_does_not_wait_for_the_interval(env: VirtualEnvironment) -> None:
    """The new member owns nothing that it could revoke: the response to an early heartbeat says that the group rebalances again."""
    handled: Handled = {number: [] for number in range(PARTITIONS)}
    ann, bob = Reader(env, "ann", handled), Reader(env, "bob", handled)
    config = {**COOPERATIVE, "heartbeat_interval": 3.0}
    async with member(env, "ann", **config) as first, traffic(env), running(first.run("orders", ann)):
        await env.bell.until(lambda: all(handled.values()), "records of all partitions", env.limit)
        async with member(env, "bob", **config) as second, running(second.run("orders", bob)):
            await env.bell.until(lambda: len(partitions_of(second)) == 3, "halves", env.limit)
            moved = partitions_of(second)
            await asyncio.sleep(1)
            for number in moved:
                last = max(at for at, name, _ in handled[number] if name == "ann")
                first_at = min(at for at, name, _ in handled[number] if name == "bob")
                assert first_at - last < EARLY_HEARTBEATS[0] + 3 * STEP + 0.1


async def test_a_commit_waits_for_the_generation_and_is_not_refused(env: VirtualEnvironment) -> None:
    """While JoinGroup is parked it is accepted at once; between JoinGroup and SyncGroup it waits for the assignment."""
    handled: Handled = {number: [] for number in range(PARTITIONS)}
    ann, bob = Reader(env, "ann", handled), Reader(env, "bob", handled)
    config = {**COOPERATIVE, "auto_commit": False}
    async with member(env, "ann", **config) as first, traffic(env), running(first.run("orders", ann)):
        await env.bell.until(lambda: all(handled.values()), "records of all partitions", env.limit)
        session = first.session
        assert session is not None
        plan = env.cluster.faults.on("SyncGroup", where=lambda request: bool(request.assignments)).hold()
        async with member(env, "bob", **config) as second, running(second.run("orders", bob)):
            await plan.wait_hit()
            assert env.cluster.group(env.group_id).state == "CompletingRebalance"
            commit = asyncio.ensure_future(session.commit())
            await asyncio.sleep(3)  # longer than all retries take
            assert not commit.done()
            assert not session.ended
            plan.cancel()
            await commit
            assert committed(env)
            await env.bell.until(lambda: len(partitions_of(second)) == 3, "halves", env.limit)
            assert first.session is session
            refused = [
                exchange
                for exchange in env.cluster.history.of("OffsetCommit", client_id="ann")
                if any(part.error_code for topic in exchange.response.topics for part in topic.partitions)
            ]
            assert 1 <= len(refused) <= 2


async def sessions_go_on(env: VirtualEnvironment, groups: list[ConsumerGroup], partitions: int) -> None:
    """Wait until these members have live claims of that many partitions, of all topics."""

    def are_shared() -> bool:
        owned = [
            c.tp for group in groups if group.session is not None for c in group.session.claims if not c.ended
        ]
        return len(owned) == len(set(owned)) == partitions

    await env.bell.until(are_shared, f"{partitions} partitions shared", env.limit)


async def test_added_partitions_are_assigned_while_the_session_goes_on(env: VirtualEnvironment) -> None:
    handled: Handled = {number: [] for number in range(8)}
    ann, bob = Reader(env, "ann", handled), Reader(env, "bob", handled)
    refresh = {"metadata_refresh_interval": 2.0}
    async with (
        member(env, "ann", **COOPERATIVE, **refresh) as first,
        member(env, "bob", **COOPERATIVE, **refresh) as second,
        traffic(env),
        running(first.run("orders", ann)),
        running(second.run("orders", bob)),
    ):
        await sessions_go_on(env, [first, second], PARTITIONS)
        before = [(group.session, partitions_of(group)) for group in (first, second)]
        env.cluster.create_partitions("orders", 8)
        await sessions_go_on(env, [first, second], 8)
        await env.produce(2, [6, 7])
        await env.bell.until(lambda: len(handled[6]) == len(handled[7]) == 2, "new records", env.limit)
        for group, (session, partitions) in zip((first, second), before, strict=True):
            assert group.session is session
            assert set(partitions) < set(partitions_of(group)), "each keeps its own and gets one"
    for number, records in handled.items():
        assert [offset for _, _, offset in records] == list(range(len(records)))
        if number < PARTITIONS:
            times = [at for at, *_ in records]
            assert max(later - earlier for earlier, later in pairwise(times)) < 3 * STEP


async def test_a_member_whose_topics_are_unknown_stays_until_its_handlers_are_done(
    env: VirtualEnvironment,
) -> None:
    """The session ends while the member prepares to join again: its heartbeats go on, and its last commit is accepted."""
    with pytest.raises(BrokerError, match="'nowhere'"):
        async with working(env, **COOPERATIVE, session_timeout=6.0, auto_commit_interval=3000.0) as (
            group,
            run,
            handler,
            gate,
        ):
            group.set_topics("nowhere")
            await env.bell.until(lambda: handler.sessions[0].ended, "the end of the session", env.limit)
            ended_at = now()
            await asyncio.sleep(20.0)
            beats = [e for e in env.cluster.history.of("Heartbeat") if e.time > ended_at]
            assert len(beats) >= 20 / HEARTBEAT - 2
            gate.open.set()
            await run
    assert "end 0" in handler.calls
    assert committed(env) == {0: 3}


async def test_set_topics_stops_only_the_partitions_of_topics_that_are_left_out(
    env: VirtualEnvironment,
) -> None:
    env.cluster.create_topic("returns", 2)
    env.cluster.create_topic("refunds", 2)
    handled: Handled = {number: [] for number in range(PARTITIONS)}
    ann = Reader(env, "ann", handled)
    async with member(env, "ann", **COOPERATIVE) as group, running(group.run(["orders", "returns"], ann)):
        await sessions_go_on(env, [group], PARTITIONS + 2)
        session = group.session
        assert session is not None
        claims = {claim.tp: claim for claim in session.claims}
        group.set_topics(["orders", "refunds"])
        await env.bell.until(
            lambda: set(session.assignment) == {"orders", "refunds"}, "the other topic", env.limit
        )
        assert group.session is session
        await sessions_go_on(env, [group], PARTITIONS + 2)
        kept = {claim.tp: claim for claim in session.claims}
        assert all(kept[tp] is claim for tp, claim in claims.items() if tp.topic == "orders")
        (ended,) = {type(claim.cause) for tp, claim in claims.items() if tp.topic == "returns"}
        assert ended is TopicsChanged
        joins = [e.request for e in env.cluster.history.of("JoinGroup", client_id="ann")]
        assert "topics changed" in (joins[-1].reason or "")


async def test_a_pattern_that_matches_a_new_topic_and_a_deleted_topic(env: VirtualEnvironment) -> None:
    env.cluster.create_topic("orders-eu", 2)
    handled: Handled = {number: [] for number in range(PARTITIONS)}
    ann = Reader(env, "ann", handled)
    config = {**COOPERATIVE, "metadata_refresh_interval": 2.0}
    async with member(env, "ann", **config) as group, running(group.run(re.compile("orders"), ann)):
        await sessions_go_on(env, [group], PARTITIONS + 2)
        session = group.session
        assert session is not None
        env.cluster.create_topic("orders-us", 1)
        await sessions_go_on(env, [group], PARTITIONS + 3)
        env.cluster.delete_topic("orders-eu")
        await sessions_go_on(env, [group], PARTITIONS + 1)
        assert group.session is session
        assert ann.calls.count("setup") == 1
        assert "cleanup" not in ann.calls


async def test_a_handler_that_does_not_end_is_left_and_the_member_stays(env: VirtualEnvironment) -> None:
    """Its partition moves before the coordinator would remove the member; the other claims go on all the time."""
    handled: Handled = {number: [] for number in range(PARTITIONS)}
    released, stuck = asyncio.Event(), list[int]()

    class Stuck(Reader):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            await super().consume_claim(session, claim)
            if not stuck:
                stuck.append(claim.partition)
                while not released.is_set():
                    with contextlib.suppress(asyncio.CancelledError):
                        await released.wait()

    ann, bob = Stuck(env, "ann", handled), Reader(env, "bob", handled)
    config = {**COOPERATIVE, "rebalance_timeout": 10.0, "auto_commit": False}
    async with (
        member(env, "ann", **config) as first,
        traffic(env),
        running(first.run("orders", ann)),
        ending(released),
    ):
        reader = first.errors()
        await env.bell.until(lambda: all(handled.values()), "records of all partitions", env.limit)
        session, began = first.session, now()
        async with member(env, "bob", **config) as second, running(second.run("orders", bob)):
            await env.bell.until(lambda: len(partitions_of(second)) == 3, "partitions move", env.limit)
            assert now() - began < 10.0 + 3 * HEARTBEAT
            assert first.session is session
            assert len(partitions_of(first)) == 3
            error = await anext(reader)
            assert isinstance(error, RevokeTimeout)
            assert (error.topic, error.partition) == ("orders", *stuck)
            assert 8.0 < error.limit < 10.0
            records = handled[stuck[0]]
            await env.bell.until(lambda: records[-1][1] == "bob", "its records at bob's", env.limit)
            kept = partitions_of(first)
            released.set()
    for number in kept:
        times = [at for at, *_ in handled[number] if at < now() - 5]
        assert max(later - earlier for earlier, later in pairwise(times)) < 3 * STEP
    offsets = [offset for _, name, offset in records if name == "bob"]
    assert offsets[0] == 0, "nothing was committed: the new owner begins where the last commit was"


@contextlib.asynccontextmanager
async def ending(event: asyncio.Event) -> AsyncIterator[None]:
    """Set an event at the end: a handler that waits for it would otherwise outlast a failed test."""
    try:
        yield
    finally:
        event.set()


class CommitsAtJoin:
    """A hook that commits as soon as the member has its assignment, before it is applied."""

    def __init__(self) -> None:
        self.commits: list[asyncio.Future[None]] = []
        self.session: Session | None = None

    def on_join(self, *_: object) -> None:
        if self.session is not None:
            self.commits.append(asyncio.ensure_future(self.session.commit()))


async def test_a_commit_between_the_assignment_and_its_application_does_not_end_the_session(
    env: VirtualEnvironment,
) -> None:
    """Found by a mixed group on a real network: sent under the former generation, it was refused, and the member lost."""
    handled: Handled = {number: [] for number in range(PARTITIONS)}
    ann, bob = Reader(env, "ann", handled), Reader(env, "bob", handled)
    hook = CommitsAtJoin()
    config = {**COOPERATIVE, "auto_commit": False}
    async with (
        member(env, "ann", hooks=(hook,), **config) as first,
        traffic(env),
        running(first.run("orders", ann)),
    ):
        await env.bell.until(lambda: all(handled.values()), "records of all partitions", env.limit)
        session = hook.session = first.session
        assert session is not None
        async with member(env, "bob", **config) as second, running(second.run("orders", bob)):
            await env.bell.until(lambda: len(partitions_of(second)) == 3, "halves", env.limit)
            await asyncio.gather(*hook.commits)
        refused = [
            part.error_code
            for exchange in env.cluster.history.of("OffsetCommit", client_id="ann")
            for topic in exchange.response.topics
            for part in topic.partitions
            if part.error_code
        ]
        assert ErrorCode.ILLEGAL_GENERATION in refused
        assert first.session is session
        assert not session.ended


async def test_a_partition_that_moves_before_its_claim_has_started_gets_an_owner(
    env: VirtualEnvironment,
) -> None:
    """Nothing is revoked, but the member joins again. Found by the simulation."""
    await env.create_topic("others", 1)
    leader, ann, bob = WorkHandler(env), WorkHandler(env), WorkHandler(env)
    # only of ann, who does not lead: the leader's metadata would wait for it on the same connection
    delayed = env.cluster.faults.on("ListOffsets", client_id="ann").delay(4.0)
    async with (
        member(env, "leader", **COOPERATIVE) as former,
        member(env, "ann", **COOPERATIVE) as first,
        member(env, "bob", **COOPERATIVE) as second,
        running(former.run("others", leader)),
    ):
        await leader.until("claim 0@0")
        async with running(first.run("orders", ann)):
            await delayed.wait_hit()
            async with running(second.run("orders", bob)):
                await env.bell.until(lambda: len(partitions_of(second)) == 3, "halves", env.limit)
                assert "setup" not in ann.calls, "no claim has started"
                await ann.until(f"assigned {partitions_of(first)}")


async def test_a_slow_leader_on_a_broker_that_refuses_heartbeats_until_its_plan_has_come(
    env: VirtualEnvironment,
) -> None:
    """Brokers before KAFKA-10134 respond so between JoinGroup and SyncGroup: the other members must not join again."""
    handled: Handled = {number: [] for number in range(PARTITIONS)}
    ann, bob = Reader(env, "ann", handled), Reader(env, "bob", handled)
    async with member(env, "ann", **COOPERATIVE) as first, traffic(env), running(first.run("orders", ann)):
        await env.bell.until(lambda: all(handled.values()), "records of all partitions", env.limit)
        has_plan = env.cluster.faults.on(
            "SyncGroup", where=lambda request: bool(request.assignments), times=None
        )
        plan = has_plan.hold()
        async with member(env, "bob", **COOPERATIVE) as second, running(second.run("orders", bob)):
            await plan.wait_hit()
            beats = env.cluster.faults.on("Heartbeat", times=None).error("REBALANCE_IN_PROGRESS")
            joins = len(env.cluster.history.of("JoinGroup"))
            await asyncio.sleep(0.8 * env.session_timeout)
            assert beats.hits >= 2
            assert len(env.cluster.history.of("JoinGroup")) == joins
            beats.cancel()
            plan.cancel()
            await env.bell.until(lambda: len(partitions_of(second)) == 3, "halves", env.limit)
