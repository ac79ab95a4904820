"""Stories of faults of a real Kafka: a broker killed and restarted, a recreated topic, a truncated log, cut connections.

After each fault the group recovers within twice the session timeout, every record is handled at least once, and
`health()` has reported the problem.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.stories.environment import Environment
from tests.stories.members import LocalMember, Member
from tests.stories.proxy import TcpProxy

__all__ = [
    "a_log_is_truncated",
    "a_topic_is_recreated",
    "connections_are_cut",
    "the_broker_hangs",
    "the_broker_is_killed",
]

Step = Callable[[], None]


async def _two_active_members(env: Environment) -> tuple[Member, Member]:
    """Return two settled members that have handled and committed five records of each partition."""
    ann = await env.member("ann")
    await env.settled(ann)
    bob = await env.member("bob")
    await env.settled(ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    return ann, bob


def _health_text(member: Member) -> str:
    """Return a member's `health()` as text."""
    assert isinstance(member, LocalMember)
    return str(member.group.health())


def _is_healthy(member: Member) -> bool:
    assert isinstance(member, LocalMember)
    return member.group.health().is_healthy


async def _all_unhealthy(env: Environment, *members: Member) -> dict[str, str]:
    """Wait until every member is unhealthy; return their health texts."""
    await env.bell.until(lambda: not any(map(_is_healthy, members)), "every member is unhealthy", env.limit)
    return {member.name: _health_text(member) for member in members}


async def _healed(env: Environment, *members: Member) -> None:
    """Check recovery within twice the session timeout: group settled, records handled and committed, members healthy."""
    begun = asyncio.get_running_loop().time()
    await env.settled(*members)
    await env.all_handled()
    took = asyncio.get_running_loop().time() - begun
    assert took < 2 * env.session_timeout, f"recovery took {took:.1f} s"
    await env.all_committed()
    await env.bell.until(lambda: all(map(_is_healthy, members)), "every member is healthy", env.limit)
    assert not any(member.log.failure for member in members)


async def the_broker_is_killed(env: Environment, kill: Step, restart: Step) -> None:
    """The broker is killed by SIGKILL and restarted: acknowledged records are kept, and the group continues."""
    ann, bob = await _two_active_members(env)
    await asyncio.to_thread(kill)
    health_texts = await _all_unhealthy(env, ann, bob)
    for text in health_texts.values():
        assert "127.0.0.1" in text, f"the unavailable broker is not named: {text}"
    await asyncio.to_thread(restart)
    await env.produce(5, range(4))
    await _healed(env, ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()


async def the_broker_hangs(env: Environment, suspend: Step, resume: Step) -> None:
    """The broker is suspended by SIGSTOP past the session timeout: connections stay open, responses come late, all at once."""
    ann, bob = await _two_active_members(env)
    await asyncio.to_thread(suspend)
    await _all_unhealthy(env, ann, bob)
    await asyncio.sleep(env.session_timeout)
    await asyncio.to_thread(resume)
    await env.produce(5, range(4))
    await _healed(env, ann, bob)


async def a_topic_is_recreated(env: Environment) -> None:
    """The topic is deleted and recreated while the group runs: the new topic is read from its start."""
    ann, bob = await _two_active_members(env)
    await env.admin.delete_topic(env.topic)
    await env.admin.recreate_topic(env.topic, 4)
    _clear_history(env, ann, bob)
    await env.produce(3, range(4))  # fewer than before, so that the old offsets are out of range
    await _healed(env, ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()


async def a_log_is_truncated(env: Environment, lose_records: Step) -> None:
    """The broker comes back without the last records: the committed offset is beyond the log end offset."""
    ann, bob = await _two_active_members(env)
    await asyncio.to_thread(lose_records)
    _clear_history(env, ann, bob)
    await env.produce(3, range(4))
    await _healed(env, ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()


async def connections_are_cut(env: Environment, proxy: TcpProxy) -> None:
    """Ten connections are cut in the middle of a response: fetching continues at the same position, without duplicates."""
    ann, bob = await _two_active_members(env)
    proxy.cut_responses(10, after=1000)
    for _ in range(40):
        if proxy.cuts == 10:
            break
        await env.produce(50, range(4))
        await env.all_handled()
    assert proxy.cuts == 10
    await _healed(env, ann, bob)
    handled = [record for member in (ann, bob) for record in member.log.handled]
    assert len(handled) == len(set(handled)), "a record was delivered twice after a cut Fetch response"
    assert len(ann.log.sessions) + len(bob.log.sessions) == 3, "a cut connection caused a rebalance"


def _clear_history(env: Environment, *members: Member) -> None:
    """Clear the records produced and handled so far, because the broker has lost them."""
    env.produced.clear()
    for member in members:
        member.log.handled.clear()
