"""The seam `Membership`: a protocol of the tests revokes some claims of a session while the others go on.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import Claim, OffsetManager, Session
from asyncgroup.consumer.fetch_session import INITIAL_EPOCH
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import BrokerError, GroupClosed, MemberLost, Rebalanced
from asyncgroup.group.membership import ClaimChanges
from asyncgroup.offsets import MemberIdentity
from tests.group.parts import consumer_of, end_session
from tests.group.scripted_membership import ScriptedMembership
from tests.scenario.support import WorkHandler, committed, member, now, orders, running
from tests.stories.virtual import VirtualEnvironment

STEP = 0.05
"""Seconds between two records of a partition."""


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(nodes=1) as environment:
        yield environment


@pytest_asyncio.fixture
async def membership(env: VirtualEnvironment) -> ScriptedMembership:
    """The protocol of the test's group; it begins with partitions 0, 1 and 2 of 4."""
    return ScriptedMembership(env.topic, [0, 1, 2])


class TimedHandler(WorkHandler):
    """Notes when each record was handled, and takes `drain_seconds` after the end of partition 1's iterator."""

    def __init__(self, env: VirtualEnvironment, drain_seconds: float = 5.0) -> None:
        super().__init__(env)
        self.drain_seconds = drain_seconds
        self.handled: dict[int, list[float]] = {number: [] for number in range(4)}
        self.iteration_ended_at: float | None = None
        self.tasks: dict[int, asyncio.Task[Any] | None] = {}

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        self.note(f"claim {claim.partition}@{claim.initial_offset}")
        self.tasks[claim.partition] = asyncio.current_task()
        last = None
        async for record in claim:
            self.handled[record.partition].append(now())
            self.env.bell.ring()
            if claim.partition != 1:
                claim.mark(record)
            last = record
        if claim.partition == 1:
            self.iteration_ended_at = now()
            await asyncio.sleep(self.drain_seconds)
            if last is not None:
                claim.mark(last)  # its work is done only now
        self.note(f"end {claim.partition}")


@contextlib.asynccontextmanager
async def traffic(env: VirtualEnvironment) -> AsyncIterator[None]:
    """Append a record to each partition every STEP seconds."""

    async def produce() -> None:
        while True:
            await env.produce(1, range(4))
            await asyncio.sleep(STEP)

    async with running(produce()):
        yield


def fetches(env: VirtualEnvironment) -> list[Any]:
    """Return the Fetch requests of the member."""
    return [exchange.request for exchange in env.cluster.history.of("Fetch", client_id="ann")]


async def until_handled(handler: TimedHandler, partition: int, count: int) -> None:
    """Wait until this many records of a partition were handled."""
    await handler.env.bell.until(
        lambda: len(handler.handled[partition]) >= count, f"{count} records of {partition}", handler.env.limit
    )


async def test_one_of_three_claims_is_revoked_while_the_others_go_on_without_a_gap(
    env: VirtualEnvironment, membership: ScriptedMembership
) -> None:
    handler = TimedHandler(env)
    async with (
        member(env, membership=membership) as group,
        traffic(env),
        running(group.run("orders", handler)) as run,
    ):
        await until_handled(handler, 1, 20)
        session = group.session
        assert session is not None
        before = session.claims
        kept = {
            claim.partition: (claim, consumer_of(claim), handler.tasks[claim.partition]) for claim in before
        }
        revoked = before[1]
        requests_before = len(fetches(env))
        began = now()
        proposed = membership.propose(0, 2)
        await revoked.wait_ended()
        assert isinstance(revoked.cause, Rebalanced)
        assert not session.ended
        assert handler.calls[-1] != "end 1", "its handler drains"
        assert await proposed == ClaimChanges([orders(1)], [])
        ended = now()
        assert ended - began >= handler.drain_seconds
        assert handler.iteration_ended_at == pytest.approx(began, abs=0.01), "its iterator ends at once"
        assert committed(env)[1] == len(handler.handled[1]), "marks of the drained handler are committed"
        await asyncio.sleep(0.01)
        assert membership.owned_at_acknowledgement == [[0, 2]], "acknowledged after the revocation"
        await asyncio.sleep(5)

        # the session goes on, and the other claims are the same objects in the same tasks
        assert group.session is session
        assert not session.ended
        assert (session.assignment, session.partitions) == ({"orders": [0, 2]}, [orders(0), orders(2)])
        for claim in session.claims:
            claim_before, consumer, task = kept[claim.partition]
            assert claim is claim_before
            assert consumer_of(claim) is consumer
            assert handler.tasks[claim.partition] is task
            assert task is not None
            assert not task.done()
        for partition in (0, 2):
            times = handler.handled[partition]
            assert times[-1] > now() - 0.3
            during = [time for time in times if time > began - 1]
            gaps = [later - earlier for earlier, later in pairwise(during)]
            assert max(gaps) < 3 * STEP, "as without a rebalance"
            assert times == sorted(times)
        later = fetches(env)[requests_before:]
        assert not [r for r in later if r.session_epoch == INITIAL_EPOCH], "the fetch session goes on"
        forgotten = [part for r in later for topic in r.forgotten_topics_data for part in topic.partitions]
        assert forgotten == [1], "only the revoked partition is removed from it"
        assert not run.done()
        await group.aclose()
    assert handler.calls == [
        "setup",
        "assigned [0, 1, 2]",
        "claim 0@0",
        "claim 1@0",
        "claim 2@0",
        "end 1",
        "revoked [1]",
        *handler.calls[7:9],
        "revoked [0, 2]",
        "cleanup",
    ]
    assert sorted(handler.calls[7:9]) == ["end 0", "end 2"]
    for partition in (0, 2):
        assert committed(env)[partition] == len(handler.handled[partition]), (
            "none was skipped, none read twice"
        )


async def test_a_partition_is_added_while_the_session_goes_on(
    env: VirtualEnvironment, membership: ScriptedMembership
) -> None:
    handler = TimedHandler(env, 0.0)
    async with (
        member(env, membership=membership) as group,
        traffic(env),
        running(group.run("orders", handler)),
    ):
        await until_handled(handler, 0, 20)
        assert await membership.propose(0, 2, 3) == ClaimChanges([orders(1)], [orders(3)])
        await until_handled(handler, 3, 20)
        assert group.session is not None
        assert [claim.partition for claim in group.session.claims] == [0, 2, 3]
        # and the partition that was revoked comes back, at its committed offset
        count = len(handler.handled[1])
        assert await membership.propose(0, 1, 2, 3) == ClaimChanges([], [orders(1)])
        await until_handled(handler, 1, count + 20)
        assert f"claim 1@{count}" in handler.calls
    hooks = [call for call in handler.calls if call.startswith(("assigned", "revoked", "setup", "cleanup"))]
    assert hooks == [
        "setup",
        "assigned [0, 1, 2]",
        "revoked [1]",
        "assigned [3]",
        "assigned [1]",
        "revoked [0, 1, 2, 3]",
        "cleanup",
    ]


async def test_a_start_offset_from_before_the_partition_was_away_is_not_used(
    env: VirtualEnvironment, membership: ScriptedMembership
) -> None:
    """Another member may have committed a later one meanwhile."""
    handler = WorkHandler(env)
    await env.produce(20, range(4))
    async with member(env, membership=membership) as group, running(group.run("orders", handler)):
        await handler.until("done 2@19")
        held = env.cluster.faults.on("ListOffsets").hold()  # sent as nothing is committed for partition 3
        await membership.propose(0, 1, 2, 3)
        await held.wait_hit()
        await membership.propose(0, 1, 2)
        async with OffsetManager(env.bootstrap_servers, env.group_id) as other:
            (await other.manage("orders", 3)).mark_offset(10)
            await other.commit()
        env.cluster.faults.on("OffsetFetch").delay(2.0)
        await membership.propose(0, 1, 2, 3)
        held.release()
        await handler.until("done 3@19")
        assert [call for call in handler.calls if call.startswith("claim 3")] == ["claim 3@10"]
        assert committed(env)[3] >= 10


async def test_a_partition_that_is_revoked_while_on_assigned_runs_is_not_consumed(
    env: VirtualEnvironment, membership: ScriptedMembership
) -> None:
    class SlowToPrepare(WorkHandler):
        async def on_assigned(self, session: Session, partitions: Any) -> None:
            await super().on_assigned(session, partitions)
            await asyncio.sleep(3.0)

    handler = SlowToPrepare(env)
    await env.produce(3, range(4))
    async with member(env, membership=membership) as group, running(group.run("orders", handler)):
        await handler.until("assigned [0, 1, 2]")
        assert await membership.propose(0, 2, 3) == ClaimChanges([orders(1)], [orders(3)])
        await handler.until("assigned [3]")
        assert await membership.propose(0, 2) == ClaimChanges([orders(3)], [])
        await handler.until("done 2@2")
        await group.aclose()
    hooks = [call for call in handler.calls if call.startswith(("assigned", "revoked"))]
    assert hooks == ["assigned [0, 1, 2]", "revoked [1]", "assigned [3]", "revoked [3]", "revoked [0, 2]"]
    assert sorted(call for call in handler.calls if call.startswith("claim")) == ["claim 0@0", "claim 2@0"]
    assert committed(env) == {0: 3, 2: 3}


async def test_an_assignment_that_changes_nothing_touches_nothing(
    env: VirtualEnvironment, membership: ScriptedMembership
) -> None:
    handler = TimedHandler(env)
    async with member(env, membership=membership) as group, running(group.run("orders", handler)):
        await handler.until("claim 2@0")
        assert await membership.propose(0, 1, 2) == ClaimChanges([], [])
        await asyncio.sleep(1)
        assert handler.calls[1:2] == ["assigned [0, 1, 2]"]
        assert not any(call.startswith(("revoked", "end")) for call in handler.calls)


async def test_a_new_generation_is_used_by_later_commits(
    env: VirtualEnvironment, membership: ScriptedMembership
) -> None:
    """The coordinator knows no such member; when the member is none again, the same marks are accepted."""
    handler = TimedHandler(env, 0.0)
    await env.produce(3, range(3))
    async with (
        member(env, membership=membership, auto_commit=False) as group,
        running(group.run("orders", handler)),
    ):
        await until_handled(handler, 2, 3)
        membership.identity = MemberIdentity("ann-1", 7)
        await membership.propose(0, 1, 2)
        session = group.session
        assert session is not None
        assert (session.member_id, session.generation_id) == ("ann-1", 7)
        committing = asyncio.create_task(session.commit())
        await env.bell.until(
            lambda: bool(env.cluster.history.of("OffsetCommit", client_id="ann")), "a commit", env.limit
        )
        membership.identity = MemberIdentity()
        await membership.propose(0, 1, 2)
        await committing
        sent = [e.request for e in env.cluster.history.of("OffsetCommit", client_id="ann")]
        assert (sent[0].member_id, sent[0].generation_id_or_member_epoch) == ("ann-1", 7)
        assert (sent[-1].member_id, sent[-1].generation_id_or_member_epoch) == ("", -1)
        assert committed(env)[2] == 3


async def test_a_revoked_handler_that_does_not_end_is_cancelled_once_and_the_others_go_on(
    env: VirtualEnvironment, membership: ScriptedMembership
) -> None:
    handler = TimedHandler(env, drain_seconds=1000.0)
    async with (
        member(env, membership=membership, rebalance_timeout=10.0) as group,
        traffic(env),
        running(group.run("orders", handler)) as run,
    ):
        await until_handled(handler, 1, 5)
        began, task = now(), handler.tasks[1]
        assert await membership.propose(0, 2) == ClaimChanges([orders(1)], [])
        assert now() - began == pytest.approx(8.0, abs=0.1), "rebalance_timeout less the reserve"
        assert task is not None
        assert task.cancelled()
        assert committed(env).get(1, 0) == 0, "it marked nothing"
        count = len(handler.handled[0])
        await until_handled(handler, 0, count + 20)
        assert not run.done()
        assert group.session is not None
        assert not group.session.ended


async def test_a_close_during_a_revocation_ends_the_session_once(
    env: VirtualEnvironment, membership: ScriptedMembership
) -> None:
    handler = TimedHandler(env, drain_seconds=2.0)
    async with (
        member(env, membership=membership) as group,
        traffic(env),
        running(group.run("orders", handler)),
    ):
        await until_handled(handler, 1, 5)
        proposed = membership.propose(0, 2)
        await asyncio.sleep(0.5)
        assert not proposed.done()
        await group.aclose()
    hooks = [call for call in handler.calls if call.startswith(("revoked", "lost", "cleanup"))]
    assert hooks == ["revoked [1]", "revoked [0, 2]", "cleanup"]
    assert committed(env) == {number: len(handler.handled[number]) for number in range(3)}
    assert [type(cause) for cause in membership.ends] == [GroupClosed]


async def test_a_loss_during_a_revocation_commits_nothing(
    env: VirtualEnvironment, membership: ScriptedMembership
) -> None:
    handler = TimedHandler(env, drain_seconds=2.0)
    await env.produce(3, range(3))
    async with (
        member(env, membership=membership, auto_commit_interval=3600.0) as group,
        running(group.run("orders", handler)),
    ):
        await until_handled(handler, 1, 3)
        membership.propose(0, 2)
        await asyncio.sleep(0.5)
        session = group.session
        end_session(session, MemberLost("by the test"))
        await handler.until("cleanup")
        hooks = [call for call in handler.calls if call.startswith(("revoked", "lost", "cleanup"))]
        assert hooks == ["lost [1]", "lost [0, 2]", "cleanup"]
        assert committed(env) == {}


async def test_a_revoked_handler_that_raises_ends_the_session(
    env: VirtualEnvironment, membership: ScriptedMembership
) -> None:
    class Raises(TimedHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            await super().consume_claim(session, claim)
            if claim.partition == 1:
                raise ValueError("while it drained")

    handler = Raises(env, drain_seconds=1.0)
    async with member(env, membership=membership) as group:
        run = asyncio.create_task(group.run("orders", handler))
        await handler.until("claim 2@0")
        membership.propose(0, 2)
        with pytest.raises(ValueError, match="while it drained"):
            await run
    hooks = [call for call in handler.calls if call.startswith(("revoked", "lost", "cleanup"))]
    assert hooks == ["revoked [1]", "revoked [0, 2]", "cleanup"]


@pytest.mark.parametrize("is_fatal", [False, True])
async def test_the_protocol_says_whether_a_refused_commit_is_fatal(
    env: VirtualEnvironment, membership: ScriptedMembership, is_fatal: bool
) -> None:
    handler = TimedHandler(env, 0.0)
    await env.produce(3, range(3))
    membership.heartbeats.believes_refusals = True
    membership.identity = MemberIdentity("ann-1", 7)  # of a group that the coordinator does not have
    if is_fatal:
        membership.fatal_codes.add(ErrorCode.GROUP_ID_NOT_FOUND)
    raised = pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND") if is_fatal else contextlib.nullcontext()
    async with member(env, membership=membership) as group, asyncio.timeout(env.limit):
        with raised:
            await group.consume("orders", handler)
    assert [type(cause) for cause in membership.ends] == [MemberLost]
