"""Pauses before a reconnect are short compared to the session timeout, for any configuration.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario.support import SessionEndHook, WorkHandler, member, running
from tests.stories.virtual import HOST, VirtualEnvironment

SLOW = {"retry_backoff": 4.0, "retry_backoff_max": 60.0}


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("away", [4.0, 6.0, 8.0])
async def test_backoff_does_not_cost_the_membership(away: float, nodes: int) -> None:
    """The coordinator refuses connections for less than a session: the heartbeat is sent soon after it is back."""
    async with VirtualEnvironment.made(nodes=nodes) as env:
        handler, ends = WorkHandler(env), SessionEndHook()
        async with member(env, hooks=(ends,), **SLOW) as group, running(group.run("orders", handler)):
            await handler.until("claim 3@0")
            await asyncio.sleep(env.heartbeat_interval + 0.1)
            node = env.cluster.nodes[env.cluster.coordinator("g")]
            env.network.refuse(HOST, node.port)
            env.network.cut(HOST, node.port)
            await asyncio.sleep(away)
            env.network.heal()
            beats = len(env.cluster.history.of("Heartbeat"))
            await asyncio.sleep(1.3)
            assert len(env.cluster.history.of("Heartbeat")) > beats
            await asyncio.sleep(2 * env.session_timeout)
            assert ends.names == []
            assert env.cluster.group("g").generation == 1
