"""The transactional sink in a model: drivers and tasks die at any request, and each row is committed once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from tests.profiles import long_family
from tests.spark.sink.transaction_model import Model, Query, Turns

ROWS = 6
"""The number of rows of a batch."""


def simulate(query: Query, timeouts: float = 0.01) -> None:
    async def run() -> None:
        turns = query.turns

        def on_turn() -> None:
            if turns.fault(timeouts):
                query.model.expire(turns.rng)

        await turns.run_until(asyncio.create_task(query.run()), on_turn)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:  # attempts whose driver is dead
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(run())


def rows_of(batch: int, rng: random.Random) -> list[list[int]]:
    """Split the rows of a batch over slots, in order; some slots may be empty."""
    cuts = sorted(rng.randint(0, ROWS) for _ in range(rng.randint(0, 3)))
    return [list(range(batch * 100 + start, batch * 100 + end)) for start, end in pairwise([0, *cuts, ROWS])]


def query_of(seed: int, *, same_plan: bool) -> Query:
    """Return a query whose batches are the same in each attempt, or are split in another way."""

    def batches(batch: int, attempt: int) -> Sequence[Sequence[int]]:
        return rows_of(batch, random.Random(seed * 1000 + batch * 100 + (0 if same_plan else attempt)))

    return Query(Model(), Turns(random.Random(seed), faults=seed % 12), batches)


@pytest.mark.parametrize("seeds", long_family(range(at, at + 50) for at in range(0, 3000, 50)))
def test_each_row_is_committed_once(seeds: range) -> None:
    deaths = 0
    for seed in seeds:
        query = query_of(seed, same_plan=True)
        simulate(query)
        assert query.refused is None
        assert sorted(query.model.log) == expected(query), seed
        deaths += query.deaths
    assert deaths > len(seeds) / 10


@pytest.mark.parametrize("seeds", long_family(range(at, at + 50) for at in range(0, 3000, 50)))
def test_a_batch_with_another_plan_is_committed_once_or_refused(seeds: range) -> None:
    refused = 0
    for seed in seeds:
        query = query_of(seed, same_plan=False)
        simulate(query)
        refused += query.refused is not None
        found = sorted(query.model.log)
        assert found == sorted(set(found)), seed
        assert query.refused or found == expected(query), seed
    assert refused < len(seeds)


@pytest.mark.parametrize("seeds", long_family(range(at, at + 50) for at in range(0, 3000, 50)))
def test_a_stored_record_makes_every_plan_right(seeds: range) -> None:
    """While no transaction is aborted by its timeout or a second attempt, a repeated batch may have any plan."""
    for seed in seeds:
        query = query_of(seed, same_plan=False)
        query.second_attempts, query.are_executors_killed = 0, True
        simulate(query, timeouts=0)
        assert query.refused is None, seed
        assert sorted(query.model.log) == expected(query), seed


def expected(query: Query) -> list[int]:
    return [batch * 100 + row for batch in range(query.last) for row in range(ROWS)]
