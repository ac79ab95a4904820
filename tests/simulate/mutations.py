"""Mutations: bugs introduced into clients and brokers on purpose, which the simulation must detect.

`python -m tests.simulate --mutation "two owners"` finds the first seed that detects one, `--mutation all` for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final

from tests.simulate.mutants_of_brokers import BROKER_MUTANTS
from tests.simulate.mutants_of_clients import CLIENT_MUTANTS
from tests.simulate.run import Outcome, run_seed

__all__ = ["MUTATIONS", "find_mutation"]

MUTATIONS: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    **CLIENT_MUTANTS,
    **BROKER_MUTANTS,
}
"""By name; each returns a context manager that applies the patch."""


def find_mutation(mutation: str, seeds: Iterable[int]) -> Outcome | None:
    """Return the first run that detects a mutation, or None."""
    with MUTATIONS[mutation]():
        return next((outcome for seed in seeds if (outcome := run_seed(seed)).violation is not None), None)
