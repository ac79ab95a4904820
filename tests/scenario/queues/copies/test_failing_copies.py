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


@pytest.mark.parametrize("options", [DIRECT, pytest.param(TRANSACTIONAL, marks=pytest.mark.full)])
async def test_a_copy_that_the_broker_refuses_each_time_hides_behind_no_other(
    env: VirtualEnvironment, options: dict[str, Any]
):
    """Copies sent after it are refused with it (KIP-98), and written by the next try of the producer."""
    env.cluster.create_topic("orders-g-DLQ", 1, configs={"cleanup.policy": "compact"})
    await send(env, (b"a", b"0"), (b"b", b"1"), (None, b"2"), (b"d", b"3"))
    async with opened(env, **options) as queue:
        deliveries = [await queue.receive() for _ in range(4)]
        rejecting = [asyncio.create_task(each.reject("bad")) for each in deliveries]
        others = [rejecting[number] for number in (0, 1, 3)]
        done, _ = await asyncio.wait(others, timeout=60.0)
        assert done == set(others)
        await asyncio.sleep(1.0)
        (problem,) = queue.health().problems
        assert problem.startswith("copies to topic 'orders-g-DLQ' fail: ")
        assert ErrorCode.INVALID_RECORD.name in problem
        assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER.name not in problem
        assert not rejecting[2].done()
    assert {record.key for record in env.cluster.records("orders-g-DLQ")} == {b"a", b"b", b"d"}
    assert await acked(env) == [0, 1, 3]
    assert await rejecting[2] is AckOutcome.LOST
