"""Run many seeds in several processes; outcomes are yielded in the order of the seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.simulation.run import Outcome

__all__ = ["outcomes"]

CHUNK = 8
"""Seeds per task of a process."""


def outcomes(run_seed: Callable[[int], Outcome], seeds: Sequence[int], jobs: int = 1) -> Iterator[Outcome]:
    """Yield the outcomes, with stories only for runs that violated an invariant. `run_seed` is a function of a module."""
    run = partial(_run_without_story, run_seed)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    # spawned, as a process with threads must not be forked
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, seeds, chunksize=CHUNK)


def _run_without_story(run_seed: Callable[[int], Outcome], seed: int) -> Outcome:
    outcome = run_seed(seed)
    if outcome.violation is None:
        outcome.story, outcome.requests = [], []
    return outcome
