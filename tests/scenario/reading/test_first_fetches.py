"""A session's first fetches are not delayed by pending fetches of the previous session."""

from __future__ import annotations

import asyncio
import re

from tests.scenario.support import WorkHandler, member, running
from tests.stories.virtual import VirtualEnvironment

LONG = 20.0
"""fetch_max_wait in seconds, long enough to show in the measured times."""


class Timed(WorkHandler):
    """Records the time at which each session was set up."""

    def __init__(self, env: VirtualEnvironment) -> None:
        super().__init__(env)
        self.began: list[float] = []

    async def setup(self, session) -> None:
        self.began.append(asyncio.get_running_loop().time())
        await super().setup(session)


async def test_a_pending_fetch_of_the_previous_session_delays_nothing(env: VirtualEnvironment) -> None:
    """A broker handles the requests of a connection in order, and a fetch of the previous session is still pending.

    Without a new connection each rebalance of an idle topic would take up to `fetch_max_wait` longer.
    """
    ann, ben = Timed(env), Timed(env)
    config = {"fetch_max_wait": LONG, "auto_offset_reset": "earliest"}
    async with member(env, **config) as first, running(first.run("orders", ann)):
        await ann.until("setup")
        await asyncio.sleep(5.0)
        async with member(env, "ben", **config) as second, running(second.run("orders", ben)):
            await ann.until("setup", 2)
            await asyncio.sleep(1.0)
            fetches = [
                exchange.time
                for exchange in env.cluster.history.of("Fetch", client_id="ann")
                if exchange.time >= ann.began[1]
            ]
            assert fetches, "delayed by the fetch of the previous session"
            assert min(fetches) - ann.began[1] < 0.1
            await env.produce(1, range(4))
            await asyncio.sleep(0.1)
            done = [call for call in ann.calls + ben.calls if call.startswith("done")]
            assert sorted(done) == [f"done {partition}@0" for partition in range(4)]


async def test_the_old_connection_closes_after_its_response(env: VirtualEnvironment) -> None:
    ann = Timed(env)
    async with member(env, fetch_max_wait=LONG) as group, running(group.run("orders", ann)):
        await ann.until("setup")
        await asyncio.sleep(1.0)
        before = len(env.network.connections())
        group.set_topics(re.compile("orders"))
        await ann.until("setup", 2)
        await asyncio.sleep(1.0)
        during = len(env.network.connections())
        await asyncio.sleep(LONG)
        assert len(env.network.connections()) == before < during
