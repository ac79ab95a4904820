"""A lost response to the JoinGroup of a cooperative member, on a connection that stays open: commits are refused.

The member keeps its claims while it joins, and JoinGroup may take `rebalance_timeout`. The coordinator accepts its commits
until the join is complete; from then on the session timeout runs, after which others get its partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncgroup import ConsumerGroup
from asyncgroup.errors import BrokerError, ErrorCode, MemberLost
from tests.scenario.support import SessionEndHook, WorkHandler, member, now, running
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment


@asynccontextmanager
async def losing(
    commit_interval: float, times: int = 1, **config: Any
) -> AsyncIterator[tuple[VirtualEnvironment, ConsumerGroup, SessionEndHook]]:
    """Run ann and bob, and carl, who joins: the response to ann's JoinGroup is lost at the yield."""
    ends = SessionEndHook()
    async with made_for("cooperative") as env, member(env, "bob") as bob:
        assert env.protocol == PROTOCOLS["cooperative"]
        async with (
            running(bob.run("orders", WorkHandler(env))),
            member(env, "ann", hooks=(ends,), auto_commit_interval=commit_interval, **config) as ann,
            member(env, "carl") as carl,
        ):
            async with running(ann.run("orders", WorkHandler(env))):
                await env.bell.until(
                    lambda: len(partitions_of(bob)) == 2 == len(partitions_of(ann)), "halves", env.limit
                )
                await asyncio.sleep(env.heartbeat_interval)
                lost = env.cluster.faults.on("JoinGroup", client_id="ann", times=times).drop()
                async with running(carl.run("orders", WorkHandler(env))):
                    await lost.wait_hit()
                    await env.produce(3, range(4))
                    yield env, ann, ends
                    await env.bell.until(
                        lambda: sorted(map(len, map(partitions_of, (bob, ann, carl)))) == [1, 1, 2],
                        "shares",
                        env.limit,
                    )
                    await env.all_committed()


async def test_a_member_that_the_group_still_has_goes_on() -> None:
    async with losing(commit_interval=1.0) as (env, ann, ends):
        session, began = ann.session, now()
        assert session is not None
        generation = session.generation_id
        await env.bell.until(lambda: session.generation_id > generation, "the join", env.limit)
        assert now() - began < env.session_timeout
    assert [type(cause).__name__ for cause in ends.causes] == ["CallerCancelled"], "its only session"


async def test_a_second_lost_response() -> None:
    async with losing(commit_interval=1.0, times=2) as (env, ann, _ends):
        session, began = ann.session, now()
        assert session is not None
        generation = session.generation_id
        await env.bell.until(
            lambda: ann.session is not session or session.generation_id > generation, "the join", env.limit
        )
        assert now() - began < 2 * env.session_timeout


async def test_it_is_no_failure_that_is_counted() -> None:
    async with losing(commit_interval=1.0, rejoin_retry_max=0) as (env, ann, ends):
        session = ann.session
        assert session is not None
        generation = session.generation_id
        await env.bell.until(
            lambda: session.generation_id > generation or bool(ends.causes), "join", env.limit
        )
        assert not ends.causes


async def test_a_member_that_was_removed_ends_its_session() -> None:
    """Its first commit is later than the session timeout; bob and carl have got its partitions by then."""
    interval = 15.0
    async with losing(commit_interval=interval) as (env, _ann, ends):
        began = now()
        await env.bell.until(lambda: bool(ends.causes), "the loss", env.limit)
        assert now() - began < interval + env.session_timeout / 3 + 3.0
    assert isinstance(ends.causes[0], MemberLost)


async def test_a_static_member_that_missed_a_generation_is_lost() -> None:
    """Its JoinGroup does not arrive. The group goes on with its former subscription, by which it owns nothing."""
    ends, config = SessionEndHook(), {"rebalance_timeout": 6.0, "auto_commit_interval": 1.0}
    async with made_for("cooperative") as env, member(env, "bob", **config) as bob:
        async with (
            running(bob.run("orders", WorkHandler(env))),
            member(env, "ann", hooks=(ends,), group_instance_id="place", **config) as ann,
            running(ann.run("orders", WorkHandler(env))),
            member(env, "carl", **config) as carl,
        ):
            await env.bell.until(
                lambda: len(partitions_of(bob)) == 2 == len(partitions_of(ann)), "halves", env.limit
            )
            await asyncio.sleep(env.heartbeat_interval)
            former = set(partitions_of(ann))
            held = env.cluster.faults.on("JoinGroup", client_id="ann", times=1).hold()
            async with running(carl.run("orders", WorkHandler(env))):
                await held.wait_hit()
                await env.bell.until(
                    lambda: bool(former & {*partitions_of(bob), *partitions_of(carl)}), "moved", env.limit
                )
                await env.produce(3, range(4))
                await env.bell.until(lambda: bool(ends.causes), "the loss", env.limit)
                await env.bell.until(
                    lambda: sorted(map(len, map(partitions_of, (bob, ann, carl)))) == [1, 1, 2],
                    "shares",
                    env.limit,
                )
                await env.all_committed()
    error = ends.causes[0].__cause__
    assert isinstance(ends.causes[0], MemberLost)
    assert isinstance(error, BrokerError)
    assert error.code == ErrorCode.ILLEGAL_GENERATION
