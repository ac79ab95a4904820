"""Reset policies, exhausted retries and offset requests of a session, as seen by a group's handlers.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from asyncgroup import Claim, Session
from asyncgroup.errors import BrokerError, ErrorCode, OffsetOutOfRangeError, RetriesExhausted
from asyncgroup.model import wall_clock
from asyncgroup.producer import Producer
from tests.scenario.offsets.test_start_offsets import commit
from tests.scenario.support import WorkHandler, member, running
from tests.stories.virtual import VirtualEnvironment

DAY_MS = 86_400_000


@pytest.mark.parametrize(("policy", "first"), [(timedelta(hours=1), 2), (timedelta(days=3), 0)])
async def test_nothing_committed_by_duration(env: VirtualEnvironment, policy: timedelta, first: int):
    """KIP-1106: start at the first record that is not older, or at the end of a partition without records."""
    now = wall_clock()
    async with Producer(env.bootstrap_servers) as producer:
        for age in (2 * DAY_MS, DAY_MS, 1000, 500):
            await producer.send("orders", b"x", partition=0, timestamp=now - age)
    handler = WorkHandler(env)
    async with member(env, auto_offset_reset=policy) as group, running(group.run("orders", handler)):
        await handler.until(f"claim 0@{first}")
        await handler.until("claim 3@0")
        await handler.until("done 0@3")
        assert f"record 0@{first - 1}" not in handler.calls


async def test_a_session_sends_one_list_offsets_per_leader(handler: WorkHandler, env: VirtualEnvironment):
    """sarama sends two requests per partition, one after another (H6)."""
    env.cluster.create_topic("wide", 200)
    async with member(env) as group, running(group.run("wide", handler)):
        await handler.until("claim 199@0")
        asked = env.cluster.history.of("ListOffsets", client_id="ann")
        assert sorted(exchange.node_id for exchange in asked) == [1, 2, 3]
        assert len(env.cluster.history.of("OffsetFetch", client_id="ann")) == 1


async def test_a_session_sends_no_list_offsets_if_all_is_committed(env: VirtualEnvironment):
    await env.produce(1, range(4))
    handler = WorkHandler(env)
    async with member(env) as group, running(group.run("orders", handler)):
        for partition in range(4):
            await handler.until(f"done {partition}@0")
        await group.aclose()
    asked = len(env.cluster.history.of("ListOffsets", client_id="ann"))
    assert asked == 3
    again = WorkHandler(env)
    async with member(env) as group, running(group.run("orders", again)):
        await again.until("claim 3@1")
    assert len(env.cluster.history.of("ListOffsets", client_id="ann")) == asked


async def test_out_of_range_has_a_policy_of_its_own(handler: WorkHandler, env: VirtualEnvironment):
    await env.produce(5, [0])
    await commit(env, 1000)
    policies = {"auto_offset_reset": "latest", "out_of_range_reset": "earliest"}
    async with member(env, **policies) as group, running(group.run("orders", handler)):
        errors = group.errors()
        await handler.until("done 0@4")
        assert handler.calls.count("record 0@0") == 1
        error = await anext(errors)
        assert isinstance(error, OffsetOutOfRangeError)
        assert str(error) == "orders-0: offset 1000 is not in the log, which holds 0..5; continuing at 0"


async def test_exhausted_retries_are_raised_to_the_handler(env: VirtualEnvironment):
    """It may catch the error and continue to read; otherwise the error ends the session like any exception."""
    await env.produce(3, [0])
    caught: list[RetriesExhausted] = []

    class Catches(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            while not claim.ended:
                try:
                    await super().consume_claim(session, claim)
                except RetriesExhausted as error:
                    caught.append(error)
                    if self.calls.count("done 0@2"):
                        raise

    faults = env.cluster.faults
    for node in (1, 2, 3):
        faults.on("Fetch", client_id="ann", node=node, times=3).error(ErrorCode.KAFKA_STORAGE_ERROR)
    handler = Catches(env)
    async with member(env, fetch_retry_max=2) as group:
        async with running(group.run("orders", handler)) as call:
            await handler.until("done 0@2")
            assert {error.tries for error in caught} == {3}
            faults.on("Fetch", client_id="ann", times=None).error(ErrorCode.KAFKA_STORAGE_ERROR)
            await asyncio.wait([call])
        with pytest.raises(RetriesExhausted, match=r"orders-\d: 3 fetch attempts") as raised:
            await call
        assert isinstance(raised.value.__cause__, BrokerError)
