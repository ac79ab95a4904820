"""Batches of a claim: their limits in records, bytes and time, and the claim's end."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import Claim, ConfigError, Session
from tests.scenario.support import WorkHandler, committed, member, now, orders, read_with, running
from tests.stories.virtual import VirtualEnvironment


async def test_batches_by_records(env: VirtualEnvironment):
    await env.admin.produce(orders(0), [b"v"] * 10, batch=4)

    async def read(claim: Claim) -> None:
        sizes = []
        async for batch in claim.batches(max_records=3, max_wait=5.0):
            assert (batch.topic, batch.partition) == ("orders", 0)
            sizes.append([record.offset for record in batch])
            if batch.last_offset == 9:
                break
        assert sizes == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]

    await read_with(env, read)


async def test_batches_by_bytes(env: VirtualEnvironment):
    """A batch contains whole record batches up to the limit, at least one."""
    await env.admin.produce(orders(0), [b"x" * 1000] * 10, batch=1)

    async def read(claim: Claim) -> None:
        sizes = []
        async for batch in claim.batches(max_bytes=3500, max_wait=5.0):
            sizes.append(len(batch))
            if batch.last_offset == 9:
                break
        assert sizes == [3, 3, 3, 1]
        claim.seek(0)
        async for batch in claim.batches(max_bytes=1):
            assert len(batch) == 1
            break

    await read_with(env, read)


async def test_batches_without_waiting(env: VirtualEnvironment):
    """With max_wait=0 a batch contains the available records."""

    async def read(claim: Claim) -> None:
        await env.admin.produce(orders(0), [b"v"] * 3)
        async for batch in claim.batches(max_records=100):
            assert len(batch) == 3
            break

    await read_with(env, read)


async def test_batches_wait_from_the_first_record_on(env: VirtualEnvironment):
    """A batch that is not full is delivered max_wait after its first record arrived."""

    async def read(claim: Claim) -> None:
        await asyncio.sleep(20.0)
        waiting = asyncio.create_task(anext(claim.batches(max_records=100, max_wait=3.0)))
        await asyncio.sleep(20.0)
        assert not waiting.done(), "max_wait starts with the first record"
        first_at = now()
        for _ in range(5):
            await env.admin.produce(orders(0), [b"v"])
            await asyncio.sleep(1.0)
        batch = await waiting
        assert now() - first_at == pytest.approx(5.0)
        assert 3 <= len(batch) <= 4
        began = now()
        await env.admin.produce(orders(0), [b"v"])
        rest = await anext(claim.batches(max_records=2, max_wait=3.0))
        assert now() - began < 0.1, "full before max_wait"
        assert rest.first_offset == batch.last_offset + 1

    await read_with(env, read)


async def test_batches_end_with_the_claim(env: VirtualEnvironment):
    """An incomplete batch is dropped at the claim's end; the next owner of the partition gets its records."""
    seen: list[int] = []

    class Gathers(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            seen.extend([len(batch) async for batch in claim.batches(max_records=100, max_wait=1000.0)])
            self.note(f"end {claim.partition}")

    handler = Gathers(env)
    await env.produce(5, [0])
    async with member(env) as group, running(group.run("orders", handler)) as consuming:
        await asyncio.sleep(5.0)
        await group.aclose()
        await consuming
    assert handler.calls.count("end 0") == 1
    assert seen == []
    assert committed(env) == {}


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"max_records": 0}, "max_records=0"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"max_wait": -1.0}, "max_wait"),
    ],
)
async def test_invalid_limits(env: VirtualEnvironment, limits, named: str):
    async def read(claim: Claim) -> None:
        claim.batches(**limits)

    with pytest.raises(ConfigError, match=named):
        await read_with(env, read)


async def test_marking_a_batch(env: VirtualEnvironment):
    await env.produce(7, [0])

    async def read(claim: Claim) -> None:
        claim.mark(await anext(claim.batches(max_records=4)))

    await read_with(env, read)
    assert committed(env) == {0: 4}
