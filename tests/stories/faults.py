"""Stories of faults that only a real Kafka can have: killed and restarted, a topic made anew, a log cut short.

After each the group heals by itself within twice the session timeout, every record is handled at least once, and
`health()` said what was wrong meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.stories.environment import Environment
from tests.stories.members import LocalMember, Member
from tests.stories.proxy import TcpProxy

__all__ = [
    "a_log_is_cut_short",
    "a_topic_is_made_anew",
    "connections_are_cut",
    "the_broker_hangs",
    "the_broker_is_killed",
]

Step = Callable[[], None]


async def _two_at_work(env: Environment) -> tuple[Member, Member]:
    """Two settled members that have handled and committed five records of each partition."""
    ann = await env.member("ann")
    await env.settled(ann)
    bob = await env.member("bob")
    await env.settled(ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    return ann, bob


def _says(member: Member) -> str:
    """What a member says about its health."""
    assert isinstance(member, LocalMember)
    return str(member.group.health())


def _is_healthy(member: Member) -> bool:
    assert isinstance(member, LocalMember)
    return member.group.health().is_healthy


async def _all_unhealthy(env: Environment, *members: Member) -> dict[str, str]:
    """Wait until every member says that something is wrong; what they say."""
    await env.bell.until(
        lambda: not any(map(_is_healthy, members)), "every member knows that something is wrong", env.limit
    )
    return {member.name: _says(member) for member in members}


async def _healed(env: Environment, *members: Member) -> None:
    """Within twice the session timeout: one group again, its records handled and committed, everybody healthy."""
    begun = asyncio.get_running_loop().time()
    await env.settled(*members)
    await env.all_handled()
    took = asyncio.get_running_loop().time() - begun
    assert took < 2 * env.session_timeout, f"healing took {took:.1f} s"
    await env.all_committed()
    await env.bell.until(lambda: all(map(_is_healthy, members)), "everybody is healthy", env.limit)
    assert not any(member.log.failure for member in members)


async def the_broker_is_killed(env: Environment, kill: Step, restart: Step) -> None:
    """Killed with -9 and restarted: what was acknowledged is there, and the group goes on."""
    ann, bob = await _two_at_work(env)
    await asyncio.to_thread(kill)
    said = await _all_unhealthy(env, ann, bob)
    for text in said.values():
        assert "127.0.0.1" in text, f"which broker is away? {text}"
    await asyncio.to_thread(restart)
    await env.produce(5, range(4))
    await _healed(env, ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()


async def the_broker_hangs(env: Environment, suspend: Step, resume: Step) -> None:
    """Stopped by SIGSTOP past the session: connections stand, nothing is answered, then everything at once."""
    ann, bob = await _two_at_work(env)
    await asyncio.to_thread(suspend)
    await _all_unhealthy(env, ann, bob)
    await asyncio.sleep(env.session_timeout)
    await asyncio.to_thread(resume)
    await env.produce(5, range(4))
    await _healed(env, ann, bob)


async def a_topic_is_made_anew(env: Environment) -> None:
    """Deleted and created again under a running group: the new topic is read from its start."""
    ann, bob = await _two_at_work(env)
    await env.admin.delete_topic(env.topic)
    await env.admin.recreate_topic(env.topic, 4)
    _forget(env, ann, bob)
    await env.produce(3, range(4))  # less than the old topic had: the old offsets are beyond the end
    await _healed(env, ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()


async def a_log_is_cut_short(env: Environment, lose_records: Step) -> None:
    """The broker comes back without the last records: the committed offset lies behind the log's end."""
    ann, bob = await _two_at_work(env)
    await asyncio.to_thread(lose_records)
    _forget(env, ann, bob)
    await env.produce(3, range(4))
    await _healed(env, ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()


async def connections_are_cut(env: Environment, proxy: TcpProxy) -> None:
    """Ten connections die in the middle of a response: all is read again from where it stood, nothing twice."""
    ann, bob = await _two_at_work(env)
    proxy.cut_responses(10, after=1000)
    for _ in range(40):
        if proxy.cuts == 10:
            break
        await env.produce(50, range(4))
        await env.all_handled()
    assert proxy.cuts == 10
    await _healed(env, ann, bob)
    handled = [record for member in (ann, bob) for record in member.log.handled]
    assert len(handled) == len(set(handled)), "a cut fetch is no reason for a second delivery"
    assert len(ann.log.sessions) + len(bob.log.sessions) == 3, "and none for a rebalance"


def _forget(env: Environment, *members: Member) -> None:
    """What was handled and produced before belongs to records that are gone."""
    env.produced.clear()
    for member in members:
        member.log.handled.clear()
