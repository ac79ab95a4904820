"""The stories of `tests/stories/transactions.py` on the embedded cluster; `tests/real` runs them on Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from tests.broker.client import connect
from tests.stories.transactions import STORIES, TransactionRequests


@pytest.mark.parametrize(("story", "expected"), STORIES, ids=[story.__name__ for story, _ in STORIES])
async def test_story(story: Callable[[TransactionRequests], Awaitable[list[Any]]], expected: list[Any]):
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        requests = TransactionRequests(client)
        await requests.prepare()
        assert await story(requests) == expected
