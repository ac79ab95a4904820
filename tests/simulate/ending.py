"""The end of a run: faults stop, the group must recover within a limit, then all clients close and nothing may be left."""

from __future__ import annotations

import asyncio
from typing import Final

from asyncgroup import TopicPartition
from asyncgroup.workqueue import Mode
from tests.simulate import queues_ending
from tests.simulate.member import SimMember
from tests.simulate.plan import SPARE
from tests.simulate.queues_member import SimQueue
from tests.simulate.world import World
from tests.simulation.story import Violation

__all__ = ["close_all", "end_faults"]

STABLE_TIMEOUT: Final = 60.0
"""Seconds from the last fault until the group is stable: a request that hangs (4), a session timeout (6), two rebalances
that wait for a missing member (8 each), a broker's delay (15), and the backoffs between them."""

CATCH_UP_TIMEOUT: Final = 45.0
"""Seconds until all records are handled and committed. A half-open connection may be noticed only now: the session is then
lost (6), and a JoinGroup on another such connection is given up after the rebalance timeout plus 5 (13)."""

REBALANCE_AFTER: Final = 20.0
"""Seconds from the last fault until a group that waits for a join gets one."""


async def end_faults(world: World) -> None:
    """End all faults, and check that the group becomes stable, catches up and is healthy."""
    world.story.write("plan", "faults end")
    world.cluster.faults.clear()
    world.network.end_all()
    for member in world.members.values():
        member.handler.disturbances.end()
        if member.group is not None:
            member.group.resume_all()
    if not world.active_members:
        world.join(SPARE)
    began = world.loop.time()
    if world.plan.others:
        world.later(REBALANCE_AFTER, lambda: _rebalance_if_needed(world))
    await world.within(STABLE_TIMEOUT, "the group is stable", lambda: _not_stable(world))
    world.story.count("ms to settle", round((world.loop.time() - began) * 1000))
    await _flush(world)
    if world.queues is not None:
        await world.within(
            queues_ending.TIMEOUT,
            "all is handled and committed",
            lambda: _work_left(world),
            longest=queues_ending.LONGEST,
        )
        queues_ending.check(world, world.queues)
        _check_logs(world)
        return
    await world.within(
        CATCH_UP_TIMEOUT, "all is handled, committed and healthy", lambda: _not_caught_up(world)
    )
    _check_logs(world)


def _rebalance_if_needed(world: World) -> None:
    """Let a member leave and join again, if the group waits for that (`lost_rebalances`)."""
    if world.observer.lacks_rebalance(_partitions(world)):
        world.story.write("plan", "the group lacks a rebalance")
        world.story.count("lacked a rebalance")
        world.active_members[0].restart(leaves=True)
    elif absent := world.observer.remove_absent_members():
        world.story.write("plan", f"{absent} static members that have gone are removed")
        world.story.count("removed static members", absent)


async def _flush(world: World) -> None:
    flushed = asyncio.ensure_future(world.producer.done())
    await asyncio.wait([flushed, world.broken], timeout=STABLE_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    await world.until(0.0)
    if not flushed.done():
        flushed.cancel()
        raise Violation("the producer finishes", f"{world.producer.producer!r} still has unsent records")
    await flushed


def _not_stable(world: World) -> str | None:
    """Return why the group is not stable with exactly the active members; None if it is."""
    view = world.observer.view()
    if view.state != "Stable":
        return f"the group is {view.state}"
    names = sorted(member.client_id for member in view.members.values())
    wanted = sorted(member.name for member in world.active_members)
    members = world.active_members
    if world.plan.queues is not None and world.plan.queues.mode is Mode.EXCLUSIVE:
        members = [member for member in members if member.name in names][:1]
        wanted = [member.name for member in members] or ["one of them"]
    if names != wanted:
        return f"the group has the members {names}, the active ones are {wanted}"
    for member in members:
        session = None if member.group is None else member.group.session
        if session is None or session.ended or session.generation_id != view.generation:
            return f"{member.name} has {session!r}, the group generation {view.generation}"
        mine = {topic: tuple(partitions) for topic, partitions in session.assignment.items() if partitions}
        if mine != view.members[session.member_id].assignment:
            return f"{member.name} has {mine}, its coordinator {view.members[session.member_id].assignment}"
        if member.spec.is_consumer and member.session_timeout != world.plan.setting.session_timeout:
            return f"{member.name} takes {member.session_timeout:g} s for the group's session timeout"
    owned = view.assignment
    missing = [tp for tp in _partitions(world) if tp not in owned]
    return f"{missing} have no owner" if missing else None


def _work_left(world: World) -> str | None:
    """Return what work queues have not handled, committed or recovered from yet; None if nothing."""
    if (unsettled := _not_stable(world)) is not None:
        return unsettled
    if world.standalone is not None and (behind := world.standalone.behind) is not None:
        return behind
    return queues_ending.left(world)


def _partitions(world: World) -> list[TopicPartition]:
    return [
        TopicPartition(topic, partition.partition)
        for topic in world.plan.setting.topics
        for partition in world.cluster.topic(topic).partitions
    ]


def _not_caught_up(world: World) -> str | None:
    """Return what is not handled, committed or healthy yet; None if everything is."""
    if (unsettled := _not_stable(world)) is not None:
        return unsettled
    if world.standalone is not None and (behind := world.standalone.behind) is not None:
        return behind
    owners = world.observer.view().assignment
    for tp in _partitions(world):
        oracle, end = world.oracle.at(tp), world.cluster.partition(*tp).log_end_offset
        if oracle.handled_end != end:
            return f"{tp}: handled up to {oracle.handled_end} of {end}"
        if oracle.is_set_back:
            # the owner believes that all is committed: only another record makes it commit again
            oracle.is_set_back = False
            world.producer.send(tp.topic, 1, tp.partition)
            return f"{tp}: a late commit has set the committed offset back to {oracle.committed} of {end}"
        if oracle.committed != end and end and _owner(world, owners[tp]).spec.auto_commit:
            return f"{tp}: committed {oracle.committed} of {end} by {owners[tp]}"
    for member in world.active_members:
        assert member.group is not None
        health = member.group.health()
        if not health.is_healthy or health.lag:
            return f"{member.name}: {health}"
    return None


def _owner(world: World, member_id: str) -> SimMember | SimQueue:
    return next(
        m
        for m in world.active_members
        if m.group and m.group.session and m.group.session.member_id == member_id
    )


def _check_logs(world: World) -> None:
    """Check that acknowledged records and delivered records are in the logs."""
    for tp in _partitions(world):
        log = {record.offset: record.value or b"" for record in world.cluster.records(*tp)}
        for oracle in world.observer.oracles.values():
            oracle.check_log(tp, log)


async def close_all(world: World) -> None:
    """Close all clients in order, and check that no member and no task is left.

    All records in the logs now must be handled. A record that its producer has given up may still arrive while the readers
    are leaving; it need not be handled.
    """
    ends = {tp: world.cluster.partition(*tp).log_end_offset for tp in _partitions(world)}
    for member in world.active_members:
        member.leave()
    if world.standalone is not None:
        world.standalone.leave()
    await world.all_tasks_end("clients", 30.0)
    await world.producer.aclose()
    view, excused = world.observer.view(), {m.name for m in world.members.values() if m.failed_to_leave}
    dynamic = [m.client_id for m in view.members.values() if m.group_instance_id is None]
    stayed = [name for name in dynamic if name not in excused]
    if stayed:
        raise Violation("members that left are removed", f"{stayed} are still members")
    for tp, end in ends.items() if world.queues is None else ():
        oracle = world.oracle.at(tp)
        if oracle.handled_end < end:
            raise Violation("at least once", f"{tp}: handled up to {oracle.handled_end}")
