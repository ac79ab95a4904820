"""Run many seeds in several processes; outcomes are yielded in the order of the seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulate.parallel import CHUNK
from tests.simulate.run import Outcome
from tests.simulate_pulsar.run import run_seed

__all__ = ["outcomes"]


def outcomes(seeds: Sequence[int], jobs: int = 1) -> Iterator[Outcome]:
    """Yield the outcomes, with stories only for runs that violated an invariant."""
    if jobs <= 1:
        yield from map(_without_story, seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_without_story, seeds, chunksize=CHUNK)


def _without_story(seed: int) -> Outcome:
    outcome = run_seed(seed)
    if outcome.violation is None:
        outcome.story, outcome.requests = [], []
    return outcome
