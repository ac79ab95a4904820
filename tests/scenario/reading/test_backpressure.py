"""Slow claims: they stall, keep their buffer, resume at half of their share, and don't slow down other claims.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from asyncgroup import Claim, Record, Session
from asyncgroup.consumer.partition import TopicPartitionState
from tests.group.parts import consumer_of
from tests.scenario.support import WorkHandler, committed, member, now, orders, running
from tests.stories.virtual import VirtualEnvironment

RECORD = 1000
"""Bytes of a record's value; each record is a batch, which is slightly larger."""

BUDGET = {"buffer_bytes": 80_000, "max_partition_fetch_bytes": 10_000}
"""Two claims: a share of 40,000 bytes each, fetched in portions of 10,000."""

SHARE = 40_000


class Stalls:
    """A hook that records when partitions stall and resume, and how many bytes they buffer then."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, float, int]] = []
        self.claims: dict[int, Claim] = {}

    def on_session_start(self, session: Session) -> None:
        self.claims = {claim.partition: claim for claim in session.claims}

    def on_stalled(self, _topic: str, partition: int) -> None:
        self._note("stalled", partition)

    def on_resumed(self, _topic: str, partition: int) -> None:
        self._note("resumed", partition)

    def _note(self, word: str, partition: int) -> None:
        self.events.append((word, partition, now(), consumer_of(self.claims[partition]).buffered_bytes))


def pair() -> Any:
    """One node and two partitions, so that fetches of one could delay the other."""
    return VirtualEnvironment.made(nodes=1, partitions=2)


async def fill(env: VirtualEnvironment, count: int, partition: int, *, batch: int = 1) -> None:
    values = [b"%06d" % number + b"x" * (RECORD - 6) for number in range(count)]
    await env.admin.produce(orders(partition), values, batch=batch)


def asked_for(env: VirtualEnvironment, partition: int, since: float, until: float) -> int:
    """Return how often ann's fetches contained a partition, between two times."""
    return sum(
        any(part.partition == partition for topic in exchange.request.topics for part in topic.partitions)
        for exchange in env.cluster.history.of("Fetch", client_id="ann")
        if since < exchange.time < until
    )


async def test_a_slow_claim_stalls_and_resumes_at_half_its_share(network):
    """4 s per record: no progress for one to two periods stalls the claim; no record is repeated or missed."""
    stalls = Stalls()

    async def work(_session: Session, claim: Claim, record: Record) -> None:
        if claim.partition == 0:
            await asyncio.sleep(4.0)

    async with pair() as env:
        handler = WorkHandler(env, work)
        await fill(env, 100, 0)
        async with member(env, hooks=(stalls,), **BUDGET) as group, running(group.run("orders", handler)):
            await handler.until("record 0@0")
            began = now()
            await handler.until("done 0@99")
            assert [call for call in handler.calls if call.startswith("record 0")] == [
                f"record 0@{offset}" for offset in range(100)
            ]
            (word, partition, stalled_at, held), (word2, _, resumed_at, held2), *_ = stalls.events
            assert (word, partition, word2) == ("stalled", 0, "resumed")
            assert 0.1 <= stalled_at - began <= 0.2
            assert held <= SHARE
            # when half of the share is free, long before the buffer is empty
            assert SHARE // 4 < held2 <= SHARE // 2
            assert asked_for(env, 0, stalled_at, resumed_at) == 0
            words = [word for word, *_ in stalls.events]
            assert all(one != other for one, other in pairwise(words))
            await group.aclose()
        assert committed(env) == {0: 100}


async def test_an_idle_claim_is_not_checked_for_stalls(network, monkeypatch: pytest.MonkeyPatch):
    """An idle client does not wake up ten times a second; the next record that waits stalls its claim as before."""
    checks: list[float] = []
    check = TopicPartitionState.check_progress

    def counted(partition: TopicPartitionState) -> bool:
        checks.append(now())
        return check(partition)

    monkeypatch.setattr(TopicPartitionState, "check_progress", counted)
    stalls = Stalls()

    async def work(_session: Session, _claim: Claim, _record: Record) -> None:
        await asyncio.sleep(4.0)

    async with pair() as env:
        handler = WorkHandler(env, work)
        async with member(env, hooks=(stalls,), **BUDGET) as group, running(group.run("orders", handler)):
            await asyncio.sleep(60.0)
            assert len(checks) <= 4, "one for each claim, when it was added"
            for _ in range(2):
                stalls.events.clear()
                checks.clear()
                await fill(env, 2, 0)
                began = now()
                await asyncio.sleep(60.0)
                assert [word for word, *_ in stalls.events] == ["stalled", "resumed"]
                assert 0.1 <= stalls.events[0][2] - began <= 0.3
                assert max(checks) - began <= 5.0


async def test_the_buffer_of_a_slow_claim_never_runs_empty(network):
    """The buffer of a slow claim is refilled before the handler has emptied it: the handler never waits for a fetch."""
    waits: list[float] = []

    class Measures(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            asked_at = now()
            async for record in claim:
                waits.append(now() - asked_at)
                await asyncio.sleep(1.0)
                self.note(f"done {record.partition}@{record.offset}")
                asked_at = now()

    async with pair() as env:
        env.network.latency = 0.05
        handler = Measures(env)
        await fill(env, 120, 0)
        async with member(env, **BUDGET) as group, running(group.run("orders", handler)):
            await handler.until("done 0@119")
    assert max(waits[1:]) < 0.05


@pytest.mark.parametrize("seconds", [0.02, 0.15, 10.0, 1e6], ids=lambda seconds: f"{seconds:g} s a record")
async def test_a_neighbour_is_not_slowed_down(network, seconds: float):
    """A slow claim does not delay the records of the other claim (sarama's H1)."""

    async def work(_session: Session, claim: Claim, _record: Record) -> None:
        if claim.partition == 0:
            await asyncio.sleep(seconds)

    async with pair() as env:
        handler, stalls = WorkHandler(env, work), Stalls()
        await fill(env, 200, 0)
        async with (
            member(env, hooks=(stalls,), close_timeout=1.0, **BUDGET) as group,
            running(group.run("orders", handler)),
        ):
            await handler.until("record 0@0")
            await asyncio.sleep(3.0)
            began = now()
            await fill(env, 500, 1, batch=5)
            await handler.until("done 1@499")
            assert now() - began <= 0.5
            busy = len([call for call in handler.calls if call.startswith("done 0")])
            assert busy == pytest.approx((now() - began + 3.0) // seconds, abs=2)
            if seconds < 0.1:
                assert stalls.events == [], "20 ms per record is progress"


async def test_a_claim_that_is_never_read(ends, network):
    """A claim whose handler does not iterate buffers at most its share; heartbeats and the other claim continue."""

    class Idle(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            if claim.partition == 1:
                await super().consume_claim(session, claim)
            else:
                await claim.wait_ended()

    async with pair() as env:
        handler = Idle(env)
        await fill(env, 300, 0)
        await fill(env, 300, 1)
        async with member(env, hooks=(ends,), **BUDGET) as group, running(group.run("orders", handler)):
            await handler.until("done 1@299")
            await asyncio.sleep(60.0)
            assert ends.names == []
            (claim, _) = group.session.claims
            assert claim.stalled
            assert not claim.paused
            assert 0 < consumer_of(claim).buffered_bytes <= SHARE


async def test_a_batch_larger_than_the_share_is_delivered(network):
    """Each claim is guaranteed one batch of any size."""
    async with pair() as env:
        handler = WorkHandler(env)
        await fill(env, 200, 0, batch=100)  # 100,000 bytes in one batch
        async with member(env, **BUDGET) as group, running(group.run("orders", handler)):
            await handler.until("done 0@199")


async def test_a_paused_claim_does_not_stall(network):
    """`paused` is the user's pause, `stalled` a slow handler: one cause never sets both."""
    stalls = Stalls()
    async with pair() as env:
        handler = WorkHandler(env)
        await fill(env, 50, 0)
        async with member(env, hooks=(stalls,), **BUDGET) as group:
            group.pause([orders(0)])
            async with running(group.run("orders", handler)):
                await handler.until("claim 1@0")
                await asyncio.sleep(10.0)
                (claim, _) = group.session.claims
                assert (claim.paused, claim.stalled) == (True, False)
                group.resume([orders(0)])
                await handler.until("done 0@49")
                assert stalls.events == []


async def test_a_longer_max_processing_time(network):
    """The same handler does not stall with a longer `max_processing_time`."""
    stalls = Stalls()

    async def work(_session: Session, _claim: Claim, _record: Record) -> None:
        await asyncio.sleep(1.0)

    async with pair() as env:
        handler = WorkHandler(env, work)
        await fill(env, 30, 0)
        async with (
            member(env, hooks=(stalls,), max_processing_time=1.5, **BUDGET) as group,
            running(group.run("orders", handler)),
        ):
            await handler.until("done 0@29")
    assert stalls.events == []


async def test_seek_frees_a_stalled_claim(network):
    stalls = Stalls()

    async def work(_session: Session, claim: Claim, record: Record) -> None:
        if record.offset == 0:
            await asyncio.sleep(5.0)
            assert claim.stalled
            claim.seek(60)
            assert not claim.stalled

    async with pair() as env:
        handler = WorkHandler(env, work)
        await fill(env, 100, 0)
        async with member(env, hooks=(stalls,), **BUDGET) as group, running(group.run("orders", handler)):
            await handler.until("done 0@99")
            assert "record 0@1" not in handler.calls
            assert handler.calls.count("record 0@60") == 1
    assert [word for word, *_ in stalls.events] == ["stalled", "resumed"]
