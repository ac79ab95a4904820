"""The end of a run of work queues: all records are handled or dead letters, and committed."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.simulate.queues_handler import is_poison
from tests.simulate.queues_oracle import QueueOracle
from tests.simulate.world import World

__all__ = ["LONGEST", "TIMEOUT", "check", "left"]

TIMEOUT: Final = 120.0
"""Seconds without progress, until all records are handled and committed: records may fail several times, each with its delay."""

LONGEST: Final = 600.0
"""Seconds in which all are, though one member may have them all."""


def left(world: World) -> str | None:
    """Return what is not handled, committed or healthy yet; None if everything is."""
    oracle = world.queues
    assert oracle is not None
    if (work := oracle.left()) is not None:
        _commit_again(world, oracle)
        return work
    for member in world.active_members:
        if member.group is not None and member.group.session is not None:
            health = member.group.health()
            if not health.is_healthy or health.lag:
                return f"{member.name}: {health}"
    return None


def _commit_again(world: World, oracle: QueueOracle) -> None:
    """A late commit has set the committed window back, and its owner believes that all is committed: only another record
    makes it commit again."""
    for tp in oracle.logs.sources:
        state = oracle.base.at(tp)
        if state.is_set_back and tp.topic in world.plan.setting.topics:
            state.is_set_back = False
            world.producer.send(tp.topic, 1, tp.partition)


def check(world: World, oracle: QueueOracle) -> None:
    """Check that nothing is lost, and that the dead letters are exact."""
    assert world.plan.queues is not None
    oracle.check_all_done()
    oracle.check_dead_letters(partial(is_poison, world.plan.seed, world.plan.queues))
    world.story.count("dead letters", len(oracle.logs.dead_letters()))
