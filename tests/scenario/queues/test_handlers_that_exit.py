"""A handler of a work queue that ends the program: nothing is acknowledged. The loop is the test's own."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.testing import VirtualTimeLoop
from asyncgroup.workqueue import Delivery
from tests.stories.queue_members import opened, send
from tests.stories.virtual import VirtualEnvironment


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_handler_that_ends_the_program(kind: type[BaseException]):
    seen: list[VirtualEnvironment] = []
    handled: list[int] = []

    async def work(delivery: Delivery) -> None:
        handled.append(delivery.record.offset)
        raise kind(3)

    async def program() -> None:
        async with VirtualEnvironment.made() as env:
            seen.append(env)
            await send(env, b"0")
            async with opened(env) as queue:
                await queue.run(work)

    with pytest.raises(kind), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(program())
    (env,) = seen
    assert handled == [0]
    assert {tp: commit.offset for tp, commit in env.cluster.group("g").offsets.items() if commit.offset} == {}
