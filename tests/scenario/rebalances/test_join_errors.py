"""How a member reacts to each error code of JoinGroup, SyncGroup and FindCoordinator (sarama.md 2.6).

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from asyncgroup import BrokerError, ConsumerConfig, ErrorCode as E
from asyncgroup.errors import TransportError
from tests.scenario.support import SessionEndHook, WorkHandler, group_requests, member, running
from tests.stories.virtual import VirtualEnvironment

FIND, ID_REQUIRED, JOIN = "FindCoordinator", "JoinGroup MEMBER_ID_REQUIRED", "JoinGroup"
SYNC, OFFSETS = "SyncGroup with the plan", "OffsetFetch"

SAME_MEMBER = [JOIN, SYNC, OFFSETS]
NEW_MEMBER = [ID_REQUIRED, JOIN, SYNC, OFFSETS]
LOOK_UP = [FIND, JOIN, SYNC, OFFSETS]

HEALS = {
    # the error code: the next requests
    E.MEMBER_ID_REQUIRED: SAME_MEMBER,
    E.UNKNOWN_MEMBER_ID: NEW_MEMBER,
    E.ILLEGAL_GENERATION: SAME_MEMBER,  # Java keeps the id; sarama drops it, and the old member stays in the group
    E.REBALANCE_IN_PROGRESS: SAME_MEMBER,
    E.COORDINATOR_LOAD_IN_PROGRESS: SAME_MEMBER,
    E.NOT_COORDINATOR: LOOK_UP,
    E.COORDINATOR_NOT_AVAILABLE: LOOK_UP,
    E.REQUEST_TIMED_OUT: SAME_MEMBER,  # any other code that Kafka calls retriable
}

ENDS = [
    E.FENCED_INSTANCE_ID,
    E.INCONSISTENT_GROUP_PROTOCOL,
    E.INVALID_SESSION_TIMEOUT,
    E.INVALID_GROUP_ID,
    E.GROUP_AUTHORIZATION_FAILED,
    E.GROUP_MAX_SIZE_REACHED,
    E.UNSUPPORTED_VERSION,
    E.TOPIC_AUTHORIZATION_FAILED,  # any other code that Kafka calls final
    E.UNKNOWN_SERVER_ERROR,
]

NAME = {"ids": lambda code: code.name}


def name_of(code: E) -> str:
    return E(code).name


@pytest.mark.parametrize("code", HEALS, **NAME)
async def test_join_errors_that_are_retried(handler: WorkHandler, env: VirtualEnvironment, code: E):
    """The second JoinGroup, with a member id, is refused once."""
    env.cluster.faults.on("JoinGroup", nth=2).error(code)
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("setup")
        assert group_requests(env) == [FIND, ID_REQUIRED, f"JoinGroup {name_of(code)}", *HEALS[code]] or (
            # repeated requests are counted
            code == E.MEMBER_ID_REQUIRED and group_requests(env) == [FIND, f"{ID_REQUIRED} × 2", *HEALS[code]]
        )
        joins = env.cluster.history.of("JoinGroup")
        assert joins[2].time - joins[1].time >= 0.08, "every retry backs off"
        first_id = joins[0].response.member_id
        assert (handler.sessions[0].member_id == first_id) is (code != E.UNKNOWN_MEMBER_ID)
        assert list(env.cluster.group("g").members) == [handler.sessions[0].member_id]


@pytest.mark.parametrize("code", HEALS, **NAME)
async def test_sync_errors_that_are_retried(handler: WorkHandler, env: VirtualEnvironment, code: E):
    """After a refused SyncGroup the member joins again; the last generation is used."""
    env.cluster.faults.on("SyncGroup").error(code)
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("setup")
        requests = [FIND, ID_REQUIRED, JOIN, f"{SYNC} {name_of(code)}", *HEALS[code]]
        if code == E.UNKNOWN_MEMBER_ID:
            # the new member waits for the end of the former id's session, and asks who coordinates
            requests.insert(6, FIND)
        assert group_requests(env) == requests
        (session,) = handler.sessions
        view = env.cluster.group("g")
        assert (view.state, view.generation) == ("Stable", session.generation_id)
        assert session.assignment == {"orders": [0, 1, 2, 3]}
        if code != E.UNKNOWN_MEMBER_ID:
            assert list(view.members) == [session.member_id]
        times = [e.time for e in env.cluster.history.of("SyncGroup", "JoinGroup")]
        assert times[3] - times[2] >= 0.08


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
@pytest.mark.parametrize("code", ENDS, **NAME)
async def test_final_errors(handler: WorkHandler, env: VirtualEnvironment, api: str, code: E):
    """run() raises them with the group's name, without a retry.

    With one exception: the group may have changed its assignor since JoinGroup.
    """
    env.cluster.faults.on(api, nth=2 if api == "JoinGroup" else 1, times=None).error(code)
    async with member(env) as group:
        with pytest.raises(BrokerError, match="'g'") as caught:
            await group.run("orders", handler)
    assert caught.value.code == code
    assert handler.calls == []
    before_leaving = [line for line in group_requests(env) if not line.startswith("LeaveGroup")]
    refused = {"JoinGroup": ["JoinGroup"], "SyncGroup": [JOIN, SYNC]}[api]
    attempt = [*refused[:-1], f"{refused[-1]} {name_of(code)}"]
    is_retried = (api, code) == ("SyncGroup", E.INCONSISTENT_GROUP_PROTOCOL)
    attempts = 1 + ConsumerConfig().rejoin_retry_max if is_retried else 1
    assert before_leaving == [FIND, ID_REQUIRED, *attempt * attempts]


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
@pytest.mark.parametrize("when", ["before", "after", "mid-frame"])
async def test_a_lost_connection_is_retried(handler: WorkHandler, env: VirtualEnvironment, api: str, when):
    """The coordinator is looked up again; the member keeps its id."""
    env.cluster.faults.on(api, nth=2 if api == "JoinGroup" else 1).disconnect(when)
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("setup")
        assert group_requests(env)[-4:] == LOOK_UP
        first, *_ = env.cluster.history.of("JoinGroup")
        assert handler.sessions[0].member_id == first.response.member_id
        assert len(env.cluster.group("g").members) == 1


async def test_the_member_waits_for_a_coordinator_that_loads_for_long(env: VirtualEnvironment):
    """Pauses grow up to rejoin_backoff and stay there; loading does not count as a failed try."""
    env.cluster.faults.on("JoinGroup", times=40).error(E.COORDINATOR_LOAD_IN_PROGRESS)
    handler = WorkHandler(env)
    async with member(env, rejoin_backoff=1.5) as group, running(group.consume("orders", handler)):
        await handler.until("setup")
        times = [e.time for e in env.cluster.history.of("JoinGroup")][:41]
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert pauses[0] < 0.13
        assert max(pauses) == pytest.approx(1.5)
        assert pauses[-1] == pytest.approx(1.5)


@pytest.mark.parametrize("code", [E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE], **NAME)
async def test_a_coordinator_that_never_becomes_available(env: VirtualEnvironment, code: E):
    """consume() raises after rejoin_retry_max retries; run() continues until there is one."""
    fault = env.cluster.faults.on("JoinGroup", times=None).error(code)
    handler = WorkHandler(env)
    async with member(env, rejoin_retry_max=4) as group:
        with pytest.raises(BrokerError, match=code.name):
            await group.consume("orders", handler)
        assert fault.hits == 5
        async with running(group.run("orders", handler)) as consuming:
            await env.bell.until(lambda: fault.hits >= 25, "many tries", env.limit)
            assert not consuming.done()
            env.cluster.faults.clear()
            await handler.until("setup")


async def test_member_id_required_without_end(env: VirtualEnvironment):
    """If a coordinator always answers MEMBER_ID_REQUIRED, the member retries with pauses and finally raises."""
    fault = env.cluster.faults.on("JoinGroup", times=None).error(E.MEMBER_ID_REQUIRED)
    async with member(env, rejoin_retry_max=4) as group:
        with pytest.raises(BrokerError, match="MEMBER_ID_REQUIRED"):
            await group.consume("orders", WorkHandler(env))
    assert fault.hits <= 6


async def test_unknown_member_without_end(handler: WorkHandler, env: VirtualEnvironment):
    """As above; sarama retries this error at once and without end."""
    fault = env.cluster.faults.on("JoinGroup", nth=2, times=None).error(E.UNKNOWN_MEMBER_ID)
    async with member(env, rejoin_retry_max=4) as group:
        with pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
            await group.consume("orders", handler)
        assert fault.hits == 5
        async with running(group.run("orders", handler)) as consuming:
            await env.bell.until(lambda: fault.hits >= 25, "many tries", env.limit)
            assert not consuming.done(), "the member recovers as soon as the coordinator does"
            env.cluster.faults.clear()
            await handler.until("setup")


async def test_revoke_and_commit_once_for_several_joins(env: VirtualEnvironment):
    """In one rebalance claims end, and on_revoked, cleanup and commit run once, however many joins follow."""
    handler, ends = WorkHandler(env), SessionEndHook()
    await env.produce(5, [0])
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        env.cluster.faults.on("Heartbeat").error(E.REBALANCE_IN_PROGRESS)
        env.cluster.faults.on("JoinGroup", times=3).error(E.REBALANCE_IN_PROGRESS)
        env.cluster.faults.on("SyncGroup", times=3).error(E.REBALANCE_IN_PROGRESS)
        await handler.until("setup", 2)
        assert handler.calls.count("revoked [0, 1, 2, 3]") == 1
        assert handler.calls.count("cleanup") == 1
        assert ends.names == ["Rebalanced"]
        assert len(env.cluster.history.of("OffsetCommit")) == 1


# -- FindCoordinator ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS], **NAME
)
async def test_find_coordinator_errors_that_are_retried(env: VirtualEnvironment, code: E):
    env.cluster.faults.on("FindCoordinator", times=2).error(code)
    handler = WorkHandler(env)
    async with member(env) as group, running(group.consume("orders", handler)):
        await handler.until("setup")
        assert group_requests(env) == [f"FindCoordinator {code.name} × 2", FIND, *NEW_MEMBER]


@pytest.mark.parametrize(
    "code", [E.GROUP_AUTHORIZATION_FAILED, E.INVALID_GROUP_ID, E.CLUSTER_AUTHORIZATION_FAILED], **NAME
)
async def test_find_coordinator_errors_that_are_raised(env: VirtualEnvironment, code: E):
    env.cluster.faults.on("FindCoordinator").error(code)
    async with member(env) as group:
        with pytest.raises(BrokerError, match=f"'g'.*{code.name}"):
            await group.run("orders", WorkHandler(env))
    assert group_requests(env) == [f"FindCoordinator {code.name}"]


@pytest.mark.parametrize("when", ["before", "after", "mid-frame"])
async def test_find_coordinator_asks_another_node(handler: WorkHandler, env: VirtualEnvironment, when):
    """If a node does not answer, another one is asked, without a pause and without a retry counted."""
    env.cluster.faults.on("FindCoordinator").disconnect(when)
    async with member(env) as group, running(group.consume("orders", handler)):
        await handler.until("setup")
        first, second = env.cluster.history.of("FindCoordinator")
        assert first.node_id != second.node_id
        assert first.time == second.time


async def test_find_coordinator_that_is_never_answered(handler: WorkHandler, env: VirtualEnvironment):
    """A node that does not answer delays the lookup by one second, not by a request timeout."""
    env.cluster.faults.on("FindCoordinator").drop()
    async with member(env) as group, running(group.consume("orders", handler)):
        await handler.until("setup")
        first, second = env.cluster.history.of("FindCoordinator")
        assert second.time - first.time == pytest.approx(1.0)


async def test_no_broker_at_all_while_joining(handler: WorkHandler, env: VirtualEnvironment):
    """consume() raises after its retries; run() waits until a broker is available."""
    async with member(env, connect_timeout=2.0) as group:
        env.network.refuse("10.0.0.1")
        env.network.cut("10.2.0.1")
        with pytest.raises(TransportError, match=r"10\.0\.0\.1"):
            await group.consume("orders", handler)
        async with running(group.run("orders", handler)) as consuming:
            await asyncio.sleep(120.0)
            assert not consuming.done()
            env.network.heal()
            await handler.until("setup")
