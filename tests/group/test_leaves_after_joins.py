"""A member that leaves while its join is in flight: a join that the coordinator processes later adds no member.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.scenario.support import WorkHandler, member, running, stop
from tests.scenario.three_protocols import made_for
from tests.stories.virtual import VirtualEnvironment

LATE = 0.5
"""Seconds by which the coordinator gets a join later than it was sent."""


async def _cancel_join(env: VirtualEnvironment, api: str, instance_id: str | None) -> None:
    """Start a member whose join, the newest request of this API, is late, and cancel it while that is in flight."""
    env.cluster.faults.on(api).delay(LATE)
    async with (
        member(env, group_instance_id=instance_id) as group,
        running(group.run("orders", WorkHandler(env))) as consuming,
    ):
        await asyncio.sleep(LATE / 2)
        await stop(group, consuming, by_cancellation=True)
        await asyncio.sleep(2 * LATE)  # the join arrives, while the connection is open


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_member_of_a_consumer_group(caplog: pytest.LogCaptureFixture) -> None:
    """The leave goes out after the join on its connection; on another one it was answered with UNKNOWN_MEMBER_ID before it."""
    async with made_for("consumer") as env:
        await _cancel_join(env, "ConsumerGroupHeartbeat", None)
        assert [beat.request.member_epoch for beat in env.cluster.history.of("ConsumerGroupHeartbeat")] == [
            0,
            -1,
        ]
        assert not env.cluster.group("g").members
    assert not _warnings(caplog)


async def test_a_static_member_of_a_consumer_group(caplog: pytest.LogCaptureFixture) -> None:
    """Found by the simulation: the instance id still belonged to the former process, so the leave was refused and not repeated."""
    async with made_for("consumer") as env:
        async with (
            member(env, group_instance_id="desk") as group,
            running(group.run("orders", handler := WorkHandler(env))) as consuming,
        ):
            await handler.until("claim 3@0")
            await stop(group, consuming, by_cancellation=True)
        env.cluster.history.clear()
        await _cancel_join(env, "ConsumerGroupHeartbeat", "desk")
        beats = env.cluster.history.of("ConsumerGroupHeartbeat")
        assert [(beat.request.member_epoch, beat.response.error_code) for beat in beats] == [(0, 0), (-2, 0)]
        again = WorkHandler(env)
        async with member(env, group_instance_id="desk") as group, running(group.run("orders", again)):
            await again.until("claim 3@0")
    assert not _warnings(caplog)


@pytest.mark.parametrize("protocol", ["eager", "cooperative"])
async def test_a_member_of_a_classic_group(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """JoinGroup may wait for the whole group, so LeaveGroup goes out on another connection, and may be processed first.

    The connection of JoinGroup is closed. A coordinator that has received it refuses it, as it no longer knows the member id.
    """
    async with made_for(protocol) as env:
        handler = WorkHandler(env)
        async with member(env) as group, running(group.run("orders", handler)) as consuming:
            await handler.until("claim 3@0")
            env.cluster.faults.on("JoinGroup").delay(LATE)
            joins = len(env.cluster.history.of("JoinGroup"))
            group.set_topics(["orders", "other"])
            await env.create_topic("other", 1)
            await asyncio.sleep(LATE / 2)
            await stop(group, consuming, by_cancellation=True)
            await asyncio.sleep(2 * LATE)
        (late,) = env.cluster.history.of("JoinGroup")[joins:]
        assert late.response is None, "the connection is closed"
        assert not env.cluster.group("g").members
    assert not _warnings(caplog)
