"""The end of a run: the faults stop, and all must be well within a bound; then everybody goes, and nothing is left."""

from __future__ import annotations

import asyncio
from typing import Final

from asyncgroup import TopicPartition
from tests.simulate.member import SimMember
from tests.simulate.plan import SPARE
from tests.simulate.story import Violation
from tests.simulate.world import World

__all__ = ["calm_down", "close_all"]

TO_SETTLE: Final = 60.0
"""Seconds from the last fault until the group is stable: a request that hangs (4), a session that runs out (6), two
rebalances that wait for somebody who does not come (8 each), a broker's delay (15), and the backoffs between them."""

TO_CATCH_UP: Final = 45.0
"""Seconds until all records are handled and committed. A connection that was severed before may only now be noticed: the
session is lost then (6), and a JoinGroup on another such connection is given up after the rebalance timeout and 5 (13)."""

STEP: Final = 0.25


async def calm_down(world: World) -> None:
    """No more faults."""
    world.story.tell("plan", "calm")
    world.cluster.faults.clear()
    world.network.clear_up()
    for member in world.members.values():
        member.handler.disturbed.end()
        if member.group is not None:
            member.group.resume_all()
    if not world.living:
        world.join(SPARE)
    began = world.loop.time()
    await _within(world, TO_SETTLE, "the group is stable", lambda: _unsettled(world))
    world.story.count("ms to settle", round((world.loop.time() - began) * 1000))
    await _flush(world)
    await _within(world, TO_CATCH_UP, "all is handled, committed and healthy", lambda: _behind(world))
    _check_logs(world)


async def _flush(world: World) -> None:
    flushed = asyncio.ensure_future(world.producer.done())
    await asyncio.wait([flushed, world.broken], timeout=TO_SETTLE, return_when=asyncio.FIRST_COMPLETED)
    await world.until(0.0)
    if not flushed.done():
        flushed.cancel()
        raise Violation("the producer ends", f"{world.producer.producer!r} is not done")
    await flushed


async def _within(world: World, seconds: float, what: str, problem: object) -> None:
    """Look again and again; raises a violation with the problem that is left after so many seconds."""
    assert callable(problem)
    limit = world.loop.time() + seconds
    while (left := problem()) is not None:
        if world.loop.time() >= limit:
            raise Violation(f"when faults stop {what}", f"not within {seconds:g} s: {left}")
        await world.until(world.loop.time() + STEP)


def _unsettled(world: World) -> str | None:
    """What keeps the group from being stable with just those who are there; None if it is."""
    view = world.watch.view()
    if view.state != "Stable":
        return f"the group is {view.state}"
    names = sorted(member.client_id for member in view.members.values())
    wanted = sorted(member.name for member in world.living)
    if names != wanted:
        return f"the group has {names}, and {wanted} are there"
    for member in world.living:
        session = None if member.group is None else member.group.session
        if session is None or session.ended or session.generation_id != view.generation:
            return f"{member.name} has {session!r}, the group generation {view.generation}"
        mine = {topic: tuple(partitions) for topic, partitions in session.assignment.items() if partitions}
        if mine != view.members[session.member_id].assignment:
            return f"{member.name} has {mine}, its coordinator {view.members[session.member_id].assignment}"
    missing = [tp for tp in _partitions(world) if tp not in view.assignment]
    return f"nobody owns {missing}" if missing else None


def _partitions(world: World) -> list[TopicPartition]:
    return [
        TopicPartition(topic, partition.index)
        for topic in world.plan.setting.topics
        for partition in world.cluster.topic(topic).partitions
    ]


def _behind(world: World) -> str | None:
    """What is not handled, committed or healthy yet."""
    if (unsettled := _unsettled(world)) is not None:
        return unsettled
    if world.hermit is not None and (behind := world.hermit.behind) is not None:
        return behind
    owners = world.watch.view().assignment
    for tp in _partitions(world):
        truth, end = world.truth.at(tp), world.cluster.partition(*tp).log.end_offset
        if truth.frontier != end:
            return f"{tp}: handled up to {truth.frontier} of {end}"
        if (
            truth.is_undone
        ):  # whoever owns it believes that all is committed: only another record can bring it forward
            truth.is_undone = False
            world.producer.send(tp.topic, 1, tp.partition)
            return f"{tp}: a commit came late, so that {truth.committed} of {end} are committed"
        if truth.committed != end and end and _by(world, owners[tp]).spec.auto_commit:
            return f"{tp}: committed {truth.committed} of {end} by {owners[tp]}"
    for member in world.living:
        assert member.group is not None
        health = member.group.health()
        if not health.is_healthy or health.lag:
            return f"{member.name}: {health}"
    return None


def _by(world: World, member_id: str) -> SimMember:
    return next(
        m for m in world.living if m.group and m.group.session and m.group.session.member_id == member_id
    )


def _check_logs(world: World) -> None:
    """What producers were told of, and what was handed out, is what the logs hold."""
    for tp in _partitions(world):
        log = {record.offset: record.value or b"" for record in world.cluster.records(*tp)}
        for truth in world.watch.truths.values():
            truth.log_is(tp, log)


async def close_all(world: World) -> None:
    """Everybody leaves in order; then nothing is left, neither a member in the group nor a task.

    What the logs hold now is handled. A record that its producer has given up may be on its way still; where it comes
    when its readers are leaving, nobody has to handle it.
    """
    ends = {tp: world.cluster.partition(*tp).log.end_offset for tp in _partitions(world)}
    for member in world.living:
        member.leave()
    if world.hermit is not None:
        world.hermit.leave()
    limit = world.loop.time() + 30.0
    while world.tasks:
        if world.loop.time() >= limit:
            raise Violation("everybody ends", f"still at it: {[task.get_name() for task in world.tasks]}")
        await asyncio.wait([*world.tasks, world.broken], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        await world.until(0.0)
    await world.producer.aclose()
    view, excused = world.watch.view(), {m.name for m in world.members.values() if m.could_not_leave}
    dynamic = [m.client_id for m in view.members.values() if m.group_instance_id is None]
    stayed = [name for name in dynamic if name not in excused]
    if stayed:
        raise Violation("who leaves is gone", f"{stayed} are still members")
    for tp, end in ends.items():
        truth = world.truth.at(tp)
        if truth.frontier < end:
            raise Violation("at least once", f"{tp}: handled up to {truth.frontier}")
