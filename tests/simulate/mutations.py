"""Mutations: bugs introduced into clients and brokers on purpose, which the simulation must detect.

`python -m tests.simulate --mutation "two owners"` finds the first seed that detects one, `--mutation all` for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final

from tests.simulate.mutants_of_brokers import BROKER_MUTANTS
from tests.simulate.mutants_of_clients import CLIENT_MUTANTS
from tests.simulate.mutants_of_mixed import MIXED_MUTANTS
from tests.simulate.mutants_of_producers import PRODUCER_MUTANTS
from tests.simulate.mutants_of_protocols import CONSUMER_MUTANTS, COOPERATIVE_MUTANTS
from tests.simulate.mutants_of_queues import QUEUE_MUTANTS
from tests.simulate.run import run_seed
from tests.simulate.seeds import CONSUMERS, COOPERATIVE, MIXED, QUEUES
from tests.simulation.run import Outcome, first_violation

__all__ = ["MUTATIONS", "find_mutation", "first_seed_of"]

MUTATIONS: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    **CLIENT_MUTANTS,
    **PRODUCER_MUTANTS,
    **BROKER_MUTANTS,
    **COOPERATIVE_MUTANTS,
    **CONSUMER_MUTANTS,
    **MIXED_MUTANTS,
    **QUEUE_MUTANTS,
}
"""By name; each returns a context manager that applies the patch."""


def first_seed_of(mutation: str) -> int:
    """Return the first seed of the group protocol to which a mutation belongs."""
    if mutation in QUEUE_MUTANTS:
        return QUEUES
    if mutation in MIXED_MUTANTS:
        return MIXED
    if mutation in CONSUMER_MUTANTS:
        return CONSUMERS
    return COOPERATIVE if mutation in COOPERATIVE_MUTANTS else 0


def find_mutation(mutation: str, seeds: Iterable[int]) -> Outcome | None:
    """Return the first run that detects a mutation, or None; seeds count from the first one of its protocol."""
    seeds = [seed if seed >= COOPERATIVE else first_seed_of(mutation) + seed for seed in seeds]
    with MUTATIONS[mutation]():
        return first_violation(run_seed, seeds)
