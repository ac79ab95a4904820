"""Stories in virtual time by each group protocol: what the members are configured with, and the environment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from tests.stories.environment import CONSUMER
from tests.stories.virtual import VirtualEnvironment

__all__ = ["PROTOCOLS", "in_each_protocol", "made_for"]

PROTOCOLS: Final[Mapping[str, Mapping[str, Any]]] = {
    "eager": {"assignors": ("range",)},
    "cooperative": {"assignors": ("cooperative-sticky",)},
    "consumer": CONSUMER,
}
"""The configuration of a member, by the name of the protocol."""

in_each_protocol: Final = pytest.mark.parametrize(
    "env",
    [
        "eager",
        pytest.param("cooperative", marks=pytest.mark.full),
        pytest.param("consumer", marks=pytest.mark.full),
    ],
    indirect=True,
)
"""Run a test of `tests/scenario` with members of each protocol; the quick profile runs it with eager ones only."""


@asynccontextmanager
async def made_for(protocol: str, nodes: int = 1) -> AsyncIterator[VirtualEnvironment]:
    """Run an environment whose members use this protocol, with the same timeouts in each."""
    made = VirtualEnvironment.made(
        nodes=nodes,
        group_consumer_session_timeout=VirtualEnvironment.session_timeout,
        group_consumer_heartbeat_interval=VirtualEnvironment.heartbeat_interval,
        group_consumer_assignment_interval=0.1,
    )
    async with made as environment:
        environment.protocol = PROTOCOLS[protocol]
        yield environment
