"""A heartbeat that a member gave up and that reaches its coordinator after newer ones (the consumer protocol, KIP-848).

Found by `python -m tests.simulate`: the coordinator moves the member to an epoch of which it does not know. Kafka accepts the
previous epoch afterwards, and repeats an assignment, only in answer to a heartbeat with all fields. Without one the member was
fenced, or never learned of partitions that it was given.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.scenario.rebalances.test_consumer_stories import env
from tests.scenario.support import SessionEndHook, WorkHandler, member, running
from tests.stories.virtual import VirtualEnvironment

__all__ = ["env"]


async def test_a_late_heartbeat_costs_neither_the_session_nor_partitions(env: VirtualEnvironment):
    ann, bob, ends = WorkHandler(env), WorkHandler(env), SessionEndHook()
    async with member(env, hooks=(ends,)) as group, running(group.run("orders", ann)):
        await ann.until("assigned [0, 1, 2, 3]")
        async with member(env, "bob") as other, running(other.run("orders", bob)):
            await bob.until("assigned [2, 3]")
            await asyncio.sleep(30.0)
            late: list[Any] = []
            cut = env.cluster.faults.on(
                "ConsumerGroupHeartbeat", client_id="ann", where=lambda request: late.append(request) or True
            )
            await cut.disconnect("before").wait_hit()
            # the next one, on another connection, is answered before it
            await asyncio.sleep(1.0)
        await env.admin.cluster.coordinators.request(env.group_id, late[0])
        await ann.until("assigned [2, 3]")
        await asyncio.sleep(30.0)
        assert ends.causes == []
        assert "lost" not in " ".join(ann.calls)
        described = env.cluster.group(env.group_id)
        assert described.state == "Stable"
        assert [one.assignment for one in described.members.values()] == [{"orders": (0, 1, 2, 3)}]
