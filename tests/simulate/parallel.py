"""Run many seeds in several processes; outcomes are yielded in the order of the seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulate.run import Outcome, run_seed

__all__ = ["outcomes"]

CHUNK = 8
"""Seeds per task of a process."""


def outcomes(seeds: Sequence[int], jobs: int = 1) -> Iterator[Outcome]:
    """Yield the outcomes, with stories only for runs that violated an invariant."""
    if jobs <= 1:
        yield from map(_run_without_story, seeds)
        return
    # spawned, as a process with threads must not be forked
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_run_without_story, seeds, chunksize=CHUNK)


def _run_without_story(seed: int) -> Outcome:
    outcome = run_seed(seed)
    if outcome.violation is None:
        outcome.story, outcome.requests = [], []
    return outcome
