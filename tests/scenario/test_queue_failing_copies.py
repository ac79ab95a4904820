"""Copies that wait for a broker are reported at the first failure, while the producer tries again for two minutes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import CopyFailedError, ErrorCode
from asyncgroup.workqueue import AckOutcome, DeadLetter
from tests.scenario.support import now
from tests.stories.queue_members import acked, opened, send
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.asyncio

DIRECT: dict[str, Any] = {"dead_letter": DeadLetter(0, partitions=1)}
TRANSACTIONAL: dict[str, Any] = {
    **DIRECT,
    "transactional_copies": True,
    "config": {"isolation_level": "read_committed"},
}


@pytest.mark.parametrize(
    ("options", "api", "code"),
    [
        (TRANSACTIONAL, "EndTxn", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        pytest.param(TRANSACTIONAL, "EndTxn", ErrorCode.NOT_COORDINATOR, marks=pytest.mark.full),
        pytest.param(
            TRANSACTIONAL, "TxnOffsetCommit", ErrorCode.COORDINATOR_NOT_AVAILABLE, marks=pytest.mark.full
        ),
        pytest.param(TRANSACTIONAL, "Produce", ErrorCode.NOT_ENOUGH_REPLICAS, marks=pytest.mark.full),
        pytest.param(DIRECT, "Produce", ErrorCode.NOT_ENOUGH_REPLICAS, marks=pytest.mark.full),
    ],
)
async def test_a_copy_that_the_broker_refuses_for_a_while(
    env: VirtualEnvironment, options: dict[str, Any], api: str, code: ErrorCode
):
    """The first failure is in `errors()` and in `health()`; it is gone from health when the copy is written."""
    await send(env, b"0")
    async with opened(env, **options) as queue:
        errors = queue.errors()
        fault = env.cluster.faults.on(api, client_id="ann", times=None)
        fault.error(code)
        began = now()
        rejecting = asyncio.create_task((await queue.receive()).reject("bad"))
        error = await anext(errors)
        assert isinstance(error, CopyFailedError)
        assert (error.topic, error.record_topic, error.partition, error.offset) == (
            "orders-g-DLQ",
            "orders",
            0,
            0,
        )
        assert code.name in str(error)
        assert now() - began < 2.0
        (problem,) = queue.health().problems
        assert problem.startswith("copies to topic 'orders-g-DLQ' fail: ")
        assert code.name in problem
        await asyncio.sleep(5.0)
        assert not rejecting.done()
        fault.cancel()
        expected = AckOutcome.COMMITTED if options is TRANSACTIONAL else AckOutcome.ACKED
        assert await rejecting is expected
        assert queue.health().problems == ()
    assert await acked(env) == [0]
