"""A source topic of a work queue that is deleted, or not created yet, stops none of the others."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.workqueue import Delivery
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.queue_members import acked, send, working
from tests.stories.virtual import VirtualEnvironment


class Seen(list[str]):
    """Work that notes topic and value of each delivery."""

    async def __call__(self, delivery: Delivery) -> None:
        self.append(f"{delivery.record.topic} {(delivery.value or b'').decode()}")


@in_each_protocol
async def test_a_source_topic_is_deleted_for_a_minute(env: VirtualEnvironment):
    """The others are delivered, health names it, and it is read from its start when it is back."""
    for topic in ("a", "b"):
        env.cluster.create_topic(topic, 1)
        await send(env, b"0", topic=topic)
    seen = Seen()
    config = {"metadata_refresh_interval": 600.0}
    async with working(env, "ann", seen, topics=["a", "b"], config=config) as ann:
        await ann.until_count("end", 2)
        env.cluster.delete_topic("a")
        await asyncio.sleep(60.0)
        await send(env, b"1", topic="b")
        await ann.until_count("end", 3)
        (problem,) = ann.queue.health().problems
        assert problem.startswith("topic 'a' does not exist, missing for 5")
        env.cluster.create_topic("a", 1)
        await send(env, b"1", topic="a")
        await ann.until_count("end", 4)
        await send(env, b"2", topic="b")
        await ann.until_count("end", 5)
        assert sorted(seen) == ["a 0", "a 1", "b 0", "b 1", "b 2"]
        assert ann.queue.health().is_healthy
    assert await acked(env, topic="a") == [0]
    assert await acked(env, topic="b") == [0, 1, 2]


@pytest.mark.full
@in_each_protocol
async def test_a_source_topic_that_never_existed_is_waited_for(env: VirtualEnvironment):
    """With missing_topics="wait"; all of its records are delivered once it exists."""
    env.cluster.create_topic("b", 1)
    await send(env, b"0", topic="b")
    seen = Seen()
    config = {"missing_topics": "wait", "metadata_refresh_interval": 600.0}
    async with working(env, "ann", seen, topics=["a", "b"], config=config) as ann:
        await ann.until_count("end", 1)
        await asyncio.sleep(60.0)
        (problem,) = ann.queue.health().problems
        assert problem.startswith("topic 'a' does not exist, missing for ")
        env.cluster.create_topic("a", 1)
        await send(env, b"0", topic="a")
        await ann.until_count("end", 2)
        assert sorted(seen) == ["a 0", "b 0"]
        assert ann.queue.health().is_healthy
    assert (await acked(env, topic="a"), await acked(env, topic="b")) == ([0], [0])
