"""A response to ConsumerGroupHeartbeat with a value that no coordinator sends: the member goes on, or joins again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from uuid import UUID

import pytest
import pytest_asyncio

from asyncgroup.wire import messages as m
from tests.profiles import thinned
from tests.scenario.rebalances.test_subscription_patterns import CONSUMER
from tests.scenario.support import WorkHandler, member, running
from tests.stories.virtual import VirtualEnvironment

Response = m.ConsumerGroupHeartbeatResponse
Change = Callable[[Response, UUID], None]
"""Changes a response, given the id of the topic that the group consumes."""

LOWEST, HIGHEST = -(2**31), 2**31 - 1


def values(**fields: Any) -> Change:
    def change(response: Response, _topic_id: UUID) -> None:
        for name, value in fields.items():
            setattr(response, name, value)

    return change


def extra(*numbers: int, of: UUID | None = None) -> Change:
    """Assign all partitions, and some more of the same topic or another one."""

    def change(response: Response, topic_id: UUID) -> None:
        topics = {topic_id: [0, 1, 2, 3]}
        topics.setdefault(of or topic_id, []).extend(numbers)
        response.assignment = Response.Assignment(
            [Response.TopicPartitions(*each) for each in topics.items()]
        )

    return change


CHANGES: Final[dict[str, Change]] = {
    **{f"interval {ms}": values(heartbeat_interval_ms=ms) for ms in (LOWEST, -1, 0, 1, HIGHEST)},
    **{f"epoch {epoch}": values(member_epoch=epoch) for epoch in (-1, LOWEST, -2, 0, 1, HIGHEST)},
    **{f"partition {number}": extra(number) for number in (LOWEST, -1, 0, 99, HIGHEST)},
    "unknown topic": extra(0, 1, of=UUID(int=7)),
    "no topic": extra(0, 1, of=m.NO_UUID),
    "no assignment": values(assignment=None),
    "another member": values(member_id="someone"),
    "no member": values(member_id=None),
    "throttle time": values(throttle_time_ms=LOWEST),
}

CASES: Final = thinned(itertools.product(CHANGES, [1, 8]), every=5)
"""The change, and which response it is: the first, or one after the member has joined."""


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(nodes=1) as environment:
        environment.protocol = CONSUMER
        yield environment


@pytest.mark.parametrize(("name", "nth"), CASES)
async def test_the_member_recovers_from_a_wrong_response(
    handler: WorkHandler, env: VirtualEnvironment, name: str, nth: int
) -> None:
    def change(response: Response) -> Response:
        CHANGES[name](response, group.cluster._inner.view.topics[env.topic].topic_id)
        return response

    fault = env.cluster.faults.on("ConsumerGroupHeartbeat", nth=nth).mutate(change)
    async with member(env) as group, running(group.run(env.topic, handler)):
        await env.bell.until(lambda: fault.hits == 1, "the wrong response", env.limit)
        for _ in range(2):
            await asyncio.sleep(10)
            await env.produce(1, range(4))
            await env.all_committed()
        assert len(handler.sessions) <= 2
        assert {claim.tp.partition for claim in group.health().claims} == set(range(4))
        assert len(env.cluster.group(env.group_id).members) == 1
