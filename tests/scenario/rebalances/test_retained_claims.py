"""Claims over a rebalance: those that stay keep their fetch session; a part-gathered batch is neither lost nor committed.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from asyncgroup import Claim, Session
from asyncgroup.broker import Exchange
from asyncgroup.consumer.fetch_session import FINAL_EPOCH, INITIAL_EPOCH
from tests.scenario.support import WorkHandler, committed, member, running
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.full


@pytest_asyncio.fixture(params=PROTOCOLS)
async def env(request: pytest.FixtureRequest) -> AsyncIterator[VirtualEnvironment]:
    async with made_for(str(request.param)) as environment:
        yield environment


# -- batches -----------------------------------------------------------------------------------------------------------

FULL = 4
"""Records of a full batch."""


class BatchReader(WorkHandler):
    """Marks full batches of records; keeps the offsets of each batch by partition."""

    def __init__(self, env: VirtualEnvironment) -> None:
        super().__init__(env)
        self.batches: dict[int, list[list[int]]] = {number: [] for number in range(4)}

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for batch in claim.batches(max_records=FULL, max_wait=1000.0):
            self.batches[claim.partition].append([record.offset for record in batch])
            claim.mark(batch)
            self.note(f"batch of {claim.partition}")
        self.note(f"end {claim.partition}")


async def test_a_part_gathered_batch_of_a_revoked_claim(env: VirtualEnvironment) -> None:
    """The next owner gets its records; a claim that stays, or the member's next session, completes its own batch."""
    reader, other = BatchReader(env), WorkHandler(env)
    for count in (FULL, 2):
        await env.produce(count, range(4))
    async with member(env) as ann, running(ann.run("orders", reader)):
        for number in range(4):
            await reader.until(f"batch of {number}")
        await asyncio.sleep(5.0)  # the rest has arrived
        async with member(env, "bob") as bob, running(bob.run("orders", other)):
            await env.bell.until(lambda: len(partitions_of(bob)) == 2, "half of them", env.limit)
            moved = partitions_of(bob)
            for number in moved:
                await other.until(f"done {number}@{FULL + 1}")
                assert f"claim {number}@{FULL}" in other.calls, "it begins at the end of the last full batch"
                assert f"end {number}" in reader.calls
                assert reader.batches[number] == [list(range(FULL))]
            kept = [number for number in range(4) if number not in moved]
            assert {number: committed(env)[number] for number in kept} == dict.fromkeys(kept, FULL)
            await env.produce(FULL - 2, kept)
            for number in kept:
                await reader.until(f"batch of {number}", times=2)
                assert reader.batches[number] == [list(range(FULL)), list(range(FULL, 2 * FULL))]


# -- fetch sessions ----------------------------------------------------------------------------------------------------


def fetches(env: VirtualEnvironment, *, in_session: bool = True) -> list[Exchange]:
    """Return the member's requests in a fetch session, or those without one, by which new partitions begin."""
    exchanges = env.cluster.history.of("Fetch", client_id="ann")
    return [e for e in exchanges if (e.request.session_epoch != FINAL_EPOCH) is in_session]


def named(exchanges: list[Exchange]) -> set[int]:
    """Return the partitions that these requests add to their session or change in it."""
    return {
        part.partition
        for exchange in exchanges
        for topic in exchange.request.topics
        for part in topic.partitions
    }


def forgotten(exchanges: list[Exchange]) -> set[int]:
    """Return the partitions that these requests remove from their session."""
    return {
        number
        for exchange in exchanges
        for topic in exchange.request.forgotten_topics_data
        for number in topic.partitions
    }


async def test_claims_that_stay_keep_their_fetch_session(env: VirtualEnvironment) -> None:
    """A request removes what has moved, and another one adds what has come; the rest is not named again."""
    handler, other = WorkHandler(env), WorkHandler(env)
    async with member(env) as ann, running(ann.run("orders", handler)):
        await handler.until("claim 3@0")
        await asyncio.sleep(2.0)
        ids = {exchange.response.session_id for exchange in fetches(env) if exchange.response is not None}
        assert len(ids - {0}) == 1
        before, single = len(fetches(env)), len(fetches(env, in_session=False))
        async with member(env, "bob") as bob, running(bob.run("orders", other)):
            await env.bell.until(lambda: len(partitions_of(bob)) == 2, "half of them", env.limit)
            moved = partitions_of(bob)
            await asyncio.sleep(2.0)
            lost, change = fetches(env)[before:], len(fetches(env))
            await bob.aclose()
        await env.bell.until(lambda: len(partitions_of(ann)) == 4, "all again", env.limit)
        await asyncio.sleep(2.0)
        gained = fetches(env)[change:]
        if env.protocol == PROTOCOLS["eager"]:
            assert [e for e in lost if e.request.session_epoch == INITIAL_EPOCH], (
                "here each session has its own"
            )
            return
        assert lost
        assert gained
        assert {exchange.request.session_id for exchange in [*lost, *gained]} == ids - {0}
        assert not [e for e in [*lost, *gained] if e.request.session_epoch == INITIAL_EPOCH]
        assert named(fetches(env, in_session=False)[single:]) <= set(moved)
        assert (named(lost), forgotten(lost)) == (set(), set(moved))
        assert (named(gained), forgotten(gained)) == (set(moved), set())
