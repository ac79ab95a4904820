"""The calls of a handler are paired, wherever the session fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup.errors import BrokerError, ErrorCode
from tests.scenario.support import WorkHandler, member
from tests.stories.virtual import VirtualEnvironment


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(nodes=1) as environment:
        yield environment


class Fails(WorkHandler):
    """Raises in one of its methods."""

    def __init__(self, env: VirtualEnvironment, method: str) -> None:
        super().__init__(env)
        self.method = method

    async def setup(self, session: Any) -> None:
        await super().setup(session)
        if self.method == "setup":
            raise ValueError("no setup")

    async def on_assigned(self, session: Any, partitions: Any) -> None:
        await super().on_assigned(session, partitions)
        if self.method == "on_assigned":
            raise ValueError("no assignment")


async def test_a_session_without_start_offsets_calls_nothing(env: VirtualEnvironment) -> None:
    """Found by review: `cleanup` was called without `setup`, and its exception hid the failure of the session."""
    env.cluster.faults.on("OffsetFetch", times=None).error(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    handler = WorkHandler(env)
    async with member(env) as group:
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            await group.consume("orders", handler)
    assert handler.calls == []


async def test_a_session_that_ends_during_the_offset_fetch_calls_nothing(env: VirtualEnvironment) -> None:
    held = env.cluster.faults.on("OffsetFetch").hold()
    handler = WorkHandler(env)
    async with member(env) as group:
        task = asyncio.ensure_future(group.consume("orders", handler))
        await held.wait_hit()
        closing = asyncio.ensure_future(group.aclose())
        await asyncio.sleep(1)
        held.release()
        await asyncio.gather(task, closing)
    assert handler.calls == []


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        ("setup", ["setup", "cleanup"]),
        (
            "on_assigned",
            ["setup", "assigned [0, 1, 2, 3]", "revoked [0, 1, 2, 3]", "cleanup"],
        ),
    ],
)
async def test_a_failed_hook_is_paired_too(env: VirtualEnvironment, method: str, calls: list[str]) -> None:
    """Found by review: `on_revoked` was called for partitions that `on_assigned` was not."""
    handler = Fails(env, method)
    async with member(env) as group:
        with pytest.raises(ValueError, match="no "):
            await group.consume("orders", handler)
    assert handler.calls == calls
