"""Random programs of KIP-848 groups on the embedded broker and on Apache Kafka: every response must be equal.

They find orders of heartbeats, leaves and commits that the stories of `parity/consumer_groups.py` do not contain.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.interop.parity.both_brokers import on_both_brokers
from tests.interop.parity.compare import differences
from tests.interop.parity.scene import Scene
from tests.interop.random_consumer_groups import ConsumerGroupProgram
from tests.profiles import soak
from tests.real.support import RunningKafka

STEPS = 120


@pytest.mark.full
@pytest.mark.parametrize("seed", range(8))
async def test_both_answer_the_same(apache_kafka: RunningKafka, seed: int) -> None:
    await _compare(apache_kafka, seed)


@pytest.mark.parametrize("first", soak(range(1000, 1400, 100)))
async def test_both_answer_the_same_for_long(apache_kafka: RunningKafka, first: int) -> None:
    for seed in range(first, first + 100):
        await _compare(apache_kafka, seed)


async def _compare(apache_kafka: RunningKafka, seed: int) -> None:
    """Compare the responses to the program of a seed; a program that finds differences is run a second time.

    A real broker's coordinator may learn of the group's settings (`Scene.consumer_group`) after the first heartbeats.
    """
    found = await _differences(apache_kafka, seed) and await _differences(apache_kafka, seed)
    assert not found, "\n".join(found[:20])


async def _differences(apache_kafka: RunningKafka, seed: int) -> list[str]:
    """Run the program of a seed on both brokers and return the differences."""
    async with on_both_brokers(apache_kafka, Scene) as (ours, theirs):
        programs = [ConsumerGroupProgram(scene, seed) for scene in (ours, theirs)]
        results = await asyncio.gather(*(program.run(STEPS) for program in programs), return_exceptions=True)
        found = [str(difference) for difference in differences(f"seed {seed}", ours, theirs)]
    for result in results:
        if isinstance(result, BaseException) and not found:
            raise result
    assert found or len(theirs.answers) > STEPS / 2
    return found
