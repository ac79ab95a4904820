"""Ways to break the clients and the brokers on purpose: a simulation that does not find them proves nothing.

`python -m tests.simulate --mutation "two owners"` looks for the first seed that finds one, `--mutation all` for all.
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
"""Each is a patch that lasts for a block."""


def find_mutation(mutation: str, seeds: Iterable[int]) -> Outcome | None:
    """The first run that finds a mutation, or None."""
    with MUTATIONS[mutation]():
        return next((outcome for seed in seeds if (outcome := run_seed(seed)).violation is not None), None)
