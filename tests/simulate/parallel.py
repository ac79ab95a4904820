"""Many runs, in as many processes as one likes; their outcomes come in the order of the seeds, whoever ran them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulate.run import Outcome, run_seed

__all__ = ["outcomes"]

CHUNK = 8
"""Seeds that a process gets at a time."""


def outcomes(seeds: Sequence[int], jobs: int = 1) -> Iterator[Outcome]:
    """The outcomes, without the stories of those that went well."""
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
