"""The ends of sessions and groups on a real Kafka: each line of the design's table, and Ctrl-C.

In each case every task ends (`tests/conftest.py` checks it), the member leaves at once unless it is static, offsets of
finished work are committed, and nothing is printed to standard error.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Record, Session
from tests.real.support import RunningKafka
from tests.scenario.support import Gate, SessionEndHook, Work, WorkHandler, no_work, running
from tests.stories.members import ROOT
from tests.stories.real import RealEnvironment


@pytest_asyncio.fixture
async def env(apache_kafka: RunningKafka, tmp_path: Path) -> AsyncIterator[RealEnvironment]:
    async with RealEnvironment(apache_kafka.bootstrap_servers, tmp_path) as environment:
        await environment.produce(5, range(4))
        yield environment


class OneMember:
    """A member with a recording handler, and what the coordinator knows of it."""

    def __init__(
        self,
        env: RealEnvironment,
        work: Work = no_work,
        handler: type[WorkHandler] = WorkHandler,
        **config: Any,
    ) -> None:
        self.env = env
        self.ends = SessionEndHook()
        self.handler = handler(env, work)
        options = ConsumerConfig(**env.config("ann", **config))
        self.group = ConsumerGroup(env.bootstrap_servers, env.group_id, options, hooks=[self.ends, env.bell])

    async def assert_left(self) -> None:
        """Check that the coordinator has no member, long before a session could have expired."""
        described = await self.env.admin.describe(self.env.group_id)
        assert described is not None
        assert (described.state, described.members) == ("Empty", {})

    async def committed(self) -> dict[int, int]:
        return {tp.partition: offset for tp, offset in (await self.env.committed()).items()}


async def test_revoked(env: RealEnvironment):
    gate = Gate(0, 2)
    one = OneMember(env, gate)
    async with one.group, running(one.group.consume(env.topic, one.handler)) as consuming:
        await gate.reached.wait()
        bob = await env.member("bob")
        await env.bell.until(lambda: one.handler.sessions[0].ended, "the rebalance seen", env.limit)
        gate.open.set()
        await consuming
        assert one.ends.names == ["Rebalanced"]
        assert "record 0@3" not in one.handler.calls
    await env.settled(bob)
    await env.bell.until(lambda: len(bob.log.handled) == 2, "bob does the rest of partition 0", env.limit)
    assert bob.log.handled == [(env.topic, 0, 3), (env.topic, 0, 4)]
    await env.all_committed()


async def test_lost(env: RealEnvironment):
    """Another client removes the member: nothing is committed, `on_lost` is called, and run() joins again."""
    gate = Gate(0, 2)
    one = OneMember(env, gate, auto_commit_interval=3000.0)
    async with one.group, running(one.group.run(env.topic, one.handler)):
        await gate.reached.wait()
        old = one.handler.sessions[0].member_id
        await env.admin.remove_member(env.group_id, old)
        await env.bell.until(lambda: one.handler.sessions[0].is_lost, "the loss seen", env.limit)
        assert await one.committed() == {}
        gate.open.set()
        await one.handler.until("claim 0@0", 2)
        assert one.ends.names == ["MemberLost"]
        assert "lost [0, 1, 2, 3]" in one.handler.calls
        assert one.group.session is not None
        assert one.group.session.member_id != old


async def test_a_claim_returns(env: RealEnvironment):
    class Returns(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            async for record in claim:
                claim.mark(record)
                if (claim.partition, record.offset) == (1, 2):
                    return

    one = OneMember(env, handler=Returns)
    async with one.group:
        await one.group.consume(env.topic, one.handler)
        assert one.ends.names == ["ClaimReturned"]
        assert (await one.committed())[1] == 3
    await one.assert_left()


async def test_a_handler_raises(env: RealEnvironment):
    async def work(_session: Session, _claim: Claim, record: Record) -> None:
        if (record.partition, record.offset) == (2, 3):
            raise ZeroDivisionError

    one = OneMember(env, work)
    with pytest.raises(ZeroDivisionError) as caught:
        async with one.group:
            await one.group.run(env.topic, one.handler)
    note = " ".join(caught.value.__notes__)
    assert f"{env.topic}-2" in note
    assert "offset 3" in note
    assert one.ends.names == ["HandlerFailed"]
    assert (await one.committed())[2] == 3
    await one.assert_left()


async def test_aclose(env: RealEnvironment):
    one = OneMember(env, auto_commit_interval=3000.0)
    async with one.group, running(one.group.run(env.topic, one.handler)) as consuming:
        for partition in range(4):
            await one.handler.until(f"done {partition}@4")
        await one.group.aclose()
        assert await consuming is None
    assert one.ends.names == ["GroupClosed"]
    await env.all_committed()
    await one.assert_left()


async def test_cancelled(env: RealEnvironment):
    gate = Gate(0, 2)
    one = OneMember(env, gate, auto_commit_interval=3000.0)
    async with one.group, running(one.group.run(env.topic, one.handler)) as consuming:
        await gate.reached.wait()
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
        await one.assert_left()
    assert one.ends.names == ["CallerCancelled"]
    assert one.handler.calls.count("cancelled 0") == 1
    assert (await one.committed())[0] == 2


PROGRAM = """
import asyncio, json, sys
from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Session

async def handle(session: Session, claim: Claim) -> None:
    async for record in claim:
        claim.mark(record)
        print(record.partition, record.offset, flush=True)

async def main(servers, group_id, topic, config):
    asyncio.get_running_loop().slow_callback_duration = 60.0  # a busy machine is no error
    async with ConsumerGroup(servers, group_id, ConsumerConfig(**config)) as group:
        await group.run(topic, handle)

try:
    asyncio.run(main(*json.loads(sys.argv[1])), debug=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("instance_id", [None, "ann"])
async def test_ctrl_c(env: RealEnvironment, instance_id: str | None):
    """A small program ends by Ctrl-C: offsets are committed, the member leaves unless static, and stderr is empty."""
    config = {**env.config("ann"), "auto_commit_interval": 3000.0, "group_instance_id": instance_id}
    order = json.dumps([env.bootstrap_servers, env.group_id, env.topic, config])
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, order),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert program.stdout is not None
    try:
        async with asyncio.timeout(env.limit):
            for _ in range(20):
                assert await program.stdout.readline()
            program.send_signal(signal.SIGINT)
            out, err = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert (out.split(), err.decode(), program.returncode) == ([b"interrupted"], "", 0)
    await env.all_committed()
    described = await env.admin.describe(env.group_id)
    assert described is not None
    assert len(described.members) == (0 if instance_id is None else 1)
