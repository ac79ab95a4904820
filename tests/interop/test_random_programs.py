"""Random programs on the embedded broker and on Apache Kafka: every response must be equal, field by field.

They find cases that the stories of `parity` do not contain. A program is defined by its seed. Programs do not run
concurrently: a real broker batches the requests of several producers to its transaction coordinator, and then answers
some of them with errors of another producer's version.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.interop.parity.both_brokers import on_both_brokers
from tests.interop.parity.compare import differences
from tests.interop.random_programs import AnyVersions, Program
from tests.profiles import thinned
from tests.real.support import RunningKafka

STEPS = 150


@pytest.mark.parametrize("seed", thinned(range(8)))
async def test_both_answer_the_same(apache_kafka: RunningKafka, seed: int) -> None:
    await _compare(apache_kafka, seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_both_answer_the_same_for_long(apache_kafka: RunningKafka) -> None:
    for seed in range(1000, 2000):
        await _compare(apache_kafka, seed)


async def _compare(apache_kafka: RunningKafka, seed: int) -> None:
    """Run the program of a seed on both brokers and compare the responses."""
    async with on_both_brokers(apache_kafka, AnyVersions) as (ours, theirs):
        try:
            await asyncio.gather(Program(ours, seed).run(STEPS), Program(theirs, seed).run(STEPS))
        except BaseException as error:
            error.add_note(f"seed {seed}, ours at {len(ours.answers)}, theirs at {len(theirs.answers)}")
            raise
    found = [str(difference) for difference in differences(f"seed {seed}", ours, theirs)]
    assert not found, "\n".join(found[:20])
