"""How commits and offset lookups react to each error code of the coordinator.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import BrokerError, Claim, CommitFailedError, ErrorCode as E, Session
from tests.scenario.support import (
    SessionEndHook,
    WorkHandler,
    committed,
    group_requests,
    member,
    orders,
    running,
)
from tests.stories.virtual import VirtualEnvironment

NAME = {"ids": lambda code: code.name}

COMMIT, FIND = "OffsetCommit", "FindCoordinator"

HEALS = {
    # the error code: the next requests
    E.COORDINATOR_LOAD_IN_PROGRESS: [COMMIT],
    E.UNKNOWN_TOPIC_OR_PARTITION: [COMMIT],
    E.UNKNOWN_TOPIC_ID: [COMMIT],
    E.STALE_MEMBER_EPOCH: [COMMIT],
    E.REBALANCE_IN_PROGRESS: [COMMIT],
    E.NOT_COORDINATOR: [FIND, COMMIT],
    E.COORDINATOR_NOT_AVAILABLE: [FIND, COMMIT],
    E.REQUEST_TIMED_OUT: [FIND, COMMIT],
}

LOST = [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.FENCED_INSTANCE_ID]

FAILS = [
    E.OFFSET_METADATA_TOO_LARGE,
    E.INVALID_COMMIT_OFFSET_SIZE,
    E.GROUP_AUTHORIZATION_FAILED,
    E.TOPIC_AUTHORIZATION_FAILED,
    E.UNKNOWN_SERVER_ERROR,
]


class CommittingHandler(WorkHandler):
    """Commits after each record of partition 0; `outcomes` has the exception of each commit."""

    def __init__(self, env: VirtualEnvironment) -> None:
        super().__init__(env)
        self.outcomes: list[CommitFailedError | None] = []

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)
            try:
                await session.commit()
            except CommitFailedError as error:
                self.outcomes.append(error)
            else:
                self.outcomes.append(None)
            self.note(f"done {record.partition}@{record.offset}")


@pytest.mark.parametrize("code", HEALS, **NAME)
async def test_commit_errors_that_are_retried(env: VirtualEnvironment, code: E):
    """The same call retries after a pause, and succeeds."""
    handler, ends = CommittingHandler(env), SessionEndHook()
    await env.produce(1, [0])
    env.cluster.faults.on(COMMIT).error(code)
    async with member(env, auto_commit=False, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("done 0@0")
        assert handler.outcomes == [None]
        assert group_requests(env)[5:] == [f"{COMMIT} {code.name}", *HEALS[code]]
        refused, good = env.cluster.history.of(COMMIT)
        assert 0.08 <= good.time - refused.time <= 0.12
        assert committed(env) == {0: 1}
        assert ends.names == []


@pytest.mark.parametrize("when", ["before", "after", "mid-frame"])
async def test_commit_over_a_cut_connection(env: VirtualEnvironment, when):
    handler = CommittingHandler(env)
    await env.produce(1, [0])
    env.cluster.faults.on(COMMIT).disconnect(when)
    async with member(env, auto_commit=False) as group, running(group.run("orders", handler)):
        await handler.until("done 0@0")
        assert handler.outcomes == [None]
        assert group_requests(env)[-2:] == [FIND, COMMIT]
        assert committed(env) == {0: 1}


@pytest.mark.parametrize("code", HEALS, **NAME)
async def test_commit_errors_that_persist(env: VirtualEnvironment, code: E):
    """After commit_retry_max retries the error is raised; the mark is kept for the next commit."""
    handler, ends = CommittingHandler(env), SessionEndHook()
    await env.produce(2, [0])
    fault = env.cluster.faults.on(COMMIT, times=4).error(code)
    async with member(env, auto_commit=False, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("done 0@1")
        assert fault.hits == 4
        first, second = handler.outcomes
        assert second is None
        assert first is not None
        assert list(first.errors) == [orders(0)]
        assert f"orders-0 at 1 by group 'g': {code.name}" in str(first)
        assert committed(env) == {0: 2}
        assert ends.names == []


@pytest.mark.parametrize("code", LOST, **NAME)
async def test_commit_errors_that_lose_the_membership(env: VirtualEnvironment, code: E):
    handler, ends = CommittingHandler(env), SessionEndHook()
    await env.produce(3, [0])
    env.cluster.faults.on(COMMIT).error(code)
    async with member(env, auto_commit=False, hooks=(ends,)) as group:
        if (
            code is E.FENCED_INSTANCE_ID
        ):  # another member has this instance id: joining again would fence that member
            with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
                await group.consume("orders", handler)
        else:
            await group.consume("orders", handler)
    (error,) = handler.outcomes
    assert error is not None
    assert code.name in str(error)
    assert ends.names == ["MemberLost"]
    assert len(env.cluster.history.of(COMMIT)) == 1
    assert "lost [0, 1, 2, 3]" in handler.calls


@pytest.mark.parametrize("code", FAILS, **NAME)
async def test_commit_errors_that_are_raised(env: VirtualEnvironment, code: E):
    """Raised at once to the caller; the session continues, the mark is kept."""
    handler, ends = CommittingHandler(env), SessionEndHook()
    await env.produce(1, [0])
    fault = env.cluster.faults.on(COMMIT).error(code)
    async with member(env, auto_commit=False, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("done 0@0")
        (error,) = handler.outcomes
        assert error is not None
        assert isinstance(error.errors[orders(0)], BrokerError)
        assert fault.hits == 1
        await env.produce(1, [0])
        await handler.until("done 0@1")
        assert handler.outcomes[1] is None
        assert committed(env) == {0: 2}
        assert ends.names == []


async def test_one_topic_of_two_fails(env: VirtualEnvironment):
    """The other partitions are committed; the error names the failed ones."""
    await env.create_topic("payments", 1)
    failures: list[CommitFailedError] = []

    class OnceAll(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            async for record in claim:
                claim.mark(record)
                self.note(f"done {claim.topic}")

    handler = OnceAll(env)
    await env.produce(1, [0])
    await env.produce(1, [0], "payments")
    env.cluster.faults.on(COMMIT, topic="payments").error(E.TOPIC_AUTHORIZATION_FAILED)
    async with member(env, auto_commit=False) as group, running(group.run(["orders", "payments"], handler)):
        await handler.until("done orders")
        await handler.until("done payments")
        try:
            await handler.sessions[0].commit()
        except CommitFailedError as error:
            failures.append(error)
        assert [[str(tp) for tp in failure.errors] for failure in failures] == [["payments-0"]]
        assert committed(env) == {0: 1}


async def test_failed_automatic_commits_are_reported(env: VirtualEnvironment):
    """Automatic commits have no caller: their errors are in errors(), and they are retried."""
    handler, ends = WorkHandler(env), SessionEndHook()
    await env.produce(1, [0])
    env.cluster.faults.on(COMMIT, times=2).error(E.GROUP_AUTHORIZATION_FAILED)
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        errors = group.errors()
        assert "GROUP_AUTHORIZATION_FAILED" in str(await anext(errors))
        assert "orders-0" in str(await anext(errors))
        await asyncio.sleep(1.5)
        assert committed(env) == {0: 1}
        assert ends.names == []


async def test_auto_commit_off_commits_nothing(handler: WorkHandler, env: VirtualEnvironment):
    """As in sarama, also not at the end."""
    await env.produce(5, [0])
    async with member(env, auto_commit=False) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        await asyncio.sleep(10.0)
        await group.aclose()
    assert env.cluster.history.of(COMMIT) == []


async def test_nothing_new_is_not_committed_again(handler: WorkHandler, env: VirtualEnvironment):
    await env.produce(5, [0])
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        await asyncio.sleep(10.0)
        await group.aclose()
    assert len(env.cluster.history.of(COMMIT)) == 1


async def test_concurrent_commits_keep_their_order(handler: WorkHandler, env: VirtualEnvironment):
    """Ten concurrent callers: one request at a time, offsets only increase, and each call returns after its commit."""
    seen: list[int] = []
    await env.produce(10, [0])
    async with member(env, auto_commit=False) as group, running(group.run("orders", handler)):
        await handler.until("claim 0@0")
        (session,) = handler.sessions
        env.cluster.faults.on(COMMIT, times=None).delay(0.5)
        await handler.until("done 0@9")

        async def commit() -> None:
            await session.commit()
            seen.append(committed(env)[0])

        await asyncio.gather(*(commit() for _ in range(10)))
        assert seen == [10] * 10
        offsets = [
            partition.committed_offset
            for exchange in env.cluster.history.of(COMMIT)
            for topic in exchange.request.topics
            for partition in topic.partitions
        ]
        assert offsets == sorted(set(offsets))


async def test_reset_offset(handler: WorkHandler, env: VirtualEnvironment):
    """reset_offset moves marks back: the next owner starts there."""
    await env.produce(5, [0])
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        await asyncio.sleep(2.0)
        assert committed(env) == {0: 5}
        handler.sessions[0].reset_offset("orders", 0, 2, "again, please")
        await handler.sessions[0].commit()
        assert committed(env) == {0: 2}
        assert env.cluster.group("g").offsets[orders(0)].metadata == "again, please"


# -- OffsetFetch --------------------------------------------------------------------------------------------------------

FETCH = "OffsetFetch"

FETCH_HEALS = {
    E.COORDINATOR_LOAD_IN_PROGRESS: [FETCH],
    E.UNSTABLE_OFFSET_COMMIT: [FETCH],
    E.NOT_COORDINATOR: [FIND, FETCH],
    E.COORDINATOR_NOT_AVAILABLE: [FIND, FETCH],
}


@pytest.mark.parametrize("code", FETCH_HEALS, **NAME)
async def test_offset_fetch_errors_that_are_retried(env: VirtualEnvironment, code: E):
    """The session continues: a moving coordinator causes no rebalance."""
    handler, ends = WorkHandler(env), SessionEndHook()
    env.cluster.faults.on(FETCH).error(code)
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        assert group_requests(env)[4:] == [f"{FETCH} {code.name}", *FETCH_HEALS[code]]
        refused, good = env.cluster.history.of(FETCH)
        assert 0.08 <= good.time - refused.time <= 0.12
        assert ends.names == []
        assert env.cluster.group("g").generation == 1


@pytest.mark.parametrize("when", ["before", "after", "mid-frame"])
async def test_offset_fetch_over_a_lost_connection(handler: WorkHandler, env: VirtualEnvironment, when):
    env.cluster.faults.on(FETCH).disconnect(when)
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        assert group_requests(env)[-2:] == [FIND, FETCH]


async def test_offset_fetch_errors_that_persist(env: VirtualEnvironment):
    """After its retries the session ends without starting claims, and run() starts another one."""
    handler, ends = WorkHandler(env), SessionEndHook()
    env.cluster.faults.on(FETCH, times=8).error(E.COORDINATOR_LOAD_IN_PROGRESS)
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        assert handler.calls.count("setup") == 1
        assert handler.calls.count("assigned [0, 1, 2, 3]") == 1


@pytest.mark.parametrize("code", [E.GROUP_AUTHORIZATION_FAILED, E.INVALID_GROUP_ID], **NAME)
@pytest.mark.parametrize("how", ["consume", "run"])
async def test_offset_fetch_errors_that_are_raised(env: VirtualEnvironment, code: E, how: str):
    handler = WorkHandler(env)
    env.cluster.faults.on(FETCH).error(code)
    async with member(env) as group:
        with pytest.raises(BrokerError, match=f"committed offsets of group 'g'.*{code.name}"):
            await getattr(group, how)("orders", handler)
    assert "setup" not in handler.calls
    assert committed(env) == {}


async def test_offset_fetch_of_an_unauthorized_partition(handler: WorkHandler, env: VirtualEnvironment):
    env.cluster.faults.on(FETCH, topic="orders").error(E.TOPIC_AUTHORIZATION_FAILED)
    async with member(env) as group:
        with pytest.raises(BrokerError, match=r"orders-0.*TOPIC_AUTHORIZATION_FAILED"):
            await group.run("orders", handler)


async def test_one_lookup_for_all_partitions(handler: WorkHandler, env: VirtualEnvironment):
    """Any number of partitions: one OffsetFetch, and one ListOffsets per leader of those without an offset."""
    await env.create_topic("wide", 60)
    async with member(env) as group, running(group.run("wide", handler)):
        await handler.until("claim 59@0")
        assert len(env.cluster.history.of(FETCH)) == 1
        listed = env.cluster.history.of("ListOffsets")
        assert sorted(exchange.node_id for exchange in listed) == [1, 2, 3]
