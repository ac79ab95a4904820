"""Random stories of work queues: local consumers, loops and batches that are cancelled, seeks, transactional copies.

`python -m tests.scenario.random.queues consumers 0:300` runs more of them, `--story` prints one. Each run has an event loop
of its own, so these tests are plain functions.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.profiles import current_profile, soak
from tests.scenario.random.queues import PROGRAMS, run_seed

SEEDS = 2 if current_profile() == "full" else 1
FOUND_BUGS = {
    "consumers": (503, 505, 509),
    "readers": (638, 708),
    "seeks": (612,),
    "transactions": (660, 669),
}
"""Seeds that found errors, which are mended."""


def check(program: str, seeds: Iterable[int]) -> None:
    for seed in seeds:
        story, broken = run_seed(program, seed)
        assert not broken, f"{program} {seed}: {broken}"
        assert story.oracle.counts["deliveries"] > 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_seeds(program: str) -> None:
    check(program, range(SEEDS))


@pytest.mark.full
@pytest.mark.parametrize("program", PROGRAMS)
def test_seeds_that_found_bugs(program: str) -> None:
    check(program, FOUND_BUGS[program])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", soak((name, first) for name in PROGRAMS for first in range(0, 800, 200)))
def test_many_seeds(case: tuple[str, int]) -> None:
    program, first = case
    check(program, range(first, first + 200))
